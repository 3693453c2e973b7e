"""The machine's share in a run's bits: what steers kernels is named, and a canary tells what is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.experiment import Execution
from engine.record.canary import canary
from engine.record.numerics import NOTHING, differing, is_mixed, mixed, numerics, processor, settings
from engine.record.stage_hashes import stage_hash
from tests.support.tiny import experiment

ROOT = Path(__file__).parents[2]
CPU = Execution(device="cpu")


def test_settings_that_steer_kernels_are_named() -> None:
    """Kills: a variable that is not looked at; threads, messages and paths that split the store of equal machines."""
    plain = settings({})
    harmless = {"OMP_NUM_THREADS": "1", "MKL_VERBOSE": "1", "KMP_AFFINITY": "compact", "PATH": "x", "TZ": "y"}
    assert settings(harmless) == plain
    assert settings({"MKL_CBWR": " "}) == plain  # set to nothing
    found = settings({**harmless, "ONEDNN_MAX_CPU_ISA": "AVX2 ", "MKL_CBWR": "COMPATIBLE"})
    assert found == "MKL_CBWR=COMPATIBLE, ONEDNN_MAX_CPU_ISA=AVX2"
    for name in ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"):
        assert settings({name: "1"}) == f"{name}=1"
    assert plain == NOTHING


def test_a_value_is_not_taken_for_a_mixture() -> None:
    """Kills: a variable that looks like results of two machines, and so is never shared."""
    assert not is_mixed({"settings": settings({"MKL_CBWR": "a | b"})})


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_flags_of_torch_are_named() -> None:
    """Kills: a flag of torch that changes bits and no key."""
    with torch.backends.mkldnn.flags(enabled=False):
        assert "mkldnn.enabled=False" in settings({})
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert "mkldnn.matmul.fp32_precision" in settings({})
    finally:
        torch.set_float32_matmul_precision(before)
    assert settings({}) == NOTHING


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n", "AuthenticAMD 25 1"),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\nvendor_id\t: x\n", "GenuineIntel 6 143"),
        (
            "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\n",
            "0x41 8 0x1 0xd40",
        ),
    ],
)
def test_the_processor_is_its_vendor_family_and_model(tmp_path: Path, text: str, expected: str) -> None:
    """Kills: two processors of equal instructions, for which libraries choose other kernels, taken for one."""
    (tmp_path / "cpuinfo").write_text(text)
    assert processor(tmp_path / "cpuinfo") == expected
    assert processor(tmp_path / "none")


def test_the_canary_repeats_and_draws_nothing() -> None:
    """Kills: a canary of drawn numbers, or one that another run's draws depend on."""
    state = torch.get_rng_state()
    assert len({canary(CPU) for _ in range(3)}) == 1
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_the_canary_sees_kernels_and_precision() -> None:
    """Kills: a canary too small for the kernels that training takes, or of another arithmetic than the run's."""
    plain = canary(CPU)
    with torch.backends.mkldnn.flags(enabled=False):
        assert canary(CPU) != plain
    others = [CPU.model_copy(update=change) for change in ({"precision": "float64"}, {"autocast": "bfloat16"})]
    assert len({plain, *map(canary, others)}) == 3
    if torch.set_flush_denormal(True):
        try:
            assert canary(CPU) != plain
        finally:
            torch.set_flush_denormal(False)
    assert canary(CPU) == plain


def test_each_of_a_runs_numerics_is_in_the_key_but_the_code() -> None:
    """Kills: a canary or a setting that the store does not see; a stage that any other stage's code throws away."""
    config = experiment()
    plain = numerics(config, "a CPU")

    def key(**changes: str) -> str:
        return stage_hash(config, config.chain[0], {**plain, **changes}, "data")

    assert {name for name in plain if key(**{name: "other"}) == key()} == {"code"}


def test_what_differs_is_named_with_both_values() -> None:
    """Kills: a name that only one of two versions wrote down, passed over in silence."""
    assert differing({"a": "1", "b": "2"}, {"b": "3", "c": "4", "a": "1"}) == {
        "b": ("2", "3"),
        "c": ("unknown", "4"),
    }
    assert mixed("x", "y | x") == "x | y"


STEP = """
import hashlib
import torch

def step():
    "The gradients of a step of a small network, by their hash."
    fill = lambda *shape, by: (torch.arange(torch.Size(shape).numel()) * by % 1009).view(shape) / 1009 - 0.5
    rows, first, last = fill(8, 3, 28, 28, by=7919), fill(16, 3, 3, 3, by=104729), fill(200, 784, by=613)
    weights = [first.requires_grad_(), last.requires_grad_()]
    hidden = torch.nn.functional.conv2d(rows.clone(memory_format=torch.channels_last), first, padding=1)
    scores = torch.nn.functional.linear(rows.view(-1, 784), last)
    loss = hidden.square().mean() + torch.nn.functional.cross_entropy(scores, torch.arange(24))
    grads = torch.autograd.grad(loss, weights)
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in grads)).hexdigest()
"""
CHILD = f"""{STEP}
torch.set_num_threads(1)
from engine.experiment import Execution
from engine.record.canary import canary
print(step(), canary(Execution(device="cpu")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "MKL_CBWR"])
def test_no_setting_changes_bits_without_the_canary(variable: str) -> None:
    """Kills: other weights under oneDNN's or MKL's switches that the store serves as equal.

    Of oneDNN the widest instructions are taken away that this machine has. The table in docs/reliability.md has 25.
    """
    lower = "AVX2" if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else "SSE41"
    value = {"ONEDNN_MAX_CPU_ISA": lower, "MKL_CBWR": "COMPATIBLE"}[variable]
    own: dict[str, Any] = {}
    exec(STEP, own)
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), variable: value},
        capture_output=True,
        text=True,
        check=True,
    )
    bits, seen = done.stdout.split()
    assert settings({variable: value}) != NOTHING
    assert bits == own["step"]() or seen != canary(CPU)
