"""The weight gradient of a grouped convolution with many small groups, one for each client, beside cuDNN's.

    python -m benchmarks.weight_gradient --results FOLDER     # microseconds on ResNet20's layers, into gpu.json

No executor uses it: it is what a step of stacked clients could gain. Needs Triton, and a GPU to be timed.
"""
# pyright: reportGeneralTypeIssues=false
# ruff: noqa: RUF005  # Triton takes no starred expressions

import argparse
import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import RESULTS, load, save

WARPS = 1024  # wanted at once; a constant, so that the order of the sums is the same on any card
CLIENTS, BATCH = 10, 50
LAYERS = {  # input and output channels of a client, side, kernel, stride, padding
    "3x3 16->16 32x32": (16, 16, 32, 3, 1, 1),
    "3x3 32->32 16x16": (32, 32, 16, 3, 1, 1),
    "3x3 64->64 8x8": (64, 64, 8, 3, 1, 1),
    "3x3 3->16 32x32": (3, 16, 32, 3, 1, 1),
    "3x3/2 16->32 32x32": (16, 32, 32, 3, 2, 1),
    "3x3/2 32->64 16x16": (32, 64, 16, 3, 2, 1),
    "1x1/2 16->32 32x32": (16, 32, 32, 1, 2, 0),
    "1x1/2 32->64 16x16": (32, 64, 16, 1, 2, 0),
}
Layer = tuple[int, int, int, int, int, int]


