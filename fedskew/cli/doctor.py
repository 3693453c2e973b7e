"""A look at the machine before anything runs: ``fedskew doctor``.

Each check is a function that returns findings, one line each. None of them downloads, decodes an image, imports Ray or
starts one; the only connection made is to a Ray that is named by ``RAY_ADDRESS`` or was begun here by ``ray start``.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
import typer
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich.text import Text

import engine
from engine.base.declared import declared
from engine.base.devices import cards, cores, cpu_name, memory
from engine.base.errors import ConfigError, DataError, ResourceError, one_line
from engine.base.writable import check_writable, nearest_existing
from engine.data import SOURCES
from engine.data.sources.finding import cache_folder
from engine.record.numerics import NOTHING, settings
from engine.worker.addresses import answers, check_answers, current_cluster, repair, used
from engine.worker.thread_count import MOST
from fedskew.cli.output import json_wanted, plain_console, print_json
from fedskew.cli.sweep import STORE_GB

RUNS = Path("runs")  # the default place of run folders, sweep folders and scaling studies
GB = 1e9
LITTLE = 1.0  # GB free, below which a folder for runs is too full to be left unsaid
STYLES = {"ok": "green", "warn": "yellow", "wrong": "bold red"}
EXTRA = "search"  # the extra of pyproject.toml that users install
RAY_STORE = 10 * GB  # to which Ray lowers its objects' room by itself where shared memory is small, and no further


@dataclasses.dataclass(frozen=True)
class Finding:
    """A line of the report; ``repair`` is in the text."""

    mark: Literal["ok", "warn", "wrong"]
    name: str
    text: str
    topic: str = ""  # whose check it is of


def doctor_command() -> None:
    """Say what is installed, what a run here would use, which data sets are found, and what is wrong."""
    findings = list(examine())
    wrong = sum(finding.mark == "wrong" for finding in findings)
    if json_wanted():
        print_json({"ok": not wrong, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        _show(findings, wrong)
    raise typer.Exit(1 if wrong else 0)


def _show(findings: Sequence[Finding], wrong: int) -> None:
    out, width = plain_console(), max(len(finding.name) for finding in findings)
    for topic, some in itertools.groupby(findings, lambda finding: finding.topic):
        out.print(topic, style="bold", highlight=False)
        for mark, name, text in ((one.mark, one.name, one.text) for one in some):
            line = Text.assemble("  ", (f"{mark:<5}", STYLES[mark]), f"  {name:<{width}}  {text}")
            out.print(line, soft_wrap=True, highlight=False)
    out.print({0: "nothing is wrong", 1: "one thing is wrong"}.get(wrong, f"{wrong} things are wrong"), highlight=False)


def examine() -> Iterator[Finding]:
    """Yield the findings of all checks; a check that fails is a finding, too."""
    checks: Mapping[str, Callable[[], Sequence[Finding]]] = {
        "installed": check_installed,
        "machine": check_machine,
        "Ray": check_ray,
        "folders": check_folders,
        "data sets": check_data_sets,
    }
    for topic, check in checks.items():
        try:
            found = check()
        except Exception as error:
            found = [Finding("wrong", topic, one_line(f"cannot be checked ({type(error).__name__}: {error})"))]
        yield from (dataclasses.replace(one, topic=topic) for one in found)


# --- what is installed --------------------------------------------------------------------------------------


def check_installed() -> list[Finding]:
    """Check the versions of fedskew, Python and all packages against those that this fedskew is made for."""
    python = metadata.metadata("fedskew")["Requires-Python"] or ""
    needs = [Requirement(text) for text in metadata.requires("fedskew") or ()]
    wanted = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": EXTRA})]
    return [
        Finding("ok", "fedskew", f"{engine.__version__}, in {Path(engine.__file__).parent}"),
        check_version("Python", platform.python_version(), python),
        *(check_version(one.name, installed(one.name), str(one.specifier), one.marker is not None) for one in wanted),
        *check_pair(installed("torch"), installed("torchvision")),
    ]


def check_version(name: str, there: str | None, tested: str, optional: bool = False) -> Finding:
    """Check one version against specifiers such as ``>=2.11,<2.14``; an optional package may be missing."""
    repair = f"pip install '{name}{tested}'"
    if there is None:
        if optional:
            return Finding("ok", name, f"not installed; only the extra {EXTRA!r} needs it: {repair}")
        return Finding("wrong", name, f"is missing; {repair}")
    if not SpecifierSet(tested).contains(there, prereleases=True):
        return Finding("wrong", name, f"{there} is outside of the range {tested}; {repair}")
    return Finding("ok", name, f"{there} ({tested})")


def check_pair(torch_version: str | None, torchvision_version: str | None) -> list[Finding]:
    """Check that torchvision is the one that was built for this torch; nothing is found where it is."""
    if torch_version is None or torchvision_version is None:
        return []
    needs = map(Requirement, metadata.requires("torchvision") or ())
    built_for = next((need.specifier for need in needs if need.name == "torch"), SpecifierSet())
    if built_for.contains(torch_version, prereleases=True):
        return []
    text = f"is built for torch{built_for}, not {torch_version}; install both from the same place, at once"
    return [Finding("wrong", "torchvision", text)]


def installed(name: str) -> str | None:
    """Return the version of an installed package, or None, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# --- what would be used -------------------------------------------------------------------------------------


