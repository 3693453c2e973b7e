"""Checkpoints of a run: safetensors files, written whole, verified when read, the last few kept.

``checkpoints/00-train-000010.safetensors`` holds the server's entries after round 10 of stage 0, ``train``, the ids
and digests of the clients' states, and the SHA-256 of all of it. The states themselves lie beside it, in
``checkpoints/states/``, named by their content.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors
import torch
from torch import Tensor

from engine.base.errors import RunFolderError
from engine.base.files import set_aside, write_atomically
from engine.base.opening import NotAFile, read_bytes
from engine.record.tensor_files import decoded, encoded

if TYPE_CHECKING:
    from engine.experiment import Experiment

log = logging.getLogger("fedskew")


_NAME = re.compile(r"([0-9]+)-.*-([0-9]+)\.safetensors")  # stage and round; a round may have more digits than others


class Damaged(RunFolderError):
    """A checkpoint that is not whole, so that an older one is tried."""


@dataclass(frozen=True)
class Position:
    """The point that a run has reached: after ``round`` (global) of the stage with number ``stage``."""

    stage: int
    round: int


@dataclass(frozen=True)
class Checkpoint:
    position: Position
    server: dict[str, Tensor]
    states: dict[int, str]  # client -> SHA-256 of its state
    numerics: dict[str, str] = field(default_factory=dict)  # libraries and hardware that computed it


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, digest: str, keep: int, stage_names: tuple[str, ...], every: int = 1) -> None:
        self.folder = folder
        self.digest = digest  # of the experiment
        self.keep = keep
        self._every = every  # rounds between two that are kept before those in between
        self.stage_names = stage_names
        self._states: dict[str, frozenset[str]] = {}  # checkpoint file -> the state files it names

    @property
    def states_folder(self) -> Path:
        return self.folder / "states"

    def path(self, position: Position) -> Path:
        name = f"{position.stage:02d}-{self.stage_names[position.stage]}-{position.round:06d}.safetensors"
        return self.folder / name

    def positions(self) -> list[Position]:
        """List where checkpoints stand by their names, the newest first; other files are not this run's."""
        found: list[Position] = []
        for file in self.folder.glob("[0-9]*.safetensors"):
            named = _NAME.fullmatch(file.name)
            if named and int(named[1]) < len(self.stage_names):
                position = Position(int(named[1]), int(named[2]))
                if self.path(position).name == file.name:
                    found.append(position)
        return sorted(found, key=lambda position: (position.stage, position.round), reverse=True)

    def paths(self) -> list[Path]:
        """List the checkpoints' files, the newest first."""
        return [self.path(position) for position in self.positions()]

    def newest(self) -> Position | None:
        """Return where the newest checkpoint stands by its name; nothing of it is read."""
        return next(iter(self.positions()), None)

    def save(self, checkpoint: Checkpoint) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(checkpoint.position)
        write_atomically(path, encode(checkpoint, self.digest))
        self._states[path.name] = frozenset(checkpoint.states.values())

    def load(self, path: Path) -> Checkpoint:
        """Read a checkpoint; :class:`RunFolderError` for a file that is not whole or belongs to another experiment."""
        return decode(path, self.digest)

    def check_folder(self) -> None:
        """Raise :class:`RunFolderError` where there is something else in the place of the folder."""
        if self.folder.exists() and not self.folder.is_dir():
            raise RunFolderError(f"{self.folder} is not a folder; move it away and resume")

    def latest(self, parents: Mapping[int, Path]) -> Checkpoint | None:
        """Read the newest checkpoint that is whole; None to start afresh. Logs when it had to go further back.

        ``parents``: for the stages that start from another one, that one's last checkpoint.
        """
        damaged = False
        for path in self.paths():
            try:
                checkpoint = self.load(path)
                for digest in set(checkpoint.states.values()):
                    self._check_state(path, digest)
                parent = parents.get(checkpoint.position.stage)
                if parent is not None:
                    for digest in set(self.load(parent).states.values()):
                        self._check_state(parent, digest)
                return checkpoint
            except Damaged as error:
                log.warning("%s; falling back to the one before", error)
                set_aside(path)  # out of the way of the kept ones
                damaged = True
        if damaged:
            log.warning("no checkpoint is whole: the run begins anew")
        return None

    def _check_state(self, path: Path, digest: str) -> None:
        state = self.states_folder / f"{digest}.safetensors"
        if not state.exists():
            raise Damaged(f"checkpoint {path.name} misses a client state")
        try:
            content = read_bytes(state)
        except NotAFile as error:
            set_aside(state)
            raise Damaged(f"checkpoint {path.name} names a client state that is none: {error}") from None
        if hashlib.sha256(content).hexdigest() != digest:
            state.unlink()  # so that it is written again when it is computed again
            raise Damaged(f"checkpoint {path.name} names a client state that is damaged")

    def prune(self, final: set[str]) -> set[str]:
        """Delete all but the newest, the last few before it and those named in ``final``; return the states needed."""
        newest, *others = self.positions()
        others.sort(key=lambda position: position.round % self._every != 0)  # due ones first, the newest of them first
        for path in map(self.path, [newest, *others][self.keep :]):
            if path.name not in final:
                path.unlink(missing_ok=True)
                self._states.pop(path.name, None)
        return {digest for path in self.paths() for digest in self._states_of(path)}

    def _states_of(self, path: Path) -> frozenset[str]:
        if path.name not in self._states:
            try:
                self._states[path.name] = frozenset(self.load(path).states.values())
            except RunFolderError:  # damaged: nothing can be restored from it anyway
                self._states[path.name] = frozenset()
        return self._states[path.name]


