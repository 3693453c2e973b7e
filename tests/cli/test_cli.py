"""The command line as a user meets it: what it prints, its exit codes, wrong words, Ctrl-C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from engine.base.errors import ResourceError
from engine.record.run_folder import RunFolder
from fedskew.cli import listing
from tests.support.command_line import SMALL, weights_of


@pytest.mark.pictures
def test_a_run_leaves_what_the_readme_says(call: Any, tmp_path: Path) -> None:
    """Kills: a file that is promised and not written; a summary that is not the last line."""
    code, out, err = call("run", *SMALL, "rounds=2", "--json", "--out", "here")
    assert code == 0
    summary = json.loads(out.splitlines()[-1])
    assert summary["rounds"] == 2
    files = {path.name for path in (tmp_path / "here").iterdir()}
    assert files == {
        "experiment.yaml",
        "parts.json",
        "rounds.parquet",
        "clients.parquet",
        "evaluations.parquet",
        "partition.parquet",
        "partition.png",
        "curves.png",
        "summary.json",
        "log.txt",
        "checkpoints",
        ".lock",
    }
    rows = pd.read_parquet(tmp_path / "here" / "partition.parquet")
    assert not rows.duplicated(["test", "index"]).any()
    assert rows["test"].any() and not rows["test"].all()
    assert "test accuracy" in err and "\nquickstart, fedavg" in err
    for picture in ("curves.png", "partition.png"):
        assert (tmp_path / "here" / picture).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    again = call("run", *SMALL, "rounds=2", "--json", "--out", "here")
    assert "is finished already" in again[2]
    assert json.loads(again[1].splitlines()[-1]) == summary
    fresh = call("run", *SMALL, "rounds=2", "--json", "--out", "here", "--overwrite")
    assert json.loads(fresh[1].splitlines()[-1])["weights_sha256"] == summary["weights_sha256"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--alpha", "0.1"], "No such option: --alpha; write partition.alpha=0.1"),
        (["run", "x.yaml", "--rounds=3"], "No such option: --rounds; write rounds=3"),
        (["resume", "runs/x", "--weight-decay", "1"], "--weight-decay; write local.weight_decay=1"),
        (["run", "--lr"], "No such option: --lr; write local.lr=..."),
        (["run", "--batch-size=8"], "--batch-size; write local.batch_size=8 or evaluation.batch_size=8"),
        (["run", "--mu", "1"], "No such option: --mu; write algorithm.mu=1"),
        (["run", "--nonsense", "3"], "No such option: --nonsense"),
        (["report", "--alpha", "3"], "No such option: --alpha"),
    ],
)
def test_a_key_that_was_typed_as_an_option(call: Any, words: list[str], told: str) -> None:
    """Kills: a repair that leaves the key away, or its section, its value; one for a command that takes no keys; a
    guess where two keys are meant, or none is."""
    code, out, err = call(*words, "--json")
    sentence = json.loads(out)["error"]["message"]
    assert code == 2 and told in sentence and (";" in told) == ("; write" in sentence) and told[-9:] in err


def test_resume_stops_where_run_does(call: Any) -> None:
    """Kills: a resume that only goes on to the end; an option that a sweep takes without a word; a run that does not
    say which experiment it is."""
    _, _, err = call("run", *SMALL, "rounds=3", "--until", "1", "--out", "here")
    assert "in Python  tune_configs.EXPERIMENTS['quickstart'](); Experiment() has other defaults" in err
    code, out, err = call("resume", "here", "--until", "2", "--json")
    assert (code, json.loads(out)["rounds"]) == (0, 2) and "continue with: fedskew resume here" in err
    Path("sweep").mkdir()
    Path("sweep/sweep.yaml").touch()
    code, _, err = call("resume", "sweep", "--until", "2")
    assert code == 2 and "--until=2: is for a run, and this is a sweep; leave it away" in err


@pytest.mark.slow
def test_the_folder_has_the_name_and_the_hash(call: Any, tmp_path: Path) -> None:
    """Kills: two experiments in one folder; a name that changes the hash."""
    call("run", *SMALL, "rounds=1", "name=first")
    call("run", *SMALL, "rounds=1", "name=second")
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert [name.rpartition("-")[0] for name in names] == ["first", "second"]
    assert len({name.rpartition("-")[2] for name in names}) == 1


def test_a_yaml_file_runs_and_its_copy_too(call: Any, tmp_path: Path) -> None:
    """Kills: an experiment.yaml that is not what ran."""
    (tmp_path / "mine.yaml").write_text("rounds: 1\nexecution: {actors: 0}\ndata: {name: synthetic}\n")
    small = ["partition.name=natural", "model.name=logistic", "participation.count=4"]
    code, out, _ = call("run", "mine.yaml", *small, "--json", "--out", "a")
    assert code == 0
    again = call("run", "a/experiment.yaml", "--json", "--out", "b")
    assert json.loads(out.splitlines()[-1])["weights_sha256"] == json.loads(again[1].splitlines()[-1])["weights_sha256"]


@pytest.mark.parametrize("what", ["algorithms", "models", "datasets", "partitions", "experiments"])
def test_list(call: Any, what: str) -> None:
    """Kills: a list that misses an entry."""
    from engine.experiment import CHOICES
    from tune_configs import EXPERIMENTS

    code, out, _ = call("list", what)
    assert code == 0
    for name in EXPERIMENTS if what == "experiments" else CHOICES[listing.LISTS[what]]:
        assert name in out


def test_list_alone_says_what_can_be_listed(call: Any) -> None:
    """Kills: "Missing argument"; a list that is not named."""
    code, out, err = call("list")
    assert (code, err) == (0, "")
    assert all(name in out for name in ("experiments", "sweeps", "fedprox", *listing.LISTS))


def test_few_clients_need_no_count_of_their_own(call: Any, tmp_path: Path) -> None:
    """Kills: the quickstart's count, which nobody typed, asked for of fewer clients; a count that fits, changed."""
    from fedskew.cli.naming import overridden

    assert call("run", "partition.clients", "=", "3", "execution.actors=0", "rounds=1", "--out", "few")[0] == 0
    assert pd.read_parquet(tmp_path / "few" / "rounds.parquet")["clients"].tolist() == [3]
    by_partition = overridden(["partition.name=class_sets"], "laptop")  # which has five clients of its own
    fitting = overridden(["partition.clients=8"], "laptop")
    assert by_partition is not None and fitting is not None
    assert (by_partition.participation.count, fitting.participation.count) == (None, 8)
    (tmp_path / "mine.yaml").write_text("partition: {name: iid, clients: 9}\nparticipation: {count: 8}\n")
    assert "participation.count=8: must be at most" in call("run", "mine.yaml", "partition.clients=5")[2]


