"""The names of what a run writes: all that ``--overwrite``, pruning and clearing up may ever delete of its folder."""

from __future__ import annotations

from engine.base.owned import TOKEN, Shape
from engine.base.registry import STAGE_NAME
from engine.record.columns import SCHEMAS

KEY = "[A-Za-z0-9_-]{1,200}"  # of the store
_NUMBER, _STAGE = "[0-9]{6,}", STAGE_NAME.strip("^$")
_TABLES = tuple(rf"{name}\.parquet" for name in SCHEMAS)
_FRAME = r"\.(parquet|csv)"

STATES = Shape((r"[0-9a-f]{64}\.safetensors",))
CHECKPOINTS = Shape((rf"[0-9]{{2,}}-{_STAGE}-{_NUMBER}\.safetensors",), {"states": STATES})  # set aside: not ours
# Of snapshots.py; the store's manifest lies beside one for a moment.
SNAPSHOT = Shape((r"snapshot\.json", r"manifest\.json", r"checkpoint\.safetensors", *_TABLES), {"states": STATES})
# A checkpoint that Ray Tune keeps: the second file is Ray's own.
TRIAL_CHECKPOINT = Shape((r"about\.json", r"\.metadata\.json"), {"stages": Shape(folders={"[0-9]{2,}": SNAPSHOT})})
FETCHED = Shape(
    folders={
        rf"{KEY}-{_NUMBER}-{TOKEN}": SNAPSHOT,
        rf"\.{KEY}-{_NUMBER}-{TOKEN}\.{TOKEN}\.tmp": SNAPSHOT,
    }
)
PARTS = Shape(tuple(rf"{name}\.[0-9]{{12,}}\.parquet" for name in SCHEMAS))
_DIAGNOSIS = Shape(
    (
        r"summary\.json",  # the first to go: who finds it finds the rest
        r"diagnosis\.html",
        rf"(layers|pairs|norms){_FRAME}",
        r"(cka|layers|norms|norms-counts)\.png",
    )
)
_IMAGES = Shape((r"summary\.json", rf"(generated|test){_FRAME}", r"shown\.safetensors", r"generated\.png"))
_ROUND = rf"round-{_NUMBER}(-{_STAGE})?"
# Checkpoints go first: a run whose clearing was cut short begins anew. The experiment goes last but for what is written
# before it: where anything of a run is, it says of which run.
RUN = Shape(
    (
        r"summary\.json",
        *_TABLES,
        r"matrices\.parquet",
        r"(partition|sampler|matrices|classes|curves)\.png",
        r"log\.txt",
        r"parts\.json",
        r"experiment\.yaml",
        r"availability\.parquet",
        r"partition\.parquet",
        r"\.lock",
    ),
    {
        "checkpoints": CHECKPOINTS,
        "rows": PARTS,
        "fetched": Shape(folders={**FETCHED.folders, "checkpoint": TRIAL_CHECKPOINT}),
        "diagnosis": Shape(
            folders={_ROUND: _DIAGNOSIS, "embedding": Shape((rf"embedding{_FRAME}", r"embedding\.png"))}
        ),
        "images": Shape(folders={_ROUND: _IMAGES}),
    },
)
# What a run writes before its experiment, or a sweep before the run: a folder with no more than that is no other's.
BEGUN = Shape((r"experiment\.yaml", r"parts\.json", r"(partition|availability)\.parquet", r"\.lock", r"trial\.json"))
