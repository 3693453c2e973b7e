"""What a CPU-only torch is told, once a process, so that it takes the device "cuda" for one that is there.

Tensors "on the card" are of torch's spare backend, PrivateUse1, which may be written in Python; autograd asks it for a
guard (which device and stream is current) and hooks. The same guard is put into CUDA's place in torch's table of
guards, which torch's own functions do for the spare backend alone: it is asked when somebody says "cuda".
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils import backend_registration

NAME = "card"  # the spare backend's
DEVICE = torch.device("cuda:0")  # what code under test sees
TESTED = "2.13"  # torch's version, for which all this was written
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
DEVICE_TYPES = 32  # places in that table, and some more


def why_not() -> str:
    """Say why there can be no pretended card in this process; empty if there can."""
    if torch.backends.cuda.is_built():
        return f"torch {torch.__version__} knows real cards; a pretended one needs a torch for the CPU alone"
    is_tested = torch.__version__.startswith(f"{TESTED}.")
    if not is_tested and not (_has_api() and _has_guards()):
        return f"the pretended card was written for torch {TESTED}, and {torch.__version__} lacks what it is made of"
    return ""


def _has_api() -> bool:
    accelerators = getattr(torch._C, "_acc", None)
    names = ("DeviceGuard", "register_python_privateuseone_device_guard", "register_python_privateuseone_hook")
    return all(hasattr(accelerators, name) for name in names) and hasattr(torch, "_functionalize_unsafe_set")


def _has_guards() -> bool:
    try:
        _guards()
    except (OSError, ValueError):
        return False
    return True


def _guards() -> Any:
    """Torch's table of guards, by device type. Raises OSError or ValueError where it is not to be had."""
    name = "libc10.dylib" if sys.platform == "darwin" else "libc10.so"
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
    return (ctypes.c_void_p * DEVICE_TYPES).in_dll(library, GUARDS)


@cache
def register() -> tuple[Any, ...]:
    """Tell torch; what is returned must stay, for torch keeps pointers to it."""
    kinds, accelerators = torch._C._autograd.DeviceType, torch._C._acc

    class Guard(accelerators.DeviceGuard):  # type: ignore[misc, name-defined]
        """Of the current device: there is one, so that there is nothing to do."""

        def __init__(self, kind: Any) -> None:
            super().__init__()
            self._kind = kind

        def type_(self) -> Any:
            return self._kind

    table = _guards()
    cuda, spare = int(kinds.CUDA), int(kinds.PrivateUse1)
    if table[cuda] or table[spare]:
        raise RuntimeError("this torch has a device of its own, in whose place the pretended card would be")
    guards = Guard(kinds.CUDA), Guard(kinds.PrivateUse1)
    accelerators.register_python_privateuseone_device_guard(guards[0])
    table[cuda] = table[spare]
    accelerators.register_python_privateuseone_device_guard(guards[1])
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, backend_registration._DummyBackendModule())
    hooks = backend_registration._DummyPrivateUse1Hook()
    accelerators.register_python_privateuseone_hook(hooks)
    return *guards, hooks


def is_card(device: Any) -> bool:
    """Return whether a device, or its name, is the card by either of its names; None is not."""
    if device is None:
        return False
    if isinstance(device, int):
        return True
    return torch.device(device).type in ("cuda", NAME)