def corrupt_parquet(folder: Path) -> Path:
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}-0.parquet").write_bytes(b"PAR1 and nothing else")
    return folder


BAD: list[tuple[list[str], str]] = [
    (["local.lrr=1"], "local.lrr=1: is not a known key; did you mean 'local.lr'?"),
    (["mu=1"], "mu=1: is not a key: keys are dotted; did you mean algorithm.mu?"),
    (["partition.alpha=0"], "partition.alpha=0"),
    (["partition.clients=500"], "partition.clients=500"),  # of 400 samples
    (["local.epochs=0"], "local.epochs=0: must be greater than 0"),
    (["participation.count=99"], "participation.count=99: must be at most partition.clients=5"),
    (["participation.fraction=1.2"], "participation.fraction=1.2: must be greater than 0 and at most 1"),
    (["data.name=cifar10", "data.root=nowhere"], "nowhere"),
    (["data.name=parquet", "data.root=corrupt"], "corrupt"),
    (["algorithm.name=fedprx"], "algorithm.name=fedprx: is not a known algorithm; did you mean 'fedprox'?"),
    (["execution.gpus_per_actor=0.3"], "execution.gpus_per_actor=0.3: needs a GPU and there is none"),
    (["execution.device=cuda"], "execution.device=cuda: needs a GPU and there is none"),
    (["model.name=moon_cnn", "data.name=synthetic", "partition.name=natural"], "model.name"),
    (["--out", "taken"], "--out=taken: holds another experiment"),
    (["--out", "full"], "--out=full: is not empty and holds no run"),
    (["--out", "file"], "--out=file: is not a folder"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=lambda value: str(value)[:50])
def test_bad_input_is_one_sentence_and_exit_code_2(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    """Kills: a traceback, a second sentence, another exit code, a folder left behind."""
    corrupt_parquet(tmp_path / "corrupt")
    if "taken" in words:
        call("run", *SMALL, "rounds=1", "--out", "taken")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    kept = [word for word in SMALL if not any(word.split("=")[0] == other.split("=")[0] for other in words)]
    if any(word.startswith("data.name=") for word in words):
        kept = [word for word in kept if not word.startswith("data.")]
    if any(word.startswith("partition.name=") for word in words):
        kept = [word for word in kept if not word.startswith("partition.")]
    before = sorted(tmp_path.rglob("*"))
    code, _, err = call("run", *kept, "rounds=2", *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert err.strip().startswith("error:")
    assert len(err.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "words", [["run", "--nonsense"], ["nonsense"], ["resume"], ["list", "colours"], ["run", "quikstart"]]
)
def test_wrong_words(call: Any, words: list[str]) -> None:
    """Kills: a wrong flag that passes or ends in a traceback."""
    code, _, err = call(*words)
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["drift.fedprox_mu", "rounds=3"], "overrides=rounds=3: are for one cell; name one as drift.fedprox_mu:mu=0,"),
        (["runs/none:0001"], "folder=runs/none: is not a sweep's folder; name a trial as FOLDER:NUMBER"),
        (["drift.fedprox_mu:mu=2"], "cell=mu=2: is not in drift.fedprox_mu"),
    ],
)
def test_words_about_sweeps_that_mean_nothing(call: Any, words: list[str], message: str) -> None:
    """Kills: overrides that are dropped in silence; a folder taken for a sweep's name."""
    code, out, err = call("run", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_resume_refuses_what_is_no_run(call: Any, tmp_path: Path) -> None:
    """Kills: a resume that makes a folder, or one that changes the experiment."""
    code, _, err = call("resume", "nowhere")
    assert code == 2
    assert "nowhere is not a run folder" in err
    assert not (tmp_path / "nowhere").exists()
    call("run", *SMALL, "rounds=1", "--out", "run")
    code, _, err = call("resume", "run", "local.lr=0.9")
    assert code == 2
    assert "would change the experiment" in err
    (tmp_path / "run" / "experiment.yaml").write_text("!!python/object/apply:os.system ['touch owned']")
    code, _, err = call("resume", "run")
    assert code == 2
    assert not (tmp_path / "owned").exists()


@pytest.mark.slow
def test_a_truncated_checkpoint_is_said_and_survived(call: Any, tmp_path: Path) -> None:
    """Kills: a silent fall-back; a resume that ends because its newest checkpoint is damaged."""
    words = [*SMALL, "rounds=4", "checkpoint.every=2", "--json"]
    straight = json.loads(call("run", *words, "--out", "run")[1].splitlines()[-1])
    newest = max((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-9])
    (tmp_path / "run" / "summary.json").unlink()
    code, out, err = call("resume", "run", "--json")
    assert code == 0
    assert "falling back to the one before" in err.replace("\n", " ")
    assert "continuing after round 2" in err
    assert json.loads(out.splitlines()[-1])["weights_sha256"] == straight["weights_sha256"]


def environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200"}


# The command, to which Ctrl-C comes in the middle of its fourth round, whatever the time; in the background of a shell
# it is ignored.
STOPPED_ON_ITS_WAY = """
import os, signal
from engine.run.driver import Driver
from fedskew.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
one_round, advance = Driver.next, Driver.advance
def gated(self, until):
    if self.round == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return one_round(self, until)
Driver.next = gated
Driver.advance = lambda self, seconds=0.0, until=None: advance(self, 0.0, until)
main()
"""


@pytest.mark.slow
def test_ctrl_c_keeps_everything_and_says_how_to_go_on(call: Any, tmp_path: Path) -> None:
    """Kills: Ctrl-C that loses rounds, ends in a traceback, or leaves a folder that cannot be resumed."""
    words = [*SMALL, "rounds=8", "evaluation.every=1", "checkpoint.every=7"]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_ON_ITS_WAY, "run", *words, "--out", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**environment(), "CUDA_VISIBLE_DEVICES": ""},  # as for what it is compared with
        check=False,
    )
    err = done.stderr
    assert done.returncode == 130, err
    assert "continue with: fedskew resume run" in err
    assert "Traceback" not in err
    folder = RunFolder(tmp_path / "run")
    rounds = folder.summary()["rounds"]
    assert rounds == 4
    assert folder.frame("rounds")["round"].tolist() == list(range(1, rounds + 1))
    assert weights_of(call, "resume", "run") == weights_of(call, "run", *words, "--out", "straight")


