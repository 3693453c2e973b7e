"""Speed of this machine, measured in about two seconds: arithmetic, and copies through caches and memory.

Each figure is the median that torch's own timer finds. Arithmetic is measured on one lane and multiplied by their
number: cores share none of it. Copies are measured on all lanes side by side, for they share the memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import benchmark

from engine.base.devices import cores
from engine.experiment import Execution
from fedskew.lab.floor.counts import Speed

SECONDS = 0.4  # of a figure

MATMUL = {"cpu": 1024, "cuda": 8192}  # rows and columns
CONVOLUTION = {"cpu": 16, "cuda": 1024}  # images of 64 channels, 16x16; 5x5 filters
LEAST_COPY = {"cpu": 2**20, "cuda": 2**25}  # bytes: below it is the call that is measured, and not the copy
LARGEST_COPY = {"cpu": 2**27, "cuda": 2**30}  # bytes: beyond caches


def lanes_of(execution: Execution, workers: int) -> int:
    """Trainings that go on side by side on this machine: one for each of the workers with cores of its own, or for each
    card."""
    if execution.device == "cuda":
        cards = math.ceil(execution.actors * execution.gpus_per_actor)
        return max(1, min(cards, torch.cuda.device_count()))
    return max(1, min(workers, cores() // execution.threads))


def measure(execution: Execution, workers: int, dtype: torch.dtype, weights: int, activations: int) -> Speed:
    """Measure the speed that the machine gives a run.

    execution: resolved, with torch set up for it (``worker.set_up_torch``). workers: that train at once.
    weights, activations: bytes that a step goes through, which decide the cache that they stay in.
    """
    device, lanes, threads = torch.device(execution.device), lanes_of(execution, workers), execution.threads
    copies = {
        size: _copy_rate(device, size, lanes, threads)
        for size in {_within(device, weights), _within(device, activations), LARGEST_COPY[device.type]}
    }
    memory = copies[LARGEST_COPY[device.type]]
    return Speed(
        lanes=lanes,
        matmul=lanes * _matmul_rate(device, dtype, threads),
        convolution=lanes * _convolution_rate(device, dtype, threads),
        memory=memory,
        # A small copy on a GPU may be held up by its launch; memory is no faster than a cache.
        weights=max(copies[_within(device, weights)], memory),
        activations=max(copies[_within(device, activations)], memory),
    )


def _within(device: torch.device, size: int) -> int:
    return min(max(size, LEAST_COPY[device.type]), LARGEST_COPY[device.type])


@torch.no_grad()
def _matmul_rate(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """FLOP/s of one lane on square matrices."""
    size = MATMUL[device.type]
    a, b, out = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(3))
    return 2 * size**3 * _calls_per_second(lambda: torch.mm(a, b, out=out), threads)


@torch.no_grad()
def _convolution_rate(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """FLOP/s of one lane; on a CPU another library's kernels than the product's, at times twice as fast."""
    images, channels, side, kernel = CONVOLUTION[device.type], 64, 16, 5

    def ones(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=dtype, device=device).to(memory_format=torch.channels_last)

    x, weight = ones(images, channels, side, side), ones(channels, channels, kernel, kernel)
    flops = 2 * images * side**2 * channels**2 * kernel**2
    return flops * _calls_per_second(lambda: F.conv2d(x, weight, padding="same"), threads)


def _copy_rate(device: torch.device, size: int, lanes: int, threads: int) -> float:
    """Bytes/s read and written by all lanes, each between the halves of ``size`` bytes of its own."""

    def lane(_: int) -> float:
        source, target = (torch.ones(size // 2, dtype=torch.uint8, device=device) for _ in range(2))
        return size * _calls_per_second(lambda: target.copy_(source), threads)

    if device.type == "cuda":  # cards share nothing
        return lanes * lane(0)
    with ThreadPoolExecutor(lanes) as pool:
        return sum(pool.map(lane, range(lanes)))


def _calls_per_second(step: Callable[[], object], threads: int) -> float:
    timer = benchmark.Timer("step()", globals={"step": step}, num_threads=threads)
    return 1 / timer.blocked_autorange(min_run_time=SECONDS).median