def check_machine() -> list[Finding]:
    """Check what rounds would be computed on: cores, memory, cards, the processor's vector instructions."""
    there, all_of_them = cores(), os.cpu_count() or 1
    of = "" if there == all_of_them else f" of {all_of_them}"
    return [
        Finding("ok", "cores", f"{there}{of}; up to {min(there, MOST)} workers in one process"),
        Finding("ok", "memory", f"{memory('cpu') / GB:.1f} GB"),
        *check_cards(),
        check_kernels(torch.backends.cpu.get_cpu_capability()),
        check_settings(settings(os.environ)),
    ]


def check_cards(driver: Path = Path("/proc/driver/nvidia/version")) -> list[Finding]:
    """Check the cards that torch can use, and whether there is a driver whose cards it cannot use."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        usable = cards()
    if usable:
        lines = [f"{name}, {size / GB:.1f} GB" for name, size in usable]
        return [*(Finding("ok", f"card {number}", line) for number, line in enumerate(lines)), check_sharing()]
    if not driver.exists():
        return [Finding("ok", "cards", "none; everything is computed on the CPU")]
    reason = one_line(str(given[0].message)) if given else "no card is visible to this process"
    if torch.version.cuda is None:
        reason = "this torch is built without CUDA; install one that has it"
    return [Finding("warn", "cards", f"there is an NVIDIA driver, but torch can use no card: {reason}")]


def check_sharing() -> Finding:
    """Check whether CUDA's Multi-Process Service (MPS) lets the processes of a card compute at the same time."""
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    if os.path.exists(os.path.join(pipes, "control")):  # false, too, where others may not look
        return Finding("ok", "sharing", "MPS is on: actors on one card compute side by side")
    return Finding("ok", "sharing", "MPS is off: actors on one card take turns (nvidia-cuda-mps-control -d starts it)")


def check_kernels(capability: str) -> Finding:
    """Check the instructions that torch has chosen, on which bits depend, and the libraries that it computes with."""
    libraries = {"MKL": torch.backends.mkl.is_available(), "oneDNN": torch.backends.mkldnn.is_available()}
    has = ", ".join(name for name, there in libraries.items() if there) or "neither MKL nor oneDNN"
    text = f"{capability}, with {has}, on {cpu_name()}"
    if capability in ("DEFAULT", "NO AVX"):
        return Finding("warn", "arithmetic", f"{text}; without vector instructions: slow, and other bits")
    return Finding("ok", "arithmetic", f"{text} (bits are those of this capability)")


def check_settings(steering: str) -> Finding:
    """Check whether variables or flags of torch steer the libraries that compute: bits are then of those as well."""
    if steering == NOTHING:
        return Finding("ok", "settings", "no variable or flag steers the libraries that compute")
    return Finding("warn", "settings", f"{steering}: perhaps other bits, and stored rounds of their own")


