"""The stacked weight gradient against aten's in float64, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.gpu import isolated
from benchmarks.weight_gradient import launch_plan, partial_sums, stacked_weight_gradient

SHAPES = {  # groups, batch, C, O, H, W; kernel, stride, padding
    "16 channels": ((2, 2, 16, 16, 6, 6), (3, 3), (1, 1), (1, 1)),
    "several tiles": ((2, 1, 33, 70, 4, 4), (3, 3), (1, 1), (1, 1)),
    "stem": ((3, 2, 3, 16, 6, 6), (3, 3), (1, 1), (1, 1)),
    "rows in parts": ((1, 2, 16, 16, 37, 5), (3, 3), (1, 1), (1, 1)),
    "odd": ((1, 3, 5, 7, 9, 7), (3, 3), (1, 1), (0, 2)),
    "strides": ((2, 2, 16, 32, 9, 8), (3, 3), (2, 1), (1, 1)),
    "one tap": ((3, 2, 16, 32, 9, 8), (1, 1), (2, 2), (0, 0)),
    "5 x 3": ((2, 1, 4, 20, 9, 8), (5, 3), (2, 1), (2, 1)),
}
SEVERAL_UNITS = ((2, 5, 20, 24, 10, 9), (3, 3), (1, 1), (1, 1))  # for two programs, with warps=16
Pair = tuple[int, int]


def drawn(sizes: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor, Tensor]:
    """dy, x, and what aten makes of them."""
    groups, batch, inputs, outputs, height, width = sizes
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, groups * inputs, height, width, generator=generator)
    weight = torch.zeros(groups * outputs, inputs, *kernel)
    y = torch.nn.functional.conv2d(x, weight, None, stride, padding, 1, groups)
    dy = torch.randn(y.shape, generator=generator)
    given = (dy.double(), x.double(), weight.double(), None, stride, padding, (1, 1), False, (0, 0), groups)
    return dy, x, torch.ops.aten.convolution_backward(*given, (False, True, False))[1]


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


def computed() -> dict[str, tuple[float, bool]]:
    """Of each shape and layout: the error, and whether the output is laid out as the compiler is told."""
    found: dict[str, tuple[float, bool]] = {}
    for name, (sizes, *geometry) in SHAPES.items():
        dy, x, want = drawn(sizes, *geometry)
        fake = stacked_weight_gradient(dy.to("meta"), x.to("meta"), *geometry, sizes[0])
        for layout in (torch.contiguous_format, torch.channels_last):
            got = stacked_weight_gradient(dy, x.to(memory_format=layout), *geometry, sizes[0])
            told = (got.shape, got.stride()) == (want.shape, fake.stride()) and got.is_contiguous()
            found[f"{name}, {layout}"] = error(got, want), told
    sizes, *geometry = SEVERAL_UNITS
    dy, x, want = drawn(sizes, *geometry)
    parts = partial_sums(dy, x, *geometry, sizes[0], warps=16)
    found["several units"] = error(parts.sum(0).permute(0, 3, 1, 2), want), True
    return found


@pytest.mark.long
def test_it_is_atens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a tap, a row or a tile that is left out, a stride that is assumed from the shape; sums that begin anew
    with each unit; an output that no view can be taken of, or that the compiler is told another layout of.

    In a process of its own, since Triton is imported either to interpret or to compile.
    """
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = isolated(300.0, computed)
    assert "failed" not in found and len(found) == 2 * len(SHAPES) + 1
    assert not {name: one for name, one in found.items() if not (one[0] < 2e-3 and one[1])}


def test_the_plans_of_resnet20s_layers() -> None:
    """Kills: a launch that leaves most of a card idle."""
    plan = launch_plan(24, 20, (3, 3), 5 * 9, 10, 2, warps=16)  # of SEVERAL_UNITS
    assert (plan["units"], plan["splits"]) == (3, 2)
    keys = ("tiles", "splits", "units", "rows", "row_units")
    plans = [launch_plan(n, n, (3, 3), 50 * side, side, 10) for n, side in ((16, 32), (32, 16), (64, 8))]
    assert [tuple(plan[key] for key in keys) for plan in plans] == [
        (10, 100, 100, 16, 2),
        (10, 25, 50, 16, 1),
        (40, 5, 25, 8, 1),
    ]
