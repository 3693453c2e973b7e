"""Everything that can be refused is refused in one sentence, before anything starts, and leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.base.files import locked
from engine.data import SOURCES
from engine.data.sources import cifar, mnist
from engine.record.checkpoints import Checkpoints
from engine.record.run_folder import RunFolder
from engine.worker.ray import cluster
from fedskew.cli import main as cli
from tests.bad_input import datasets, experiments, folders, partitions, sweeps
from tests.bad_input.case import Case
from tests.support import own_prox
from tests.support.command_line import fedskew
from tests.support.sweep_folders import MU, make_sweep

GROUPS = {
    "experiments": experiments.CASES,
    "datasets": datasets.CASES,
    "partitions": partitions.CASES,
    "sweeps": sweeps.CASES,
    "folders": folders.CASES,
}
CASES: list[Case] = [case for cases in GROUPS.values() for case in cases]

# Each group's sentences by the names of its cases. ``python -m pytest -n0 tests/bad_input --rewrite-sentences`` writes
# the file anew: read what has changed in it.
SENTENCES = Path(__file__).with_name("sentences.json")
ANY = "[...]"  # for what differs between versions and machines: words of libraries, digests, lists, sizes
OF_LIBRARIES = (
    r"cannot identify|Err(no|or)|codec|indices must|invalid (literal|for input)|in range|Expecting|the limit|iterable"
)
VARYING = {
    rf"\((\w*Error: |it [^:()]*: )?(?=.*?({OF_LIBRARIES})).*\)": rf"(\1{ANY})",
    r"(?<=cannot be imported: )(Syntax|Recursion)Error: .*": rf"\1Error: {ANY}",
    r"(?<=; known: )([^;),]*,){3}[^;)]*": ANY,
    r"(?<='; )[\w, ]*(?= ha(s|ve) it)": ANY,  # the algorithms that have such a field
    r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{12,64}\b": ANY,
    r"(?<=this machine has )\d+|(?<=memory \()[\d.]+(?= GB)|(?<=a table may have )\d+": ANY,
    r"(?<=set data.size=)\d+|(?<=machine's memory; set it to )\d+": ANY,
}


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No data set of this machine, no network, no GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(mnist, "DEBIAN_FASHION_MNIST", Path("no/such/folder"))
    for module, download in ((mnist, "_download_fashion_mnist"), (cifar, "_download_cifar10")):
        monkeypatch.setattr(module, download, lambda folder: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that was stopped before its last round, and a sweep with its trials; to be copied."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedskew", *folders.BEGUN, "--until", "2", "--out", str(folder / "run")])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        assert exit.value.code == 0
    make_sweep(folder / "sweep", axes=[MU], seeds=(0,), rounds=4)
    return {kind: folder / kind for kind in ("run", "sweep")}


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def started(*args: object, **kwargs: object) -> None:
        pytest.fail("Ray was started")

    monkeypatch.setattr(ray, "init", started)
    monkeypatch.setattr(cluster, "connect", started)


def content(folder: Path) -> dict[str, str]:
    """Of everything below a folder: a digest of each file, where each link leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = f"-> {os.readlink(path)}" if path.is_symlink() else "folder" if path.is_dir() else ""
        found[str(path.relative_to(folder))] = kind or hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def sentence_of(code: Any, out: str, err: str, folder: Path) -> str:
    """The sentence of a refusal, once it is known to be one and nothing else."""
    assert code == 2, err
    assert "Traceback" not in err
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1, err
    assert out == ""
    sentence = err.removeprefix("error: ").strip()
    return sentence.replace(str(folder), "FOLDER").replace(os.environ["XDG_CACHE_HOME"], "CACHE")


def general(sentence: str) -> str:
    """The sentence as it is kept."""
    for pattern, kept in VARYING.items():
        sentence = re.sub(pattern, kept, sentence)
    return sentence


def fits(sentence: str, expected: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, expected.split(ANY))), sentence) is not None


def prepared(case: Case, begun: dict[str, Path], folder: Path) -> dict[str, str]:
    """Put into a folder what a case finds there; return its content."""
    if case.begun:
        shutil.copytree(begun[case.begun], folder / case.begun)
    case.prepare(folder)
    return content(folder)


