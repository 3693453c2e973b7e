"""Runs and sweeps for scripts and notebooks, and going on with either by its folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from engine.base.errors import nearest, require
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore
from engine.run import run as engine_run
from engine.run.run import RunObserver
from fedskew.lab.run_line import RunLine, summary_table
from fedskew.lab.run_pictures import RunPictures
from fedskew.lab.shown import Shown, cell, plain_console
from fedskew.trackers.tracking import OnRound, parsed, tracked

if TYPE_CHECKING:
    from engine.results.frames import Frames
    from engine.sweeps.definition import Sweep
    from engine.sweeps.named import NamedSweep
    from engine.sweeps.options import How

log = logging.getLogger("fedskew")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or a notebook's stop button, in one sentence that says how to go on."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback."""
        return [str(self)]


class Summary(dict[str, Any]):
    """What a run came to: a dictionary, as ``summary.json`` holds it, with its keys as attributes as well.

    docs/metrics.md says what each figure is. A notebook shows it as a table, with the curve of the accuracy.
    """

    name: str
    algorithm: dict[str, Any]
    accuracy: float | None  # of the last evaluation; a fraction of the test set
    loss: float | None
    best_accuracy: float | None
    last10_accuracy: float | None
    rounds: int
    weights_sha256: str
    folder: Path  # of the run; no key

    def __init__(self, values: Mapping[str, Any], folder: Path) -> None:
        super().__init__(values)
        self.folder = folder
        self.shown_in: int | None = None  # the cell that shows the table already

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"a summary has no {name!r}; {nearest(name, self)}", name=name, obj=self)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def __rich__(self) -> Table:
        return summary_table(self, RunFolder(self.folder))

    def _repr_html_(self) -> str | None:
        """Return the table for a notebook; None where it stands above already, in the cell that runs."""
        if self.shown_in is not None and self.shown_in == cell():
            return None
        return self.__rich__()._repr_mimebundle_([], [])["text/html"]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"{self.name}: accuracy {self.accuracy} after {self.rounds} rounds, in {self.folder}")


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
    """Say of an interrupt how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        how = f"the same call resumes it in {folder}" if (folder / "sweep.yaml").exists() else "nothing was computed"
        how = f"fedskew.resume({str(folder)!r}) goes on" if (folder / "experiment.yaml").exists() else how
        raise Interrupted(f"interrupted: {how}") from None


def _console(progress: bool) -> Console | None:
    """Return where progress is shown: a notebook's cell or a terminal, if there is one and it is wanted."""
    console = plain_console(stderr=True)
    return console if progress and (console.is_jupyter or console.is_terminal) else None


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    address: str | None = None,
    store: StageStore | None = None,
    overwrite: bool = False,
    track: str | Sequence[str] = (),
    observers: Sequence[RunObserver] = (),
    progress: bool = True,
) -> Summary:
    """Run to the end, draw the run's pictures and return the summary. After an error the folder holds what was done.

    An unfinished run of the same experiment in the folder is continued. ``track``: a tracker that follows it, such as
    ``"mlflow:http://127.0.0.1:5000"``, or several; see docs/trackers.md. ``observers``: told of its start, its rounds
    and its end. ``progress``: show a line meanwhile, on a terminal or in a notebook, and there a table at the end.
    """
    targets = parsed(track, "track")
    path = RunFolder.for_experiment(experiment.resolve(), Path(out) if out else None).path
    shown = Shown(_console(progress))
    with _interruptible(path), tracked(targets, path, log.log) as look, shown:
        shown.show("data, Ray and actors")
        told = (*observers, RunLine(shown), RunPictures(), OnRound(look))
        summary = Summary(engine_run.run(experiment, out, address, store, overwrite, told), path)
    if shown.in_notebook:
        shown.show(summary.__rich__())
        summary.shown_in = cell()
    return summary


def sweep(
    function: Callable[[str], Sweep],
    profile: str = "laptop",
    out: Path | str | None = None,
    overrides: Iterable[str] = (),
    address: str | None = None,
    how: How | None = None,
    track: str | Sequence[str] = (),
    progress: bool = True,
) -> Frames:
    """Run every trial of the sweep that ``function(profile)`` returns, and read what they came to as tables.

    Trials that have ended in its folder (``out``; by default ``runs/<name>-<profile>-<hash>``) are kept: after a crash
    call it again. ``track``: a tracker that follows it, such as ``"mlflow:http://127.0.0.1:5000"``, or
    several; see docs/trackers.md. ``progress``: show the trials meanwhile, on a terminal or in a notebook, and there a
    table of the settings at the end. Raises :class:`FedskewError` for what can be refused before anything starts.
    """
    from engine.sweeps.folder import SweepFolder
    from engine.sweeps.named import named
    from engine.sweeps.options import How  # with Ray Tune

    require(callable(function), "function", function, "is no function", "give one that returns a Sweep")
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    reference = f"{Path(file).resolve() if file else 'notebook.py'}:{function.__name__}"
    begun = named(reference, function, profile, overrides)
    folder = SweepFolder.for_sweep(begun, Path(out) if out else None).path
    return _sweep(begun, folder, how or How(), address, track, progress)


def _sweep(
    begun: NamedSweep,
    folder: Path,
    how: How,
    address: str | None,
    track: str | Sequence[str],
    progress: bool,
) -> Frames:
    """Run a sweep in its folder, with seeds until each claim is decided if it asks for them."""
    from engine.results.frames import load_results
    from fedskew.lab.sweeping.deciding import run_until_decided
    from fedskew.lab.sweeping.live import OnTrial, on_terminal, settings_table
    from fedskew.lab.sweeping.measuring import run_and_measure  # with Ray Tune

    console = _console(progress)
    with _interruptible(folder), tracked(parsed(track, "track"), folder, log.log) as look:
        observers = on_terminal(console, look) if console else [OnTrial(look)]
        if begun.most is None:
            result = run_and_measure(begun, folder, how, address, observers)
        else:
            result = run_until_decided(begun, folder, how, address, observers)[1]
        if result.interrupted:  # Ray Tune takes the signal, and ends as if nothing had been
            raise KeyboardInterrupt
    frames = load_results(folder)
    if console is not None and console.is_jupyter:
        console.print(settings_table(frames.results))
    return frames


def resume(
    folder: Path | str, address: str | None = None, track: str | Sequence[str] = (), progress: bool = True
) -> Any:
    """Go on with a run and return its summary, or with a sweep and return its :class:`Frames`.

    ``track``: a tracker that follows it, such as ``"mlflow:http://127.0.0.1:5000"``, or several; see docs/trackers.md.
    ``progress``: as in :func:`fedskew.run`.

    A sweep that was begun with ``--until-decided`` is given further seeds, as by ``fedskew resume``, until each claim
    is decided or the largest number of seeds has run. To go on with a sweep of your own file, call
    :func:`fedskew.sweep` with its function again.
    """
    folder = Path(folder)
    if (folder / "sweep.yaml").exists():
        from engine.sweeps.running import reopened  # with Ray Tune
        from tune_configs import SWEEPS

        begun, how = reopened(folder, SWEEPS)
        return _sweep(begun, folder, how, address, track, progress)
    return run(RunFolder(folder).experiment(), folder, address, track=track, progress=progress)
