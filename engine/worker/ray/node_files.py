"""The files of one node as an Arrow file system for all nodes of a cluster, which may share no disk.

Ray carries the bytes: an actor on that node reads and writes, and each other process asks it through fsspec.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.worker.ray.errors import cause_of  # first: its package sets what Ray reads at import

import ray  # isort: skip
from fsspec import AbstractFileSystem  # isort: skip  # it comes with Ray Tune
from fsspec.implementations.local import LocalFileSystem  # isort: skip
from pyarrow.fs import FSSpecHandler, PyFileSystem  # isort: skip
from ray.exceptions import RayError, RayTaskError  # isort: skip
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # isort: skip

from engine.base.files import write_atomically

PATIENCE = 60.0  # seconds for a node to have a look at a file
AT_ONCE = 8  # files that are read or written at a time
Identity = tuple[int, int]  # of a file, on whichever node it is seen


def of_this_node() -> PyFileSystem:
    """Return the files of this node; they can be reached while this process is alive."""
    again = {"max_restarts": -1, "max_task_retries": -1}  # it keeps nothing, and what it does may be done twice
    keeper = _on_node(_here(), _Keeper, max_concurrency=AT_ONCE, **again).remote()
    return PyFileSystem(FSSpecHandler(_NodeFiles(keeper=keeper)))


def others() -> list[dict[str, Any]]:
    """List the nodes that are alive, but for this one, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != _here()]


def strangers(path: Path) -> list[str]:
    """Return the addresses of the nodes that do not see this node's file ``path``: a task on each has a look."""
    known, nodes = identity(path), others()
    found = [_on_node(node["NodeID"], identity).remote(path) for node in nodes]
    return [node["NodeManagerAddress"] for node, one in zip(nodes, found, strict=True) if _answer(one) != known]


def identity(path: Path) -> Identity | None:
    """Return what tells a file from another of its path on another machine's disk; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _here() -> str:
    return ray.get_runtime_context().get_node_id()


def _on_node(node: str, what: Any, **options: Any) -> Any:
    there: Any = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=there, **options)(what)


def _answer(reference: Any) -> Any:
    try:
        return ray.get(reference, timeout=PATIENCE)
    except RayError:  # the node has just gone, or does not answer
        return None


class _Keeper:
    """The actor, on the node that has the files."""

    def __init__(self) -> None:
        self._files = LocalFileSystem()

    def call(self, name: str, *values: Any, **named: Any) -> Any:
        return getattr(self._files, name)(*values, **named)

    def write(self, path: str, content: bytes) -> None:
        write_atomically(Path(path), content)


class _NodeFiles(AbstractFileSystem):
    """What fsspec and Arrow know of those files, in any process."""

    protocol = "node"
    cachable = False

    def __init__(self, keeper: Any) -> None:
        super().__init__(keeper=keeper)
        self._keeper = keeper

    def _open(self, path: str, mode: str = "rb", *_: Any, **__: Any) -> Any:
        if "r" in mode:
            return io.BytesIO(self.call("cat_file", path))
        return _Written(lambda content: self._ask(self._keeper.write.remote(path, content)))

    def call(self, name: str, *values: Any, **named: Any) -> Any:
        """Have the keeper call a method of its local file system."""
        return self._ask(self._keeper.call.remote(name, *values, **named))

    def _ask(self, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except RayTaskError as error:
            raise cause_of(error) from None


class _Written(io.BytesIO):
    """A file that is written whole when it is closed."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._write = write

    def close(self) -> None:
        if not self.closed:
            self._write(self.getvalue())
        super().close()


def _called(name: str) -> Callable[..., Any]:
    def ask(self: _NodeFiles, *values: Any, **named: Any) -> Any:
        return self.call(name, *values, **named)

    ask.__name__ = name
    return ask


for _name in ("info", "ls", "find", "mkdir", "makedirs", "rm", "mv", "cp_file", "cat_file"):
    setattr(_NodeFiles, _name, _called(_name))
