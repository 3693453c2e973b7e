"""BatchNorm of several clients in one kernel is each client's own: values, statistics and gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from engine.client.vmap.vmap_rules import StackedRules

CLIENTS, ROWS, CHANNELS = 3, 4, 5
NAMES = ("x", "running_mean", "running_var", "weight", "bias")


Given = Mapping[str, Tensor | None]


def tensors(shape: tuple[int, ...] = (6, 6)) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    sizes = {"x": (CLIENTS, ROWS, CHANNELS, *shape), **dict.fromkeys(NAMES[1:], (CLIENTS, CHANNELS))}
    made = {name: torch.randn(*size, generator=rng, dtype=torch.float64) for name, size in sizes.items()}
    return {**made, "running_var": made["running_var"].abs() + 0.1}


def alone(given: Given, shared: tuple[str, ...], training: bool) -> list[Tensor]:
    """Each client's, by torch's own function on its tensors."""
    outs = []
    for client in range(CLIENTS):
        own = [None if t is None else t if name in shared else t[client] for name, t in given.items()]
        outs.append(F.batch_norm(*own, training, 0.3, 1e-3))  # type: ignore[arg-type]
    return outs


def together(given: Given, shared: tuple[str, ...], training: bool) -> Tensor:
    dims = tuple(None if t is None or name in shared else 0 for name, t in given.items())
    with StackedRules():
        return vmap(lambda *own: F.batch_norm(*own, training, 0.3, 1e-3), dims)(*given.values())


CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], bool]] = {
    "training": ({}, (), True),
    "eval": ({}, (), False),
    "a frozen teacher for all": ({}, NAMES[1:], False),
    "one batch for all": ({}, ("x",), True),
    "one scale for all": ({}, ("weight", "bias"), True),
    "own statistics alone": ({}, ("x", "weight", "bias"), False),
    "no scale": ({"weight": None, "bias": None}, (), True),
    "no statistics": ({"running_mean": None, "running_var": None}, (), True),
    "a frozen scale for all": ({"running_mean": None, "running_var": None}, ("weight", "bias"), True),
}


@pytest.mark.parametrize("shape", [(), (6, 6)], ids=["1d", "2d"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_each_clients_own(case: str, shape: tuple[int, ...]) -> None:
    """Kills: another client's scale or statistics, statistics of all rows together, one that does not move or moves in
    eval mode, a gradient that misses a term."""
    changes, shared, training = CASES[case]
    given: dict[str, Any] = {**tensors(shape), **changes}
    given = {name: t[0] if t is not None and name in shared else t for name, t in given.items()}
    found = []
    for way in (together, alone):
        own = {name: None if t is None else t.clone() for name, t in given.items()}
        leaves = [own[name].requires_grad_() for name in ("x", "weight", "bias") if own[name] is not None]
        outs = way(own, shared, training)
        out = outs if isinstance(outs, Tensor) else torch.stack(outs)
        slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
        grads = torch.autograd.grad((out * slope).sum(), leaves)
        found.append([out, *grads, *(t for t in (own["running_mean"], own["running_var"]) if t is not None)])
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)


def test_statistics_within_a_longer_vector_move_too() -> None:
    """Kills: statistics that are joined by a copy, and move in the copy alone."""
    given, wanted = tensors(), tensors()
    buffers = torch.cat((given["running_mean"], given["running_var"]), 1)  # [K, 2 C], as entries hold them
    own = {**given, "running_mean": buffers[:, :CHANNELS], "running_var": buffers[:, CHANNELS:]}
    assert torch.equal(together(own, (), True), torch.stack(alone(wanted, (), True)))
    assert torch.equal(buffers, torch.cat((wanted["running_mean"], wanted["running_var"]), 1))


def test_statistics_of_nobodys_own_cannot_move() -> None:
    """Kills: statistics that all clients share and each one moves, or that stay behind without a word."""
    given = tensors()
    given["running_mean"], given["running_var"] = given["running_mean"][0], given["running_var"][0]
    with pytest.raises((RuntimeError, ValueError), match="running_mean"):
        together(given, ("running_mean", "running_var"), True)


def test_it_is_one_kernel_and_no_copy() -> None:
    """Kills: scale and shift that are applied around the kernel; activations that are copied to be joined."""
    counted: Counter[str] = Counter()

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not func.is_view:
                counted[func._schema.name.removeprefix("aten::")] += 1
            return func(*args, **(kwargs or {}))

    given = tensors()
    kernels = torch.ones(CLIENTS, CHANNELS, CHANNELS, 3, 3, dtype=torch.float64, requires_grad=True)
    dims = (0,) * 6

    def layer(kernel: Tensor, *own: Tensor) -> Tensor:
        x, *norm = own
        return F.batch_norm(torch.conv2d(x, kernel), *norm, True)  # type: ignore[arg-type]

    with Counts(), StackedRules():
        out = vmap(layer, dims)(kernels, *given.values())
        torch.autograd.grad(out.sum(), kernels)
    of_norm = {name: number for name, number in counted.items() if "conv" not in name and name != "empty"}
    assert of_norm.pop("native_batch_norm") == of_norm.pop("native_batch_norm_backward") == 1
    assert not of_norm.keys() & {"mul", "add", "addcmul", "mul_", "add_"}, of_norm


def test_outside_of_vmap_it_is_torchs() -> None:
    """Kills: a rule that takes every tensor for several clients'."""
    given = {name: tensor[0] for name, tensor in tensors().items()}
    with StackedRules():
        assert torch.equal(F.batch_norm(*given.values(), True), F.batch_norm(*given.values(), True))  # type: ignore
