"""Results as files, and what cannot be exported."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from engine.base import parquet
from engine.base.errors import ConfigError
from engine.results.frames import load_results
from engine.results.frames.frame_columns import TABLES
from fedskew.trackers import exporting
from fedskew.trackers.exporting import exported
from tests.support.sweep_folders import MU, make_run, make_sweep


def test_tables_as_files(tmp_path: Path) -> None:
    """Kills: a table that is left out, or that has other columns or values than load_results; a second export that
    writes other bytes."""
    sweep = make_sweep(tmp_path / "sweep", axes=[MU], seeds=(0,), rounds=2, failed=[1], personal=["received"])
    frames = load_results(sweep)
    assert exported(sweep, "parquet", str(tmp_path / "a"))[0] == str(tmp_path / "a")
    exported(sweep, "csv")
    for name in TABLES:
        assert parquet.read(tmp_path / "a" / f"{name}.parquet").equals(frames.arrow(name).replace_schema_metadata({}))
        text = (sweep / "tables" / f"{name}.csv").read_text()
        found = pd.read_csv(StringIO(text))
        assert list(found) == frames.arrow(name).schema.names and len(found) == len(frames.arrow(name))
    trials = pd.read_csv(sweep / "tables" / "trials.csv", dtype={"trial": str})
    assert trials["accuracy"].tolist() == pytest.approx(frames.trials["accuracy"].tolist(), nan_ok=True, abs=1e-12)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    exported(sweep, "parquet", str(tmp_path / "a"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_never_take_the_place_of_a_runs_own(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]], kind: str
) -> None:
    """Kills: an export, or a leaderboard, into the folder of a run or a sweep, whose rounds.parquet it overwrites; a
    place that cannot be written, of which it is said that a run is to be resumed there."""
    run = make_run(tmp_path / "run", rounds=1, client_rows=False)
    sweep = make_sweep(tmp_path / "sweep", axes=[MU], seeds=(0,), rounds=1, client_rows=False)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for place in (run, sweep, sweep / "trials" / "00000"):
        code, _, err = call("export", str(run), "--to", f"{kind}:{place}")
        assert code == 2 and f"--to={place}: is the folder of a run or a sweep; name another" in err
        code, _, err = call("leaderboard", str(run), "--out", str(place))
        assert code == 2 and f"--out={place}: is the folder of a run or a sweep; name another" in err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "file").write_text("")
    for place in ("/dev/full", "/proc/nowhere", tmp_path / "file", tmp_path / ("x" * 300)):
        code, _, err = call("export", str(run), "--to", f"{kind}:{place}")
        assert code == 2 and "cannot be written (" in err and "resume" not in err and "Traceback" not in err


def test_what_cannot_be_exported_is_said(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a traceback for a wrong place, a folder that is none, a library that is not there, a store that fails."""
    run = str(make_run(tmp_path / "run", rounds=1, client_rows=False))
    monkeypatch.setattr(exporting.Target, "open", lambda _: 1 / 0)
    for words, told in (
        ((run, "--to", "mlfow"), "did you mean 'mlflow'?"),
        ((str(tmp_path), "--to", "csv"), "is neither a run nor a sweep"),
        ((run, "--to", f"tensorboard:{run}/tb"), "lies in"),
        ((run, "--to", "mlflow:http://me:secret@x"), "mlflow:http://x cannot be reached or written (Zero"),
    ):
        if (kind := words[2].partition(":")[0]) in ("tensorboard", "mlflow"):
            pytest.importorskip(kind)
        code, _, err = call("export", *words)
        assert code == 2 and told in err and "Traceback" not in err and "secret" not in err, words
    monkeypatch.setattr("fedskew.trackers.tracking.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'fedskew\[wandb\]'"):
        exported(Path(run), "wandb")