def refusal(
    case: Case, begun: dict[str, Path], folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    folder.mkdir()
    before = prepared(case, begun, folder)
    if not case.loads:
        for kind in SOURCES.values():
            patch.setattr(kind, "load", lambda self: pytest.fail("data were loaded"))
    patch.chdir(folder)
    with own_prox.forgotten():
        sentence = sentence_of(*fedskew(patch, capsys, *case.words), folder)
    assert content(folder) == before, "files were left behind"
    return sentence


@pytest.mark.parametrize("group", GROUPS)
def test_bad_input_is_refused_in_one_sentence(
    group: str,
    begun: dict[str, Path],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Kills: a traceback, another exit code, a second sentence; Ray or data before the refusal; a file left behind."""
    kept = json.loads(SENTENCES.read_text())
    expected = kept.get(group, {})
    sentences, failures = {}, list[str]()
    for number, case in enumerate(GROUPS[group]):
        try:
            with pytest.MonkeyPatch.context() as patch:
                sentences[case.name] = refusal(case, begun, tmp_path / str(number), patch, capsys)
        except (Exception, pytest.fail.Exception) as error:
            failures.append(f"{case.name}: {error}")
    other = {name: told for name, told in sentences.items() if not fits(told, expected.get(name, ""))}
    if request.config.getoption("rewrite_sentences"):
        written = {name: general(told) if name in other else expected[name] for name, told in sentences.items()}
        SENTENCES.write_text(json.dumps(kept | {group: written}, indent=1, ensure_ascii=False) + "\n")
    else:
        failures += [f"{name}: {told}\n  is not: {expected.get(name)}" for name, told in other.items()]
        failures += [f"{name}: is no case" for name in expected.keys() - {case.name for case in GROUPS[group]}]
    assert not failures, "\n".join(["", *failures])


AS_COMMANDS = ("100,000 brackets", "a pickle that runs code")  # what may end a process, or be run by it


@pytest.mark.slow
@pytest.mark.parametrize("name", AS_COMMANDS)
def test_bad_input_of_a_real_command(name: str, begun: dict[str, Path], tmp_path: Path) -> None:
    """Kills: an entry point that behaves otherwise than in the test above; a process that ends by a signal."""
    [(group, case)] = [(group, case) for group, cases in GROUPS.items() for case in cases if case.name == name]
    before = prepared(case, begun, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "fedskew.cli.main", *case.words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    sentence = sentence_of(done.returncode, done.stdout, done.stderr, tmp_path)
    assert fits(sentence, json.loads(SENTENCES.read_text())[group][name])
    assert content(tmp_path) == before


def test_the_table_is_long_and_names_each_case_once() -> None:
    """Kills: a table that is not run, a case that another one of the same name hides."""
    names = [case.name for case in CASES]
    assert len(names) >= 300
    assert len(set(names)) == len(names)


def test_a_lock_that_is_a_link_leaves_alone_what_it_leads_to(tmp_path: Path) -> None:
    """Kills: a lock that is opened to be written anew, in a folder that somebody else has made."""
    (tmp_path / "precious").write_text("a thesis")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with locked(tmp_path / ".lock"):
        assert (tmp_path / "precious").read_text() == "a thesis"


def test_checkpoints_are_newest_first_by_number(tmp_path: Path) -> None:
    """Kills: an order by text, in which round 1,000,000 comes before round 999,999."""
    names = ("00-a-999999", "00-a-1000000", "02-a-000001", "10-b-000001", "100-c-000000", "readme")
    for name in names:
        (tmp_path / f"{name}.safetensors").touch()
    stages = {0: "a", 2: "a", 10: "b", 100: "c"}
    chain = tuple(stages.get(number, "other") for number in range(101))
    found = [path.stem for path in Checkpoints(tmp_path, "", 1, chain).paths()]
    assert found == ["100-c-000000", "10-b-000001", "02-a-000001", "00-a-1000000", "00-a-999999"]


def test_a_run_that_cannot_be_opened_leaves_no_folder_above_it(tmp_path: Path) -> None:
    """Kills: folders that were made for a run which was then refused."""
    (tmp_path / "there").mkdir()
    with pytest.raises(ZeroDivisionError), RunFolder(tmp_path / "there" / "a" / "b" / "run").prepared(False):
        _ = 1 / 0
    assert content(tmp_path) == {"there": "folder"}
