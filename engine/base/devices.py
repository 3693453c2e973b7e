"""The machine that this process computes on, by name and by size: for schedules and checks, not for bits."""

from __future__ import annotations

import math
import os
import platform
import resource
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

CONTROL_GROUP, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@cache
def device_class(device: str) -> str:
    """Return the name of the GPU, or of the CPU: processes of one class are taken to be equally fast."""
    return torch.cuda.get_device_name() if device == "cuda" else cpu_name()


def cores() -> int:
    """Return the number of cores that this process may use, by its affinity and by its container's share of time."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = _of_container("cpu.max")  # microseconds of time, of how many each
    return min([there, *(math.ceil(limit[0] / limit[1]) for limit in limits if len(limit) == 2)])


def cpu_name() -> str:
    """Return the processor's name: Linux's, and elsewhere what Python knows."""
    return first_cpu().get("model name") or platform.processor() or platform.machine()


def first_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return what Linux tells of the first CPU, by name; {} elsewhere."""
    try:
        first, _, _ = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


def memory(device: str) -> int:
    """Return the bytes of memory of this process's card, or of the machine, of which a container may have a part."""
    if device == "cuda":
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit[0] for limit in _of_container("memory.max") if limit)])


def _of_container(limit: str) -> Iterator[list[int]]:
    """Yield the numbers of a limit, of this process's control group (version 2) and of each one above it.

    Where there is no limit, some or all numbers are missing.
    """
    for group in (own := CONTROL_GROUP / _own_group(), *own.parents):
        if group.is_relative_to(CONTROL_GROUP):
            with suppress(OSError):
                yield [int(one) for one in (group / limit).read_text(encoding="ascii").split() if one != "max"]


def _own_group() -> str:
    """Return the path of this process's control group below their folder; "" where that is the container's root."""
    with suppress(OSError):
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
        return next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    return ""


def cards() -> list[tuple[str, int]]:
    """Return the name and the bytes of memory of each GPU that torch can use."""
    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [(card.name, card.total_memory) for card in found]


def resident() -> tuple[int, int]:
    """Return the bytes of this process in memory now, with what it shares with others, and without that.

    Elsewhere than on Linux both are :func:`most_resident`.
    """
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:
        return most_resident(), most_resident()
    page, all_pages, shared = os.sysconf("SC_PAGE_SIZE"), int(pages[1]), int(pages[2])
    return page * all_pages, page * (all_pages - shared)


def most_resident() -> int:
    """Return the most bytes that this process ever had in memory."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if platform.system() == "Darwin" else most * 1024
