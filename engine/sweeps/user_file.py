"""A user's own Python file as a module, and where in it something went wrong."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from ray import cloudpickle

from engine.base.errors import ConfigError, FedskewError


def load_module(path: Path) -> ModuleType:
    """Run ``path``; each call runs it anew. Raises :class:`ConfigError` with the line that cannot be run.

    The module is known to this process under a private name, as dataclasses and type hints need it. Processes of
    trials have no such module, so what is defined in it travels to them by value.
    """
    name = f"_fedskew_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except FedskewError:
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError("sweep", path, f"cannot be imported: {told(error, path)}") from error
    cloudpickle.register_pickle_by_value(module)
    return module


def told(error: BaseException, path: Path) -> str:
    """``ZeroDivisionError: division by zero (mine.py, line 3)``: the last line of ``path`` on the way to the error."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        file, line, text = error.filename, error.lineno, error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        last = next((frame for frame in reversed(frames) if Path(frame.filename) == path), frames[-1])
        file, line = last.filename, last.lineno
    return f"{type(error).__name__}: {text} ({Path(file or path).name}, line {line})"
