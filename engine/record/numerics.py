"""The machine's, the libraries' and the code's share in a result's bits.

A run keeps this mapping in its checkpoints and its summary, and goes on only where it is the same; the key under which
a stage is stored holds it too. Every worker makes its own. Its names:

    torch, numpy   versions
    device         cpu or cuda
    hardware       the GPU, or the vector instructions that torch takes on this CPU
    processor      vendor, family and model of the CPU
    settings       what steers kernels from outside of an experiment, where it is set: variables and flags of torch
    canary         a hash of small results, see canary.py
    code           a hash of the sources that compute, see :func:`engine.record.stage_hashes.code_of`
    network        a hash of parameters that are never trained, where a network has some: no message has them. Of one
                   from outside also of what it begins with and is made of, which its code may have from elsewhere
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.base.devices import first_cpu
from engine.base.own_modules import is_ours
from engine.client.steps.flat_net import FlatNet
from engine.experiment import Experiment
from engine.record.canary import DIGITS, canary
from engine.record.stage_hashes import CODE, code_of

NOTHING = "none"  # settings, where nothing is set
UNKNOWN = "unknown"  # a value that an earlier version did not write down

# Variables of the libraries that compute, by how their names begin. All count that are not known to change no bit.
STEERING = (
    *("MKL_", "ONEDNN_", "DNNL_", "KMP_", "OMP_", "OPENBLAS_", "GOTO_", "NPY_", "ATEN_", "GLIBC_TUNABLES"),
    *("CUBLAS", "CUDNN_", "NVIDIA_TF32_OVERRIDE", "DISABLE_ADDMM_CUDA_LT", "PYTORCH_TUNABLEOP_"),
    *("TORCH_ALLOW_TF32", "TORCH_BLAS", "TORCH_CUDNN", "TORCH_LINALG", "TORCH_MKLDNN", "TORCH_NNPACK"),
)
# Numbers of threads are ours to set (execution.threads), and Ray sets one for each actor. The others are of messages,
# of where threads lie and how they wait.
CHANGE_NO_BIT = frozenset(
    {
        *("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"),
        *("MKL_VERBOSE", "MKL_VERBOSE_OUTPUT_FILE", "ONEDNN_VERBOSE", "ONEDNN_VERBOSE_TIMESTAMP", "DNNL_VERBOSE"),
        *("OPENBLAS_VERBOSE", "OMP_DISPLAY_ENV", "OMP_DISPLAY_AFFINITY", "KMP_SETTINGS", "KMP_WARNINGS", "KMP_VERSION"),
        *("OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "OMP_STACKSIZE", "KMP_STACKSIZE"),
        *("KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_LIBRARY", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),
        *("OMP_MAX_TASK_PRIORITY", "MKL_SERVICE_FORCE_INTEL", "NPY_PROMOTION_STATE"),
    }
)
# Flags below torch.backends, with the values that torch begins with. What ``set_up_torch`` sets itself is left out.
FLAGS: dict[str, tuple[object, ...]] = {
    "mkldnn.enabled": (True,),
    "mkldnn.deterministic": (False,),
    "mkldnn.fp32_precision": ("none", "ieee"),
    "mkldnn.matmul.fp32_precision": ("none", "ieee"),
    "mkldnn.conv.fp32_precision": ("none", "ieee"),
    "mkldnn.rnn.fp32_precision": ("none", "ieee"),
    "cudnn.enabled": (True,),
    "cuda.matmul.allow_fp16_reduced_precision_reduction": (True,),
    "cuda.matmul.allow_bf16_reduced_precision_reduction": (True,),
    "cuda.matmul.allow_fp16_accumulation": (False,),
    "opt_einsum.enabled": (False,),  # as it is without that package, which orders products of three and more
    "opt_einsum.strategy": (None, "auto"),
}


def numerics(experiment: Experiment, hardware: str, nets: Sequence[FlatNet] = ()) -> dict[str, str]:
    """Name all that a result's bits depend on beside the experiment, for the process that this is called in.

    ``hardware``: see :func:`hardware_of`. ``nets``: that it computes with. Torch is set up for the experiment already.
    """
    held = [own.cpu().numpy().tobytes() for net in nets for own in net.constants.values()]
    if not all(is_ours(type(spec)) for spec in (experiment.model, *experiment.client_models)):
        for net in nets:  # what its code does not tell: a file, a variable, an object that it was made by
            held += [net.weights.cpu().numpy().tobytes(), net.buffers.cpu().numpy().tobytes()]
            held.append(re.sub("0x[0-9a-f]+", "", repr(net.model)).encode())
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": experiment.execution.device,
        "hardware": hardware,
        "processor": processor(),
        "settings": settings(os.environ),
        "canary": canary(experiment.execution),
        CODE: code_of(experiment),
        **({"network": hashlib.sha256(b"".join(held)).hexdigest()[:DIGITS]} if held else {}),
    }


def mixed(*values: str) -> str:
    """Name all that took part, where not all of it was the same."""
    return " | ".join(sorted({part for value in values for part in value.split(" | ")}))


def is_mixed(computed_by: Mapping[str, str]) -> bool:
    """Return whether bits may depend on who computed what, so that nothing of it may be shared."""
    return any(" | " in value for value in computed_by.values())


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the names whose values differ, each with both; what one of them lacks is :data:`UNKNOWN` there."""
    pairs = {name: (before.get(name, UNKNOWN), now.get(name, UNKNOWN)) for name in sorted({*before, *now})}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def other_code(summary: Mapping[str, Any], experiment: Experiment) -> tuple[str, str] | None:
    """Return the hashes of the code that made an ended run and of this one, where they differ.

    None, too, where ``experiment`` allows for it (``execution.mixed_hardware``).
    """
    versions = summary.get("versions")
    before = versions.get(CODE, UNKNOWN) if isinstance(versions, dict) else UNKNOWN
    now = code_of(experiment)
    return None if before == now or experiment.execution.mixed_hardware else (before, now)


def hardware_of(device: str) -> str:
    """Name what this process computes on: the GPU, or the CPU's vector instructions."""
    return torch.cuda.get_device_name() if device == "cuda" else torch.backends.cpu.get_cpu_capability()


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name the CPU's vendor, family and model, by which MKL and oneDNN choose kernels; elsewhere what Python knows."""
    told = first_cpu(cpuinfo)
    of_x86 = ("vendor_id", "cpu family", "model")
    of_arm = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part")
    for names in (of_x86, of_arm):
        if all(name in told for name in names):
            return " ".join(told[name] for name in names)
    return _one_part(f"{platform.machine()} {platform.processor()}".strip())


def settings(variables: Mapping[str, str]) -> str:
    """Name what steers kernels and is not as it is by itself: of ``variables``, and flags of torch in this process."""
    found = {
        name: value.strip()
        for name, value in variables.items()
        if name.startswith(STEERING) and name not in CHANGE_NO_BIT and value.strip()
    }
    found |= {name: str(value) for name, value in _flags() if value not in FLAGS.get(name, ())}
    return ", ".join(f"{name}={_one_part(found[name])}" for name in sorted(found)) or NOTHING


def _flags() -> Iterator[tuple[str, object]]:
    for name in FLAGS:
        try:
            yield name, attrgetter(name)(torch.backends)
        except (AttributeError, RuntimeError):  # of another version of torch, or not built into this one
            continue
    if torch.are_deterministic_algorithms_enabled():
        yield "deterministic_algorithms", True


def _one_part(text: str) -> str:
    """A value that :func:`mixed` does not take for several."""
    return " ".join(text.split()).replace(" | ", "|")
