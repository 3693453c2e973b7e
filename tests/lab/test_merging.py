"""Sweeps that were split over folders, and merged into one: tables, files and verdicts of the sweep in one piece."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.base.errors import ConfigError, RunFolderError
from engine.base.files import locked
from engine.base.own_modules import import_file
from engine.record.columns import HOW_IT_WENT
from engine.record.stage_hashes import code_of
from engine.record.sweep_files import PlannedTrial
from engine.results import load
from engine.results.frames import load_results
from engine.sweeps import named as named_sweeps
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.mending import left_behind
from engine.sweeps.named import NamedSweep
from engine.sweeps.options import How
from engine.sweeps.planning import plan
from engine.sweeps.running import combined, reopened
from fedskew.lab.comparing.comparisons import paper_frame
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.ledger import record
from fedskew.lab.sweeping.merging import FILE, Merged, Part, _whole, merge
from fedskew.lab.sweeping.tuning import with_choices
from fedskew.lab.tuned_sides import Candidate, TunedSide
from fedskew.lab.tuned_sides import read as read_choices
from fedskew.lab.tuned_sides import write as write_choices
from tests.support import small_sweeps
from tests.support.sweep_folders import make_run, typical_accuracy
from tune_configs import SWEEPS

OWN = [*HOW_IT_WENT, "folder", "source"]  # columns that may differ between equal sweeps
FEDPROX = "drift.fedprox_mu"
SIZE = {"seeds": "seeds=[0,1]", "mu": "mu=[0,0.1]"}  # of the sweep that is made up: 8 trials


@pytest.fixture(autouse=True)
def given() -> None:
    """The file of the sweeps is given with each merge, as by --with."""
    import_file(Path(small_sweeps.__file__), "--with")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sweep in one piece, by seeds and by cells, each trained by itself."""
    folder = tmp_path_factory.mktemp("split")
    pieces = {"one": [], "seed0": ["seeds=0"], "seed1": ["seeds=[1]"], "avg": ["algorithm=fedavg"]}
    pieces["prox"] = ["algorithm=[{name: fedprox, mu: 1}]", "alpha=[0.1,1.0]"]
    return {name: small_sweeps.in_process("cells", folder / name, *words) for name, words in pieces.items()}


def tables(folder: Path) -> dict[str, Any]:
    """All that is read of a sweep, without what may differ between equal ones."""
    frames = load_results(folder)
    results = frames.results
    found = {
        name: getattr(frames, name).drop(columns=OWN, errors="ignore") for name in ("rounds", "clients", "classes")
    }
    found["trials"] = frames.trials.drop(columns=["seconds", "folder", "source"])
    found["table"] = paper_frame(results, results.tables[0]) if results.tables else results.settings()
    return {name: frame.to_json() for name, frame in found.items()} | {
        "verdicts": [repr(one) for one in judge(results)]
    }


@pytest.mark.parametrize("parts", [("seed1", "seed0"), ("avg", "prox"), ("prox", "seed0", "avg")])
def test_parts_are_the_sweep_in_one_piece(trained: dict[str, Path], tmp_path: Path, parts: tuple[str, ...]) -> None:
    """Kills: a trial under another's number, a trial that is lost or counts twice, overrides of a part that stay, a
    plan of one part alone, a folder that a resume would begin anew or refuse."""
    merged = merge(tmp_path / "merged", [trained[name] for name in parts], {})
    assert tables(merged.folder) == tables(trained["one"])
    ours, wanted = SweepFolder(merged.folder), SweepFolder(trained["one"])
    assert ours.sweep() == wanted.sweep()
    assert ours.plan() == wanted.plan()
    assert (merged.planned, merged.missing, merged.doubles) == (8, (), {3: 4}.get(len(parts), 0))
    assert sum(merged.taken.values()) == 8
    named, how = reopened(merged.folder, {})
    left = left_behind(ours, [*ours.plan().values()], ours.plan())
    assert (left.whole, named.overrides, how) == (8, (), How())
    came = json.loads((merged.folder / FILE).read_text())["trials"]
    assert len(came) == 8 and {one["folder"] for one in came.values()} <= set(parts)
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