@pytest.mark.slow
def test_bad_input_as_a_real_command(tmp_path: Path) -> None:
    """Kills: an entry point that behaves otherwise than in these tests; Ray started before the refusal."""
    done = subprocess.run(
        [sys.executable, "-m", "fedskew.cli.main", "run", "execution.gpus_per_actor=0.3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**environment(), "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: execution.gpus_per_actor=0.3: needs a GPU and there is none; "
        "set execution.gpus_per_actor=0 execution.device=cpu\n"
    )
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_mid_run_keeps_what_was_done(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: rounds lost because a later one failed; a failed run that cannot be resumed."""
    from engine.base.errors import RunError
    from engine.run.driver import Driver

    words = [*SMALL, "rounds=8", "checkpoint.every=100", "--json"]
    straight = json.loads(call("run", *words, "--out", "straight")[1].splitlines()[-1])
    original = Driver._round

    def fails_once(self: Driver) -> Any:
        if self.round == 5:
            raise RunError("the fifth round is the last")
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Driver, "_round", fails_once)
        code, _, err = call("run", *words, "--out", "run")
    assert code == 1
    assert "error: the fifth round is the last" in err
    assert RunFolder(tmp_path / "run").frame("rounds")["round"].tolist() == [1, 2, 3, 4, 5]
    resumed = json.loads(call("resume", "run", "--json")[1].splitlines()[-1])
    assert resumed["weights_sha256"] == straight["weights_sha256"]


def test_overwrite_keeps_the_old_run_until_the_new_one_is_open(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a finished run deleted for one that cannot start; the user's own files deleted at all."""
    words = [*SMALL, "rounds=1", "--out", "run", "--json"]
    first = call("run", *words)[1]
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with monkeypatch.context() as patch:

        def cannot(*_: Any) -> None:
            raise ResourceError("no actors today")

        patch.setattr("engine.run.local_driver.LocalDriver.__init__", cannot)
        code, _, err = call("run", *words, "--overwrite")
        assert (code, "no actors today" in err) == (2, True)
    assert "is finished already" in call("run", *words)[2]
    again = call("run", *words, "--overwrite")[1]
    assert json.loads(first)["weights_sha256"] == json.loads(again)["weights_sha256"]
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    assert not list((tmp_path / "run").glob(".before-*"))


def test_other_data_under_the_same_name_is_another_run(call: Any, tmp_path: Path) -> None:
    """Kills: the result of one data set shown for another; a run that goes on with other data."""
    from PIL import Image

    for folder, shade in (("a", 10), ("b", 90)):
        for split in ("train", "test"):
            for label in ("x", "y"):
                path = tmp_path / folder / split / label
                path.mkdir(parents=True)
                for number in range(6):
                    Image.new("L", (8, 8), shade + 40 * (label == "y") + number).save(path / f"{number}.png")
    words = ["execution.actors=0", "data.name=imagefolder", "partition.clients=2", "partition.name=iid", "rounds=2"]
    runs = [call("run", *words, f"data.root={root}", "participation.count=2", "--json") for root in ("a", "b")]
    shas = [json.loads(out.splitlines()[-1])["weights_sha256"] for _, out, _ in runs]
    assert shas[0] != shas[1]
    Image.new("L", (8, 8), 200).save(tmp_path / "a" / "train" / "x" / "0.png")
    folder = next(path for path in (tmp_path / "runs").iterdir() if shas[0] in (path / "summary.json").read_text())
    (folder / "summary.json").unlink()
    code, _, err = call("resume", str(folder))
    assert code == 2
    assert "data.root=a: holds other data than this run began with" in err


@pytest.mark.slow
def test_a_calibrated_run_is_told_by_stage(call: Any, tmp_path: Path) -> None:
    """Kills: one evaluation that is called the mean of ten rounds; a best round that does not say whose."""
    code, _, err = call("run", *SMALL, "rounds=2", "--out", "plain")
    assert code == 0 and "mean of the last 2 rounds" in err and "of stage" not in err
    text = yaml.safe_load((tmp_path / "plain" / "experiment.yaml").read_text())
    end = {"name": "end", "rounds": 0, "needs": ["first"], "algorithm": {"name": "ccvr", "samples_per_class": 5}}
    (tmp_path / "stages.yaml").write_text(yaml.safe_dump({**text, "stages": [{"name": "first", "rounds": 2}, end]}))
    code, _, err = call("run", "stages.yaml", "--out", "stages")
    assert code == 0 and "mean of the last" not in err
    summary = json.loads((tmp_path / "stages" / "summary.json").read_text())
    assert f"in round 2 of stage {summary['best_stage']}" in err or "in round 1 of stage first" in err
    # Stopped before the calibration, it is that of rounds.
    code, _, err = call("run", "stages.yaml", "--until", "1", "--out", "stopped")
    assert code == 0 and "mean of the last 1 round " in err


def test_the_help_of_diagnose_names_what_it_takes(call: Any) -> None:
    """Kills: an example that is refused."""
    words = " ".join(call("diagnose", "--help")[1].split())
    assert "execution.actors=0" in words and "partition.alpha" not in words


def test_numbers_may_be_names(call: Any) -> None:
    """Kills: YAML's idea of 2024 against the user's."""
    assert call("run", *SMALL, "rounds=1", "name=2024")[0] == 0


def test_files_that_cannot_be_read_or_written(call: Any, tmp_path: Path) -> None:
    """Kills: tracebacks for what lies outside of the engine."""
    code, _, err = call("run", *SMALL, "rounds=1", "--out", "/proc/nowhere")
    assert code == 2
    assert "--out=/proc/nowhere: cannot be written" in err
    call("run", *SMALL, "rounds=2", "checkpoint.every=1", "--out", "run")
    (tmp_path / "run" / "summary.json").unlink()
    table = tmp_path / "run" / "rounds.parquet"
    content = bytearray(table.read_bytes())
    content[100:140] = bytes(40)
    table.write_bytes(content)
    code, _, err = call("resume", "run")
    assert "Traceback" not in err
    (tmp_path / "run" / "experiment.yaml").write_bytes(bytes(range(256)))
    code, _, err = call("resume", "run")
    assert code == 2
    assert "is not an experiment of this version" in err
