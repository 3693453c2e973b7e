"""The section ``execution``: where and how a run is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import pydantic
import torch
from pydantic import Field

from engine.base.errors import ConfigError, require
from engine.base.section import Section
from engine.experiment.executor_policy import CAPTURING, STACKING, default_executor
from engine.models import ModelSpec

MOST_THREADS = 1024
MOST_LANES = 32  # connections that a GPU takes at most from one process
MOST_SECONDS = 1e9  # what a lock can wait for has an end

NEUTRAL = {"tf32": False, "autocast": "none"}  # fields of Execution that are in no digest at these values
IDENTITY = ("executor", "precision", *NEUTRAL, "device", "threads", "block")  # the fields of Execution that change bits


class Execution(Section):
    """Executor, arithmetic, device and workers. The first seven fields change bits; the others never do."""

    executor: Literal["auto", "loop", "block", "graph", "block_graph"] = "auto"  # how clients of a block are trained:
    # one by one | together | one by one, or together, in steps that are captured once and replayed (on a GPU alone)
    precision: Literal["float32", "float64"] = "float32"
    tf32: bool = False  # round factors of products on the GPU to TF32; false is exact float32
    autocast: Literal["none", "bfloat16"] = "none"  # of forward passes and losses; none is exact
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=1, ge=1, le=MOST_THREADS)  # of torch, in every worker
    block: Literal["auto"] | Annotated[int, Field(ge=1)] = (
        "auto"  # clients per block at most; auto: see engine.client.blocks
    )

    lanes: int = Field(default=1, ge=1, le=MOST_LANES)  # clients of a block whose steps graph replays at once
    actors: int = Field(default=0, ge=0)  # client actors; 0 is in this process, without Ray
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST_THREADS)] = (
        "auto"  # of this process; see engine.worker.thread_count
    )
    cpus_per_actor: float = Field(default=1.0, gt=0)
    gpus_per_actor: float = Field(default=0.0, ge=0, le=1)  # snapped to 1/n, so that no share spans cards
    state_store: Literal["memory", "disk"] = "memory"  # where client state lives between participations
    state_cache_mb: int = Field(default=512, ge=0)  # of the disk store
    start_timeout: float = Field(default=180.0, gt=0, le=MOST_SECONDS)  # seconds for an actor to be ready
    block_timeout: float = Field(default=1800.0, gt=0, le=MOST_SECONDS)  # seconds for an actor to give something back
    # seconds for a round and what is due after it; null: none
    round_timeout: float | None = Field(default=None, gt=0, le=MOST_SECONDS)
    retries: int = Field(default=3, ge=0)  # times that a block is run again after its actor died
    mixed_hardware: bool = False  # allow actors that compute different bits; marks the result, which is not shared

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Execution:
        require(
            self.actors == 0 or self.cpus_per_actor >= self.threads,
            "cpus_per_actor",
            self.cpus_per_actor,
            f"must be at least execution.threads={self.threads}",
            f"set execution.cpus_per_actor={self.threads}",
        )
        require(
            self.device != "cuda" or self.actors == 0 or self.gpus_per_actor > 0,
            "device",
            self.device,
            "needs a share of a GPU for each actor",
            "set execution.gpus_per_actor, for example to 0.25",
        )
        for field, neutral in NEUTRAL.items():
            require(
                self.precision == "float32" or getattr(self, field) == neutral,
                field,
                getattr(self, field),
                f"computes in less than float32, and execution.precision={self.precision} asks for more",
                "leave it out, or set execution.precision=float32",
            )
        require(
            self.lanes == 1 or self.executor == "graph",
            "lanes",
            self.lanes,
            f"is clients whose steps are replayed side by side, and execution.executor is {self.executor}",
            "set execution.executor=graph, or leave it out",
        )
        require(
            self.lanes == 1 or (self.block != "auto" and self.block >= self.lanes),
            "lanes",
            self.lanes,
            f"is clients of one block, and execution.block is {self.block}",
            f"set execution.block to {self.lanes} or more, which computes other bits, or leave it out",
        )
        self._check_device()
        return self

    def _check_device(self) -> None:
        """Refuse what the device cannot do; called again when ``device=auto`` is resolved."""
        require(
            not self.tf32 or self.device != "cpu",
            "tf32",
            self.tf32,
            "is arithmetic of a GPU, and execution.device is cpu",
            "leave it out, or set execution.device=cuda",
        )
        require(
            self.executor not in CAPTURING or self.device != "cpu",
            "executor",
            self.executor,
            "replays steps on a GPU, and execution.device is cpu",
            f"set execution.executor={'block' if self.executor in STACKING else 'loop'}",
        )
        # torch keeps the cast weights of autocast in one place for all threads of a process.
        require(
            self.workers in ("auto", 1) or self.autocast == "none",
            "workers",
            self.workers,
            f"is threads of one process, which would share what execution.autocast={self.autocast} has cast",
            "leave one of them out, or set execution.actors",
        )
        require(
            self.workers in ("auto", 1) or self.device != "cuda",
            "workers",
            self.workers,
            "is threads of one process, which take turns on a GPU",
            "set execution.actors and execution.gpus_per_actor",
        )

    def resolve(self, models: Sequence[ModelSpec], batch_sizes: Sequence[int | Literal["full"]]) -> Execution:
        """Return the section with ``auto`` replaced by what it stands for on this machine; itself where nothing is.

        models: the clients' specifications. batch_sizes: of the run's stages. Raises
        :class:`~engine.base.errors.ConfigError` if the device that was found cannot do what is asked for.
        """
        device, executor = self.device, self.executor
        if device == "auto":
            cuda = self.gpus_per_actor > 0 or (self.actors == 0 and torch.cuda.is_available())
            device = "cuda" if cuda else "cpu"
        if executor == "auto":
            executor = default_executor(models, batch_sizes, device)
        if (device, executor) == (self.device, self.executor):
            return self
        resolved = self.model_copy(update={"device": device, "executor": executor})
        try:
            resolved._check_device()
        except ConfigError as error:
            raise error.under("execution") from None
        return resolved


def no_gpu(execution: Execution) -> ConfigError:
    """Return the error for a machine without a GPU, which names the field that asked for one."""
    field = "gpus_per_actor" if execution.gpus_per_actor else "device"
    return ConfigError(
        f"execution.{field}",
        getattr(execution, field),
        "needs a GPU and there is none",
        "set execution.gpus_per_actor=0 execution.device=cpu",
    )