def last_of_stages(checkpoints: Checkpoints, experiment: Experiment) -> dict[str, Path]:
    """Find the checkpoint after each stage's last round, once there is one."""
    stages = enumerate(zip(experiment.chain, experiment.spans, strict=True))
    return {stage.name: checkpoints.path(Position(number, span.stop - 1)) for number, (stage, span) in stages}


def encode(checkpoint: Checkpoint, owner: str) -> bytes:
    """Make the content of a checkpoint file of ``owner``."""
    tensors = {f"server/{name}": tensor.contiguous() for name, tensor in checkpoint.server.items()}
    ids = sorted(checkpoint.states)
    tensors["states/ids"] = torch.tensor(ids, dtype=torch.int64)
    digests = bytearray(b"".join(bytes.fromhex(checkpoint.states[client]) for client in ids))
    tensors["states/digests"] = (
        torch.frombuffer(digests, dtype=torch.uint8) if ids else torch.empty(0, dtype=torch.uint8)
    )
    metadata = {
        "experiment": owner,
        "stage": str(checkpoint.position.stage),
        "round": str(checkpoint.position.round),
        "numerics": json.dumps(checkpoint.numerics),
    }
    metadata["sha256"] = _sha256(tensors, metadata)
    return encoded(tensors, metadata)


def decode(path: Path, owner: str) -> Checkpoint:
    """Read what :func:`encode` wrote; :class:`RunFolderError` for a file that is not whole or has another owner."""
    try:
        content = read_bytes(path)
    except NotAFile as error:
        raise Damaged(f"checkpoint {path.name} is damaged: {error}") from None
    except OSError as error:  # perhaps only for now: not a reason to go back
        raise RunFolderError(f"checkpoint {path.name} cannot be read: {error.strerror}") from None
    try:
        tensors, metadata = decoded(content)
        whole = metadata.pop("sha256", None) == _sha256(tensors, metadata)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"checkpoint {path.name} is damaged ({error})") from None
    if not whole:
        raise Damaged(f"checkpoint {path.name} is damaged: its content does not match its checksum")
    if metadata.get("experiment", owner) != owner:
        raise RunFolderError(f"checkpoint {path.name} belongs to another experiment ({metadata['experiment']})")
    try:
        return _checkpoint(tensors, metadata)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:  # it was written so
        raise RunFolderError(f"checkpoint {path.name} is not one of this version ({error})") from None


def _checkpoint(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> Checkpoint:
    _ = metadata["experiment"]
    numerics = json.loads(metadata["numerics"])
    if not isinstance(numerics, dict):
        raise TypeError("its numerics are no mapping")
    ids = tensors.pop("states/ids").tolist()
    digests = tensors.pop("states/digests").view(-1, 32)
    return Checkpoint(
        position=Position(int(metadata["stage"]), int(metadata["round"])),
        server={name.removeprefix("server/"): tensor for name, tensor in tensors.items()},
        states={client: bytes(row.tolist()).hex() for client, row in zip(ids, digests, strict=True)},
        numerics=numerics,
    )


def _sha256(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