def check_ray(patience: float = 2.0) -> list[Finding]:
    """Check which Ray a run with actors would use, and that it answers within ``patience`` seconds."""
    address, given = used(None)
    running = current_cluster()
    if not address:
        beside = f"; the one at {running} is used with --address auto" if running and answers(running, patience) else ""
        text = f"a run with actors starts one here, with {cores()} CPUs, on loopback alone{beside}"
        return [Finding("ok", "Ray", text), check_session(), *check_shared_memory()]
    if address == "auto" and running is None:
        return [Finding("wrong", "Ray", f"{given}: no 'ray start' has begun one here; {repair(given)}")]
    try:
        check_answers(address, given, patience)
    except ResourceError as error:
        return [Finding("wrong", "Ray", str(error))]
    return [Finding("ok", "Ray", f"{given} answers; a run with actors uses it")]


def check_session() -> Finding:
    """Check that there is a place for the sockets and files of a Ray begun here, by making its folder for a moment."""
    from engine.worker.ray.session_folder import make

    try:
        folder = make()
    except ResourceError as error:
        return Finding("wrong", "session", str(error))
    folder.remove()
    return Finding("ok", "session", f"Ray's sockets, logs and token go below {folder.path.parent} while it runs")


def check_shared_memory(folder: Path = Path("/dev/shm")) -> list[Finding]:
    """Check that the objects of a Ray begun here fit into shared memory; nothing is found where they do."""
    wanted = min(0.3 * memory("cpu"), RAY_STORE)  # Ray's default share
    if not folder.is_dir() or shutil.disk_usage(folder).total >= wanted:
        return []
    size, instead = shutil.disk_usage(folder).total / GB, tempfile.gettempdir()
    text = f"{folder} has {size:.1f} GB and Ray wants {wanted / GB:.1f}: it takes {instead}, slower"
    return [Finding("warn", "shared memory", f"{text}; in a container set --shm-size")]


# --- where files go -----------------------------------------------------------------------------------------


def check_folders() -> list[Finding]:
    """Check the folders that are written to by default: runs, the store of sweeps, downloads, temporary files."""
    try:
        downloads = check_folder("downloads", cache_folder(), LITTLE)
    except DataError as error:
        downloads = Finding("warn", "downloads", str(error))
    return [
        check_folder("runs", RUNS, LITTLE, locks=True),
        check_folder("store", RUNS / "store", STORE_GB, f"; it may grow to {STORE_GB:g} GB, see --store-limit"),
        downloads,
        check_folder("temporary", Path(tempfile.gettempdir()), LITTLE),
    ]


def check_folder(name: str, folder: Path, least: float, more: str = "", locks: bool = False) -> Finding:
    """Check that ``folder`` can be written, and locked if that is needed, and that ``least`` GB are free."""
    try:
        check_writable(folder, name, locks)
    except ConfigError as error:
        return Finding("wrong", name, f"{folder.absolute()} {error.rule}")
    free = shutil.disk_usage(nearest_existing(folder)).free / GB
    text = f"{folder.absolute()}, {free:.1f} GB free{more}"
    return Finding("ok" if free >= least else "warn", name, text)


# --- data sets ----------------------------------------------------------------------------------------------


def check_data_sets() -> list[Finding]:
    """Check where the files of each data set of ``fedskew list datasets`` lie."""
    return [check_data_set(name, choice) for name, choice in SOURCES.items()]


def check_data_set(name: str, choice: type[Any]) -> Finding:
    """Check one data set; that one is missing is wrong only where it is a part of this package: nobody asked for it."""
    root = declared(choice).get("root")
    if root is not None and root.default is dataclasses.MISSING:
        return Finding("ok", name, "your own images: give their folder as data.root")
    try:
        folder = choice().folder()
    except DataError as error:
        if choice.downloads:
            return Finding("ok", name, "not here yet; the first run downloads it (offline: data.name=parquet)")
        return Finding("wrong" if root is None else "ok", name, str(error))
    except OSError as error:
        return Finding("wrong", name, one_line(f"cannot be looked for ({error})"))
    return Finding("ok", name, "drawn, without files" if folder is None else str(folder))