def test_parts_of_some_cells_are_a_sweep_of_these(trained: dict[str, Path], tmp_path: Path) -> None:
    """Kills: a grid or seeds that no part has; a missing trial that is not said, or that resume does not know."""
    shutil.copytree(trained["seed0"], tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "trials" / "00003")
    shutil.copytree(trained["avg"], tmp_path / "damaged")
    (tmp_path / "damaged" / "trials" / "00002" / "summary.json").write_text("{")  # alpha=0.1 with seed 1
    merged = merge(tmp_path / "merged", [tmp_path / "part", tmp_path / "damaged"], {})
    assert (merged.planned, merged.missing, merged.doubles) == (8, ("00003", "00004", "00005", "00007"), 2)
    assert len(merged.damaged) == 1 and "summary.json" in merged.damaged[0]
    assert load(merged.folder).completeness.statuses == {"finished": 4, "missing": 4}
    alone = small_sweeps.in_process("cells", tmp_path / "alone", "algorithm=fedavg", "alpha=0.1", "seeds=[7]")
    merged = merge(tmp_path / "few", [trained["avg"], alone], {})
    assert SweepFolder(merged.folder).sweep()["overrides"] == ["algorithm=[{name: fedavg}]", "seeds=[0, 1, 7]"]
    assert merged.missing == ("00005",)


# --- a sweep whose trials are made up -------------------------------------------------------------------------


def made(out: Path, *overrides: str, base: tuple[str, ...] = ()) -> Path:
    """A part of drift.fedprox_mu; ``overrides`` take the place of those of SIZE."""
    words = [*({**SIZE, **{word.partition("=")[0]: word for word in overrides}}).values(), *base]
    return made_of(named_sweeps.load(FEDPROX, "laptop", words, SWEEPS), out)


def made_of(named: NamedSweep, out: Path, complete: Callable[[Mapping[str, Any]], dict[str, Any]] = dict) -> Path:
    folder, planned = SweepFolder(out), plan(named.sweep, complete)
    codes = {one.trial: code_of(one.experiment) for one in planned}
    folder.create(named, How(store=out / "store").to_mapping(), combined([code_of(named.sweep.base), *codes.values()]))
    folder.write_plan([PlannedTrial(one.trial, one.seed, one.setting) for one in planned])
    for one in planned:
        rounds = one.experiment.rounds
        folder.write(TrialRecord(one.trial, one.setting, one.seed, "finished", None, rounds, rounds, rounds))
        path = make_run(out / "trials" / one.trial, one.experiment.resolve(), typical_accuracy(one.setting, one.seed))
        edit(path / "summary.json", versions={"code": codes[one.trial], "torch": "2.13.0"})
    return out


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("halves")
    return made(folder / "a", "seeds=[0]"), made(folder / "b", "seeds=[1]")


