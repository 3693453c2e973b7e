"""What a script, a terminal and a notebook show of runs and sweeps, and what an interrupt says."""

from __future__ import annotations

import copy
import json
import pickle
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from rich.console import Console

import fedskew
from engine.record.summary import SHOWN
from engine.run.run import Run, RunObserver
from fedskew import running
from fedskew.lab.run_line import curve
from fedskew.running import Interrupted, Summary
from tests.support.tiny import experiment

ROOT = Path(__file__).parents[2]


def small() -> fedskew.Experiment:
    data = {"name": "fashion_mnist_sample", "train_samples": 100, "test_samples": 40}
    return experiment(data=data, rounds=3, evaluation={"every": 1}, checkpoint={"every": 1})


def test_a_curve_is_a_line_of_blocks() -> None:
    """Kills: blocks that do not reach from the least to the largest; a long curve without its last value; a division
    by nothing where all are equal, or none is there."""
    assert (curve([0.1, 0.45, 0.8]), curve([0.5, 0.5]), curve([]), curve([0.5, float("nan")])) == ("▁▄█", "▁▁", "", "▁")
    assert curve([0.0] * 100 + [1.0])[-1] == "█" and len(curve([0.0] * 301)) <= 30


def test_a_summary_is_a_mapping_with_attributes(tmp_path: Path) -> None:
    """Kills: a summary that is no dictionary any more; an attribute that is not there told as any other; one that a
    typed name lacks; a line in IPython of a hundred."""
    summary = fedskew.run(small(), tmp_path / "run")
    assert json.loads(json.dumps(summary)) == dict(summary) == json.loads((tmp_path / "run/summary.json").read_text())
    assert summary.accuracy == summary["accuracy"] and summary.folder == tmp_path / "run"
    with pytest.raises(AttributeError, match=r"a summary has no 'acuracy'; did you mean 'accuracy'\?"):
        _ = summary.acuracy
    assert set(get_type_hints(Summary)) - {"folder"} <= set(summary) and {*SHOWN} <= {*dir(summary)}
    for same in (copy.copy(summary), pickle.loads(pickle.dumps(summary))):
        assert same == summary and same.folder == summary.folder
    line: list[str] = []
    summary._repr_pretty_(type("Printer", (), {"text": line.append}), False)
    assert line == [f"{summary.name}: accuracy {summary.accuracy} after 3 rounds, in {summary.folder}"]


class Stop(RunObserver):
    """Presses Ctrl-C after the first round."""

    def on_start(self, run: Run) -> None:
        run.advance = lambda seconds: Run.advance(run)  # round by round

    def on_round(self, run: Run, progress: Any) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    """Kills: a traceback in IPython; an interrupt that no handler of KeyboardInterrupt sees; a sentence without the
    folder, or that sends somebody to one that is not there; other bits after it."""
    whole = fedskew.run(small(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt) as raised:
        fedskew.run(small(), tmp_path / "run", observers=[Stop()])
    sentence = f"interrupted: fedskew.resume('{tmp_path / 'run'}') goes on"
    assert (str(raised.value), raised.value._render_traceback_()) == (sentence, [sentence])  # pyright: ignore
    assert raised.value.__suppress_context__
    assert fedskew.resume(tmp_path / "run").weights_sha256 == whole.weights_sha256
    with pytest.raises(Interrupted, match="interrupted: nothing was computed"), running._interruptible(tmp_path):
        raise KeyboardInterrupt


def test_a_terminal_shows_a_line_and_a_script_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kills: a progress bar in a log file; one that cannot be silenced, or that a terminal lacks."""
    fedskew.run(small(), tmp_path / "script")
    assert capfd.readouterr() == ("", "")
    told = StringIO()
    monkeypatch.setattr(running, "plain_console", lambda **_: Console(file=told, width=160, force_terminal=True))
    fedskew.run(small(), tmp_path / "silent", progress=False)
    assert not told.getvalue()
    summary = fedskew.run(small(), tmp_path / "terminal")
    assert "3/3" in told.getvalue() and f"accuracy {summary.accuracy:.3f}" in told.getvalue()


CELLS = (
    f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
import fedskew
from tests.lab.test_run_line import Stop, small
summary = fedskew.run(small(), "a")
""",
    "fedskew.run(small(), 'b')",
    "summary",
    "_ = fedskew.run(small(), 'c', progress=False)",
    "fedskew.run(small(), 'd', observers=[Stop()])",
    """
from fedskew import Claim, FedAvg, Sweep
from ray import tune

def methods(profile):
    space = {"algorithm": tune.grid_search([FedAvg(), "fedprox"])}
    claim = Claim("equal", "ours", {"algorithm": "fedprox"}, {"algorithm": "fedavg"}, kind="equal", margin=1)
    return Sweep(small(), space, claims=(claim,))
frames = fedskew.sweep(methods, out="sweep")
""",
    """
from fedskew.lab.sweeping import live
live.OnTrial.on_trial_result = lambda *_: os.kill(os.getpid(), signal.SIGINT)
fedskew.sweep(methods, out="stopped", overrides=["rounds=400"])
""",
)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.ray
def test_in_a_notebook(tmp_path: Path) -> None:
    """Kills: a notebook without progress, or that asks for ipywidgets; a table that stands twice; one that cannot be
    silenced; an interrupt of a run or of a sweep with a traceback, or that passes for the end."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")  # of the extra docs
    made = nbformat.v4
    notebook = made.new_notebook(cells=[made.new_code_cell(cell) for cell in CELLS])
    resources, arguments = {"metadata": {"path": str(tmp_path)}}, ["--log-level=ERROR"]
    client = nbclient.NotebookClient(notebook, allow_errors=True, resources=resources, extra_arguments=arguments)
    client.execute()
    run, last, again, silent, stopped, sweep, stopped_sweep = (cell.outputs for cell in notebook.cells)
    texts = partial(map, lambda output: output.get("data", {}).get("text/plain", output.get("text", "")))
    assert [one.output_type for one in run] == ["display_data"] and "<pre" in run[0].data["text/html"]
    assert "run, fedavg" in run[0].data["text/plain"] and "curve" in run[0].data["text/plain"]
    assert [one.output_type for one in last] == ["display_data", "execute_result"]
    assert "text/html" not in last[1].data and "after 3 rounds, in b" in last[1].data["text/plain"]
    assert "curve" in again[0].data["text/html"] and "after 3 rounds, in a" in again[0].data["text/plain"]
    assert silent == []
    assert stopped[-1].traceback == ["interrupted: fedskew.resume('d') goes on"]
    told = "\n".join(texts(sweep))
    assert "2/2" in told and "fedprox" in told and "accuracy over rounds" in told and "ipywidgets" not in told
    assert stopped_sweep[-1].traceback == ["interrupted: the same call resumes it in stopped"]
