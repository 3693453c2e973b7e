"""TF32 and autocast: where they act, where they do not, and that results say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.pflego import Pflego
from engine.base.errors import ConfigError
from engine.client import precision
from engine.client.steps.flat_net import FlatNet
from engine.experiment import NEUTRAL, Execution, Experiment
from tests.support.tiny import drive, experiment, experiment_of

AUTOCAST = Execution(actors=0, device="cpu", autocast="bfloat16")


def test_it_is_told() -> None:
    """Kills: a result that does not say how it was computed."""
    card = {"actors": 0, "device": "cuda"}
    assert precision.told(Execution()) == "float32"
    assert precision.told(Execution(precision="float64")) == "float64"
    assert precision.told(Execution(**card, tf32=True)) == "float32, TF32"
    assert precision.told(AUTOCAST) == "float32, bfloat16 autocast"
    assert precision.told(Execution(**card, tf32=True, autocast="bfloat16")) == "float32, TF32, bfloat16 autocast"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"tf32": True, "device": "cpu"}, "execution.tf32=True: is arithmetic of a GPU, and execution.device is cpu"),
        ({"tf32": True, "precision": "float64"}, "execution.tf32=True: computes in less than float32"),
        (
            {"autocast": "bfloat16", "precision": "float64"},
            "execution.autocast=bfloat16: computes in less than float32",
        ),
        ({"autocast": "float16"}, "execution.autocast=float16: must be 'none' or 'bfloat16'"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], sentence: str) -> None:
    """Kills: an option that does nothing, and a run that says it was computed with it."""
    with pytest.raises(ConfigError) as error:
        Experiment(execution={"actors": 0, **values})
    assert str(error.value).startswith(sentence)


def test_tf32_is_refused_once_the_device_is_known() -> None:
    """Kills: device=auto as a way around the check."""
    with pytest.raises(ConfigError, match=r"execution\.tf32=True: is arithmetic of a GPU"):
        Experiment(execution={"actors": 2, "gpus_per_actor": 0, "tf32": True}).resolve()
    assert Experiment(execution={"actors": 2, "gpus_per_actor": 0.5, "tf32": True}).resolve().execution.tf32


def test_only_what_is_asked_for_is_in_the_identity() -> None:
    """Kills: digests of all experiments changed by an option nobody took; two results in one folder."""
    plain = Experiment()
    assert not set(NEUTRAL) & set(plain.identity()["execution"])
    asked = [plain.override([f"execution.{change}"]) for change in ("tf32=true", "autocast=bfloat16")]
    assert len({plain.digest, *(one.digest for one in asked)}) == 3
    assert Experiment.from_mapping(asked[1].to_mapping()).digest == asked[1].digest


@pytest.fixture
def _flags() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.usefixtures("_flags")
@pytest.mark.parametrize("asked", [True, False])
def test_tf32_is_set_for_products_and_convolutions(asked: bool) -> None:
    """Kills: one of the two left at torch's default, which is TF32 in convolutions alone."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not asked
    precision.set_up(Execution(actors=0, device="cuda", tf32=asked))
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is asked


def test_a_forward_pass_under_autocast() -> None:
    """Kills: other factors than those rounded to bfloat16, a loss in bfloat16, an autocast that outlives its block or
    keeps old copies of the weights."""
    x, weight = torch.randn(5, 3), torch.randn(4, 3, requires_grad=True)
    with precision.forward(Execution(actors=0, device="cpu")):
        assert torch.equal(F.linear(x, weight), x @ weight.T)
    for _ in range(2):
        with precision.forward(AUTOCAST):
            logits = F.linear(x, weight)
            loss = F.cross_entropy(logits, torch.arange(5) % 4)
        assert torch.equal(logits, F.linear(x.bfloat16(), weight.bfloat16()))
        assert (logits.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
        assert torch.autograd.grad(loss, weight)[0].dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu")
        with torch.no_grad():
            weight.mul_(2)


@pytest.mark.parametrize("kind", [FedAvg, Pflego])  # the second trains on features that are cached
def test_where_it_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[FedAvg]) -> None:
    """Kills: evaluation or a loss outside it; uploads, gradients or the server's arithmetic inside."""
    seen: dict[str, set[bool]] = {}

    def spy(name: str) -> None:
        method = getattr(kind, name)

        def spied(*args: Any, **kwargs: Any) -> Any:
            seen.setdefault(name, set()).add(torch.is_autocast_enabled("cpu"))
            return method(*args, **kwargs)

        monkeypatch.setattr(kind, name, spied)

    inside = ("loss", "predict" if kind is FedAvg else "predict_own")
    outside = ("gradient", "upload", "aggregate", "broadcast", "phases")
    for name in (*inside, *outside):
        spy(name)
    features: list[Tensor] = []
    original = FlatNet.features
    monkeypatch.setattr(FlatNet, "features", lambda net, x: features.append(original(net, x)) or features[-1])
    name = {FedAvg: "fedavg", Pflego: "pflego"}[kind]
    run = drive(tmp_path, experiment_of(name, rounds=1, execution={"autocast": "bfloat16"}))
    assert seen == {**{method: {True} for method in inside}, **{method: {False} for method in outside}}
    assert {tensor.dtype for tensor in features} == ({torch.bfloat16} if kind is Pflego else set())
    assert {tensor.dtype for tensor in run.driver.weights} == {torch.float32}
    assert run.summary["precision"] == "float32, bfloat16 autocast"


def test_a_run_under_autocast(tmp_path: Path) -> None:
    """Kills: an option that is not read; bits that differ from run to run; arithmetic that is far off."""
    execution = {"autocast": "bfloat16"}
    runs = [drive(tmp_path / name, experiment(rounds=2, execution=execution)) for name in ("a", "b")]
    plain = drive(tmp_path / "plain", experiment(rounds=2))
    assert runs[0].sha == runs[1].sha != plain.sha
    moved = plain.driver.weights[0].sub(drive(tmp_path / "one", experiment(rounds=1)).driver.weights[0]).norm()
    assert (runs[0].driver.weights[0] - plain.driver.weights[0]).norm() < 0.1 * moved
    assert plain.summary["precision"] == "float32"


# Second derivatives, derivatives along a direction, networks of other widths, blocks compared, generators, two models.
DEMANDING = ("perfedavg", "fedmix", "fedser", "moon", "cbfl", "ditto", "ccvr")


@pytest.mark.slow
@pytest.mark.parametrize("name", DEMANDING)
def test_methods_that_ask_much_of_a_network(tmp_path: Path, name: str) -> None:
    """On convolutions with BatchNorm. Kills: factors of two precisions in an operation that autocast does not see."""
    exact = name == "fedmix"  # derivatives along a direction are in float32: see jvp.py
    config = experiment_of(name, rounds=1, model={"name": "resnet8"}, local={"epochs": 1})
    plain = drive(tmp_path / "plain", config)
    run = drive(tmp_path / "autocast", config.replace({"execution.autocast": "bfloat16"}))
    assert (run.sha == plain.sha) == exact
    assert run.summary["loss"] != plain.summary["loss"]
    assert run.summary["loss"] == pytest.approx(plain.summary["loss"], abs=0.02)