@functools.cache
def _kernel() -> Any:
    """The Triton kernel; Triton is imported at the first launch."""
    global triton, tl  # Triton's interpreter looks them up among the globals of this file
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit(do_not_specialize=["H", "W", "HO", "WO", "columns", "rows", "row_units", "units", "split_size"])
    def weight_gradient(
        dy, x, out, H, W, HO, WO, sdb, sdc, sdh, sdw, sxb, sxc, sxh, sxw,
        columns, rows, row_units, units, split_size,
        CI: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
        SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
        BC: tl.constexpr, BO: tl.constexpr, KJ: tl.constexpr, P: tl.constexpr,
    ):  # fmt: skip
        # A column is one (image, output column) pair. A unit is P columns by `rows` output rows,
        # walked downwards. Kernel row i = d * SH + e pairs row t - d of dy with row
        # t * SH + e - PH of x: step t loads one row of dy and up to SH rows of x, each KJ times
        # shifted, and keeps the last D rows of dy.
        D: tl.constexpr = (KH + SH - 1) // SH
        JT: tl.constexpr = KW // KJ
        CT: tl.constexpr = (CI + BC - 1) // BC
        OT: tl.constexpr = (CO + BO - 1) // BO
        tile, split = tl.program_id(0), tl.program_id(1)
        j0 = tile % JT * KJ
        c = tile // JT % CT * BC + tl.arange(0, BC)
        o = tile // (JT * CT) % OT * BO + tl.arange(0, BO)
        group = tile // (JT * CT * OT)
        sums = ()
        for _ in tl.static_range(KH * KJ):
            sums = sums + (tl.zeros((BO, BC), tl.float32),)
        for unit in range(split, units, tl.num_programs(1)):
            q = unit // row_units * P + tl.arange(0, P)
            first = unit % row_units * rows
            last = tl.minimum(first + rows, HO)
            image, w = (q // WO).to(tl.int64), q % WO
            dy_at = dy + (image * sdb + w * sdw)[:, None] + ((group * CO + o) * sdc)[None, :]
            x_at = x + (image * sxb)[:, None] + ((group * CI + c) * sxc)[None, :]
            window = ()
            for _ in tl.static_range(D):
                window = window + (tl.zeros((P, BO), dy.dtype.element_ty),)
            for t in range(first, last + D - 1):
                kept = ()
                for d in tl.static_range(D - 1):
                    # Always true: a row handed on unchanged would keep Triton from overlapping
                    # the loads of a step with the products of the steps before.
                    kept = kept + (tl.where(t < HO + D, window[d], 0.0),)
                live = (q < tl.where(t < last, columns, 0))[:, None] & (o < CO)[None, :]
                window = (tl.load(dy_at + t * sdh, live, 0.0),) + kept
                taps = ()
                for e in tl.static_range(SH):
                    if e < KH:
                        row = t * SH + e - PH
                        end = tl.where((row >= 0) & (row < H), columns, 0)
                        for j in tl.static_range(KJ):
                            col = w * SW + j0 + j - PW
                            live = ((q < end) & (col >= 0) & (col < W))[:, None] & (c < CI)[None, :]
                            place = x_at + (col * sxw)[:, None] + row * sxh
                            taps = taps + (tl.load(place, live, 0.0),)
                added = ()
                for e in tl.static_range(SH):
                    for j in tl.static_range(KJ):
                        for d in tl.static_range(D):
                            if d * SH + e < KH:
                                a, b = tl.trans(window[d]), taps[e * KJ + j]
                                s = tl.dot(a, b, sums[len(added)], input_precision="tf32")
                                added = added + (s,)
                sums = added
        at = out + split.to(tl.int64) * split_size
        at += ((group * CO + o) * (KH * KW * CI))[:, None] + c[None, :]
        live = (o < CO)[:, None] & (c < CI)[None, :]
        for e in tl.static_range(SH):
            for j in tl.static_range(KJ):
                for d in tl.static_range(D):
                    if d * SH + e < KH:
                        tl.store(at + ((d * SH + e) * KW + j0 + j) * CI, sums[0], live)  # pyright: ignore[reportGeneralTypeIssues]
                        sums = sums[1:]

    return weight_gradient


def launch_plan(
    outputs: int, inputs: int, kernel: Sequence[int], columns: int, height: int, groups: int, warps: int = WARPS
) -> dict[str, int]:
    """Tiles and splits of one launch, from the sizes alone. outputs, inputs: channels of a group."""
    plan = {"BO": 16 if outputs <= 16 else 32, "BC": 16 if inputs <= 16 else 32, "num_stages": 3}
    plan["KJ"] = kernel[1] if kernel[0] * kernel[1] <= 9 else 1
    parts = plan["BO"] * plan["BC"] // 256  # a warp holds 16 x 16 sums of each tap
    plan |= {"P": 32 if parts == 1 else 16, "num_warps": max(1, parts)}
    tiles = groups * -(-outputs // plan["BO"]) * -(-inputs // plan["BC"]) * (kernel[1] // plan["KJ"])
    most = max(1, warps // (tiles * plan["num_warps"]))
    blocks = -(-columns // plan["P"])
    rows = -(-height // max(1, min(most // blocks, height // 8)))
    row_units = -(-height // rows)
    units = blocks * row_units
    splits = -(-units // -(-units // min(units, most)))
    return {**plan, "tiles": tiles, "splits": splits, "units": units, "rows": rows, "row_units": row_units}


def partial_sums(
    dy: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
    warps: int = WARPS,
) -> Tensor:
    """The gradient's parts, float32 [splits, groups * O, kh, kw, C]."""
    (batch, width, out_height, out_width), (channels, height, side) = dy.shape, x.shape[1:]
    outputs, inputs = width // groups, channels // groups
    plan = launch_plan(outputs, inputs, kernel, batch * out_width, out_height, groups, warps)
    grid = plan.pop("tiles"), plan.pop("splits")
    sizes = height, side, out_height, out_width
    parts = torch.empty((grid[1], width, *kernel, inputs), dtype=torch.float32, device=x.device)
    if x.device.type == "cpu":
        parts.fill_(torch.nan)  # what no program writes shows
    constants = {"CI": inputs, "CO": outputs, "KH": kernel[0], "KW": kernel[1]}
    constants |= {"SH": stride[0], "SW": stride[1], "PH": padding[0], "PW": padding[1]}
    own = {"columns": batch * out_width, "split_size": parts[0].numel()}
    _kernel()[grid](dy, x, parts, *sizes, *dy.stride(), *x.stride(), **own, **constants, **plan)
    return parts


@torch.library.custom_op(
    "fedskew::stacked_weight_gradient",
    mutates_args=(),
    device_types=("cpu", "cuda"),
    tags=(torch.Tag.flexible_layout,),
)
def stacked_weight_gradient(
    dy: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], groups: int
) -> Tensor:
    """dL/dW [groups * O, C, kh, kw] of y = conv2d(x, W, stride, padding, groups=groups), in x's dtype, contiguous.

    x [B, groups * C, H, W] and dy [B, groups * O, H', W'] are float32 (multiplied as TF32) or bfloat16, of any
    strides, fastest with adjacent channels; sums are float32, in a fixed order. Tensors of the CPU need
    TRITON_INTERPRET=1.
    """
    total = partial_sums(dy, x, kernel, stride, padding, groups).sum(0).permute(0, 3, 1, 2)
    return x.new_empty(total.shape).copy_(total)


@stacked_weight_gradient.register_fake
def _(
    dy: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], groups: int
) -> Tensor:
    return x.new_empty((dy.shape[1], x.shape[1] // groups, *kernel))


# --- beside cuDNN -------------------------------------------------------------------------------------


def exact(dy: Tensor, x: Tensor, layer: Layer) -> Tensor:
    """The gradient in float64 by plain products, one for each tap."""
    inputs, outputs, side, k, stride, padding = layer
    n = dy.shape[2]
    wide = torch.nn.functional.pad(x.double(), [padding] * 4).reshape(BATCH, CLIENTS, inputs, side + 2 * padding, -1)
    dy = dy.double().reshape(BATCH, CLIENTS, outputs, n * n).permute(1, 2, 0, 3).reshape(CLIENTS, outputs, -1)
    found = dy.new_empty(CLIENTS, outputs, inputs, k, k)
    for i, j in itertools.product(range(k), range(k)):
        tap = wide[..., i : i + stride * (n - 1) + 1 : stride, j : j + stride * (n - 1) + 1 : stride]
        tap = tap.reshape(BATCH, CLIENTS, inputs, n * n).permute(1, 0, 3, 2).reshape(CLIENTS, -1, inputs)
        found[..., i, j] = dy @ tap
    return found.reshape(CLIENTS * outputs, inputs, k, k)


def microseconds(call: Callable[[], Any], calls: int = 20, replays: int = 5) -> float:
    """Of a call: the median over replays of a CUDA graph of ``calls`` calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    times = list[float]()
    for _ in range(1 + replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / calls * 1000)
    return statistics.median(times[1:])


class Case:
    """One layer's inputs on the card, channels-last."""

    def __init__(self, layer: Layer, dtype: torch.dtype) -> None:
        inputs, outputs, side, k, stride, padding = self.layer = layer
        out = (side + 2 * padding - k) // stride + 1
        shapes = (
            (BATCH, CLIENTS * outputs, out, out),
            (BATCH, CLIENTS * inputs, side, side),
            (CLIENTS * outputs, inputs, k, k),
        )
        self.dy, self.x, self.weight = (
            torch.randn(shape, device="cuda").to(dtype=dtype, memory_format=torch.channels_last) for shape in shapes
        )
        self.geometry = (k, k), (stride, stride), (padding, padding), CLIENTS

    def own(self) -> Tensor:
        return stacked_weight_gradient(self.dy, self.x, *self.geometry)

    def cudnn(self) -> Tensor:
        _, stride, padding, groups = self.geometry
        options = (None, stride, padding, (1, 1), False, (0, 0), groups, (False, True, False))
        return torch.ops.aten.convolution_backward(self.dy, self.x, self.weight, *options)[1]

    def measured(self) -> dict[str, Any]:
        want = exact(self.dy, self.x, self.layer)
        own = self.own()
        return {
            "microseconds": microseconds(self.own),
            "kernel": microseconds(lambda: partial_sums(self.dy, self.x, *self.geometry)),
            "cudnn": microseconds(self.cudnn),
            "error": float((own.double() - want).norm() / want.norm()),
            "cudnn_error": float((self.cudnn().double() - want).norm() / want.norm()),
            "same_bits": torch.equal(own, self.own()),
        }


def parts() -> Iterator[dict[str, Any]]:
    """Compile all launches; then microseconds of each layer, of ours, of its kernel alone and of cuDNN's, and
    relative errors against float64."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    precisions = {"tf32": torch.float32, "bfloat16": torch.bfloat16}
    cases = {
        f"{name}, {key}": Case(layer, dtype) for key, dtype in precisions.items() for name, layer in LAYERS.items()
    }
    for case in cases.values():
        case.own()
        case.cudnn()
    yield {}
    yield {name: case.measured() for name, case in cases.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of gpu.json")
    folder = parser.parse_args().results
    *_, found = parts()
    save("gpu", {**load("gpu", folder), "weight_gradient": found}, folder)
    for name, values in found.items():
        print(f"{name:28s} {values['microseconds']:7.1f} us, cuDNN {values['cudnn']:7.1f}, error {values['error']:.1e}")


if __name__ == "__main__":
    main()