@pytest.fixture
def mine(halves: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """The halves, to be changed."""
    return tuple(Path(shutil.copytree(one, tmp_path / one.name)) for one in halves)  # type: ignore[return-value]


def test_the_ledger_takes_it(halves: tuple[Path, Path], tmp_path: Path) -> None:
    """Kills: a store of another machine, a key in sweep.yaml that the ledger would keep, rows in another order."""
    merged = merge(tmp_path / "merged", halves, SWEEPS)
    whole = made(tmp_path / "whole")
    assert tables(merged.folder) == tables(whole)
    assert SweepFolder(merged.folder).sweep()["how"]["store"] is None
    ours, wanted = record(merged.folder, None), record(whole, None)
    assert replace(ours, overrides=()) == replace(wanted, overrides=())
    assert ours.overrides == ("mu=[0.0, 0.1]", "seeds=[0, 1]")


def test_claims_are_those_that_every_part_began_with(mine: tuple[Path, Path], tmp_path: Path) -> None:
    """Kills: claims made after the outcome that a merge takes for those of the beginning; one part alone that is asked,
    whichever is first."""
    claims = SweepFolder(mine[0]).sweep()["claims"]
    for part, changed in zip(
        mine, ({"claims": claims[1:]}, {"begun": {"target_accuracy": 0.9, "devices": {"seed": 1}}}), strict=True
    ):
        (part / "sweep.yaml").write_text(yaml.safe_dump(SweepFolder(part).sweep() | changed))
    for number, parts in enumerate((mine, mine[::-1])):
        values = SweepFolder(merge(tmp_path / f"merged{number}", parts, SWEEPS).folder).sweep()
        assert values["claims"] == claims
        assert values["begun"] == {"claims": claims[1:], "target_accuracy": 0.9, "devices": {"seed": 1}}


def same_seed(a: Path, b: Path) -> list[Path]:
    """Two parts with equal trials, one of whose bits are changed."""
    other = Path(shutil.copytree(a, a.parent / "other"))
    edit(other / "trials" / "00002" / "summary.json", weights_sha256="f" * 64)
    return [a, b, other]


def other_rate(a: Path, b: Path) -> list[Path]:
    return [a, made(b.parent / "rate", "seeds=[1]", base=("local.lr=0.5",))]


def other_partition_seed(a: Path, b: Path) -> list[Path]:
    return [a, made(b.parent / "drawn", "seeds=[1]", base=("partition.seed=7",))]


def other_hardware(a: Path, b: Path) -> list[Path]:
    return [a, made(b.parent / "mixed", "seeds=[1]", base=("execution.mixed_hardware=true",))]


def other_sweep(a: Path, b: Path) -> list[Path]:
    values = yaml.safe_load((b / "sweep.yaml").read_text())
    named = named_sweeps.load("ccvr.headline", "laptop", ["seeds=[1]"], SWEEPS)
    changed = values | {"reference": "ccvr.headline", "overrides": ["seeds=[1]"], "digest": named.digest}
    (b / "sweep.yaml").write_text(yaml.safe_dump(changed))
    return [a, b]


def changed_since(a: Path, b: Path) -> list[Path]:
    values = yaml.safe_load((b / "sweep.yaml").read_text())
    (b / "sweep.yaml").write_text(yaml.safe_dump(values | {"digest": "0123456789ab"}))
    return [a, b]


def other_code(a: Path, b: Path) -> list[Path]:
    edit(b / "trials" / "00001" / "summary.json", versions={"code": "f" * 16})
    return [a, b]


def stranger(a: Path, b: Path) -> list[Path]:
    edit(b / "trials" / "00001" / "trial.json", seed=5)
    return [a, b]


def other_partitions(a: Path, b: Path) -> list[Path]:
    return [a, of_one_partition(b)]


def of_one_partition(part: Path) -> Path:
    """The part as a version left it that had no word for partitions."""
    named, _ = reopened(part, SWEEPS)
    values = SweepFolder(part).sweep()
    digest = replace(named, sweep=replace(named.sweep, partitions="one")).digest
    del values["partitions"]
    (part / "sweep.yaml").write_text(yaml.safe_dump(values | {"digest": digest}))
    return part


def a_link(a: Path, b: Path) -> list[Path]:
    (b / "trials" / "link").symlink_to(a)
    return [a, b]


REFUSED = {
    same_seed: r"a/trials/00002 and .*other/trials/00002 .* \(mu=0.1, alpha=0.05, seed 0\) with other bits",
    other_rate: "rate is not of the sweep of .*a: its local.lr is 0.5, there 0.1",
    other_partition_seed: "drawn is not of the sweep of .*a: its partition.seed is 7, there 0",
    other_hardware: "mixed is not of the sweep of .*a: its execution.mixed_hardware is true, there false",
    other_sweep: "b is not of the sweep of .*a: its sweep is ccvr.headline, there drift.fedprox_mu",
    changed_since: "b was begun as another sweep",
    other_code: "b/trials/00001 was computed by other code than this",
    stranger: r"b/trials/00001 \(mu=0, alpha=0.5, seed 5\) is no trial of the merged sweep",
    other_partitions: "b is not of the sweep of .*a: its partitions is one, there anew",
    a_link: "is a symbolic link",
}


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_what_is_not_one_sweep_is_refused(mine: tuple[Path, Path], tmp_path: Path, change: Any) -> None:
    """Kills: results of two sweeps, two codes or two bits in one folder; a half-written folder that stays."""
    folders = change(*mine)
    with pytest.raises(RunFolderError, match=REFUSED[change]):
        merge(tmp_path / "merged", folders, SWEEPS)
    assert not [path for path in tmp_path.iterdir() if "merged" in path.name]


def test_parts_that_have_tuned_their_sides(tmp_path: Path) -> None:
    """Kills: a merged folder without its choices, which would search again; trials that are looked up without what was
    chosen; parts that have chosen otherwise."""
    reference = f"{small_sweeps.__file__}:tuned"
    whole = named_sweeps.load(reference, "laptop", [], {}).sweep
    candidates = (Candidate({"local.lr": 0.1}, 0.8), Candidate({"local.lr": 1e-6}, 0.5))
    sides = [TunedSide(dict(one.where), candidates, (7,), "accuracy") for one in whole.tuned]

    def part(name: str, sides: Sequence[TunedSide], *words: str) -> Path:
        named = named_sweeps.load(reference, "laptop", words, {})

        def complete(setting: Mapping[str, Any]) -> dict[str, Any]:
            return with_choices(named.sweep, sides, named.sweep.base.replace(dict(setting)), setting)

        folder = made_of(named, tmp_path / name, complete)
        write_choices(folder, sides)
        return folder

    merged = merge(tmp_path / "merged", [part("a", sides, "seeds=[0]"), part("b", sides, "seeds=[1]")], {})
    assert (merged.planned, merged.missing) == (4, ()) and read_choices(merged.folder) == tuple(sides)
    assert {one.setting["local.lr"] for one in SweepFolder(merged.folder).plan().values()} == {0.1}
    others = part("c", [sides[0], replace(sides[1], candidates=candidates[::-1])], "seeds=[1]")
    with pytest.raises(RunFolderError, match="c has tuned its sides to other values than"):
        merge(tmp_path / "refused", [tmp_path / "a", others], {})


def test_old_code_is_one_code_where_all_parts_say_so(mine: tuple[Path, Path], tmp_path: Path) -> None:
    """Kills: parts of one older code that are refused, or merged as computed by the code of now."""
    for part in mine:
        for path in part.glob("trials/*/summary.json"):
            edit(path, versions={"code": "f" * 16})
        text = (part / "sweep.yaml").read_text()
        (part / "sweep.yaml").write_text(text.replace(f"code: {SweepFolder(part).sweep()['code']}", "code: oldercode"))
    merged = merge(tmp_path / "merged", mine, SWEEPS)
    assert SweepFolder(merged.folder).sweep()["code"] == "oldercode"


def test_parts_of_one_partition_stay_so(mine: tuple[Path, Path], tmp_path: Path) -> None:
    """Kills: older parts whose missing trials would draw other partitions; a merged folder that no resume opens."""
    merged = merge(tmp_path / "merged", [of_one_partition(part) for part in mine], SWEEPS)
    assert SweepFolder(merged.folder).sweep()["partitions"] == "one"
    assert reopened(merged.folder, SWEEPS)[0].sweep.partitions == "one" and merged.missing == ()


def test_what_moves_no_result_may_differ(halves: tuple[Path, Path], tmp_path: Path) -> None:
    """Kills: parts of machines with other disks or workers that are refused; a merged folder without the first's."""
    words = ("execution.retries=1", "checkpoint.every=7")
    other = made(tmp_path / "other", "seeds=[1]", base=words)
    assert merge(tmp_path / "first", [halves[0], other], SWEEPS).missing == ()
    assert merge(tmp_path / "second", [other, halves[0]], SWEEPS).missing == ()
    kept = [SweepFolder(tmp_path / name).sweep()["overrides"] for name in ("first", "second")]
    assert [set(words) <= {*one} for one in kept] == [False, True]
    bits = made(tmp_path / "bits", "seeds=[1]", base=("execution.precision=float64",))
    with pytest.raises(RunFolderError, match=r"its execution\.precision is float64"):
        merge(tmp_path / "refused", [halves[0], bits], SWEEPS)
    parts = [
        Part(
            Path(root),
            named_sweeps.load(FEDPROX, "laptop", ["data=fashion_mnist", f"data.root={root}"], SWEEPS),
            How(),
            "",
        )
        for root in ("here", "there")
    ]
    assert _whole(parts, SWEEPS).overrides == ("data=fashion_mnist", "data.root=here")


def test_places_that_are_in_use_are_refused(halves: tuple[Path, Path], tmp_path: Path) -> None:
    """Kills: a merge into a folder that is somebody's, of a sweep under way, of one folder alone or twice."""
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("all of it")
    with pytest.raises(ConfigError, match="is there already"):
        merge(tmp_path / "used", halves, SWEEPS)
    with pytest.raises(ConfigError, match="fewer than two"):
        merge(tmp_path / "merged", halves[:1], SWEEPS)
    with pytest.raises(ConfigError, match=r"folders=.*a: is given twice; name it once"):
        merge(tmp_path / "merged", [*halves, halves[0].parent / "b" / ".." / "a"], SWEEPS)
    with locked(halves[0] / ".lock"), pytest.raises(RunFolderError, match="is being written by another process"):
        merge(tmp_path / "merged", halves, SWEEPS)


@pytest.mark.parametrize("function", ["asha", "proposed"])
def test_trials_that_depend_on_each_other_are_not_merged(tmp_path: Path, function: str) -> None:
    """Kills: halves of a population or a search that are taken for the whole."""
    named = named_sweeps.load(f"{small_sweeps.__file__}:{function}", "laptop", [], {})
    for name in ("a", "b"):
        SweepFolder(tmp_path / name).create(named, How().to_mapping())
    with pytest.raises(RunFolderError, match="a cannot be a part of a sweep"):
        merge(tmp_path / "out", [tmp_path / "a", tmp_path / "b"], {})


def test_the_command_says_what_came_of_it(call: Any, mine: tuple[Path, Path], tmp_path: Path) -> None:
    """Kills: machines that differ, or missing trials, without a word; JSON without them."""
    edit(mine[1] / "trials" / "00001" / "summary.json", versions={"code": summary_code(mine[1]), "torch": "2.12.0"})
    shutil.rmtree(mine[1] / "trials" / "00002")
    code, out, err = call("merge", "merged", str(mine[0]), str(mine[1]))
    assert code == 0 and "7 of 8 trials" in err and "missing: 00006" in err
    assert "torch: 2.12.0, 2.13.0" in err
    code, out, _ = call("merge", "again", str(mine[0]), str(mine[1]), "--json")
    found = json.loads(out)
    assert (found["planned"], found["missing"], found["versions"]) == (8, ["00006"], {"torch": ["2.12.0", "2.13.0"]})
    assert call("merge", "merged", str(mine[0]), str(mine[1]))[0] == 2


def summary_code(part: Path) -> str:
    return json.loads((part / "trials" / "00001" / "summary.json").read_text())["versions"]["code"]


def test_what_is_taken_is_the_one_that_has_ended(mine: tuple[Path, Path], tmp_path: Path) -> None:
    """Kills: a trial under way in the place of the one that has ended elsewhere."""
    other = Path(shutil.copytree(mine[0], tmp_path / "other"))
    edit(mine[0] / "trials" / "00001" / "trial.json", status="running", rounds=3)
    (mine[0] / "trials" / "00001" / "summary.json").unlink()
    found: Merged = merge(tmp_path / "merged", [*mine, other], SWEEPS)
    assert load(found.folder).completeness.statuses == {"finished": 8}
    assert (found.doubles, found.taken[str(other)]) == (3, 1)
