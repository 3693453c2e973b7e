"""Fixtures for any test: a Ray session, a sweep with its report, the command line, the warnings of the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from engine.data import Dataset
from engine.data.sources.mnist import FashionMnistSample
from engine.models import MODELS
from engine.run.log import Messages
from fedskew.lab.drawing import Drawing
from tests.support import own_prox
from tests.support.canaries import one_canary
from tests.support.command_line import fedskew
from tests.support.tiny import TinyNorm


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local cluster with room for four actors and two GPUs that exist by name only; each test process has its own."""
    import ray

    ray.init(
        address="local",
        num_cpus=8,
        num_gpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=256 * 2**20,
    )
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def _nothing_drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process draw no pictures, which takes longer than a small run, and reports no PDFs, which is half of
    what a report takes; but for tests marked ``pictures``."""
    if "pictures" not in request.keywords:
        monkeypatch.setattr("fedskew.lab.run_pictures.RunPictures.on_end", lambda *_: None)
        monkeypatch.setattr("fedskew.lab.drawing.Drawing.pdf", b"%PDF not drawn")


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of reports are made and not painted, for tests of what a report reads: painting is most of its time."""

    monkeypatch.setattr(Drawing, "png", b"")


@pytest.fixture(scope="session", autouse=True)
def _read_once() -> Iterator[None]:
    """The images that ship with fedskew are decoded once in a test process; nobody can write to them."""
    read = FashionMnistSample.read

    @cache
    def once(source: FashionMnistSample) -> Dataset:
        found = read(source)
        for split in (found.train, found.test):
            for array in (split.images, split.labels):
                array.flags.writeable = False
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FashionMnistSample, "read", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_canary() -> Iterator[None]:
    """A run names its machine by the results of some operations: they are computed once in a test process."""
    with one_canary():
        yield


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 trials, one of which failed, with their report; written once, for all tests that only read."""
    from fedskew.lab.report import write
    from tests.support.report_pages import ATTACK, CLAIMS, FAILED, TABLE
    from tests.support.sweep_folders import make_sweep

    folder = make_sweep(
        tmp_path_factory.mktemp("sweeps") / "one",
        rounds=6,
        failed=[FAILED],
        title=f"FedProx {ATTACK} & $\\mu$",
        claims=CLAIMS,
        tables=[TABLE],
        client_rows=False,
    )
    write(folder)
    return folder


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """``call(*words)`` is ``fedskew`` in the test's folder, on a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return lambda *words: fedskew(monkeypatch, capsys, *words)


@pytest.fixture
def tiny_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with BatchNorm that takes no time, for runs in this process."""
    monkeypatch.setitem(MODELS, "tiny_norm", TinyNorm)


@pytest.fixture
def messages() -> Iterator[Messages]:
    """The warnings of the engine during a test."""
    log = logging.getLogger("fedskew")
    handler = Messages()
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


@pytest.fixture(autouse=True)
def own_parts() -> Iterator[None]:
    """Whatever own parts and own files a test brings are gone after it."""
    with own_prox.forgotten():
        yield
