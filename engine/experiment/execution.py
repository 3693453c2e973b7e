"""The section ``execution``: where and how a run is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
import torch

from engine.base.declared import Doc, Ge, Gt, Le, Neutral
from engine.base.errors import ConfigError, require
from engine.base.section import Section
from engine.experiment.executor_policy import CAPTURING, CLIENT_BY_CLIENT, STACKING, default_executor, default_lanes
from engine.models import ModelSpec

MOST_THREADS = 1024
MOST_LANES = 32  # connections that a GPU takes at most from one process
MOST_SECONDS = 1e9  # what a lock can wait for has an end

NEUTRAL = {
    "tf32": False,
    "autocast": "none",
    "compiled": False,
}  # fields of Execution that are in no digest at these values
IDENTITY = ("executor", "precision", *NEUTRAL, "device", "threads", "block")  # the fields of Execution that change bits


class Execution(Section):
    """Executor, arithmetic, device and workers. The first seven fields change bits; the others never do."""

    executor: Annotated[
        Literal["auto", "loop", "block", "graph", "block_graph"],
        Doc(
            "how the clients of a block are trained, see [Executors](#executors); auto, with numbered batches: block "
            "for `logistic` and `mlp` on a CPU, and graph on a GPU, there in process with 8 lanes for small networks; "
            "else loop"
        ),
    ] = "auto"
    precision: Annotated[Literal["float32", "float64"], Doc("of weights and arithmetic")] = "float32"
    tf32: Annotated[
        bool,
        Doc("round the factors of matrix products and convolutions to TF32: for a GPU, with float32"),
        Neutral(False, "is exact"),
    ] = False
    autocast: Annotated[
        Literal["none", "bfloat16"],
        Doc(
            "forward passes and losses of local training and evaluation under torch's autocast; weights, gradients, "
            "optimizers and uploads stay in float32, and so does local training by fedmix"
        ),
        Neutral("none", "is exact"),
    ] = "none"
    compiled: Annotated[
        bool,
        Doc(
            "let torch's compiler put the operations of a step together before it is captured, for batches of "
            "`local.batch_size` under `block_graph`; the first round takes a minute longer, once for each machine"
        ),
        Neutral(False, "is operation by operation"),
    ] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Doc("auto: cuda where actors have a share of a GPU, or in process where there is one"),
    ] = "auto"
    threads: Annotated[int, Ge(1), Le(MOST_THREADS), Doc("of torch, in every worker")] = 1
    block: Annotated[
        Literal["auto"] | Annotated[int, Ge(1)],
        Doc(
            "clients per block at most; auto: what gives each actor, or worker of this process, four blocks and the "
            "round 16; where a block is trained in one pass, half of the cohort, up to 32: there alone it changes bits"
        ),
    ] = "auto"
    lanes: Annotated[
        int,
        Ge(1),
        Le(MOST_LANES),
        Doc(
            "clients of a block whose steps `graph` replays side by side, in a lane each, see "
            "[Executors](#executors); no more than `execution.block`, which is then a number"
        ),
        Neutral(1, "is one by one"),
    ] = 1
    actors: Annotated[
        int,
        Ge(0),
        Doc(
            "client actors on Ray; 0 computes in this process, without Ray; results are bit-identical for a given "
            "device"
        ),
    ] = 0
    workers: Annotated[
        Literal["auto"] | Annotated[int, Ge(1), Le(MOST_THREADS)],
        Doc(
            "of this process, where it computes: blocks that are trained side by side, in threads; auto: one, and on "
            "a CPU up to one per core and 4 where a batch takes half a million multiply-adds or more, without "
            "autocast (`engine/worker/thread_count.py`)"
        ),
    ] = "auto"
    cpus_per_actor: Annotated[float, Gt(0), Doc("CPUs that an actor reserves")] = 1.0
    gpus_per_actor: Annotated[
        float, Ge(0), Le(1), Doc("share of a GPU, snapped to 1/n, so that no share spans cards"), Neutral(0, "is none")
    ] = 0.0
    state_store: Annotated[
        Literal["memory", "disk"],
        Doc(
            "where client state lives between participations; of disk, what states will come to is projected before "
            "a stage begins, and refused if that is more than is free"
        ),
    ] = "memory"
    state_cache_mb: Annotated[int, Ge(0), Doc("cache of the disk store")] = 512
    start_timeout: Annotated[float, Gt(0), Le(MOST_SECONDS), Doc("seconds for an actor to be ready")] = 180.0
    block_timeout: Annotated[float, Gt(0), Le(MOST_SECONDS), Doc("seconds for an actor to give something back")] = (
        1800.0
    )
    round_timeout: Annotated[
        float | None,
        Gt(0),
        Le(MOST_SECONDS),
        Doc("seconds for a round and what is due after it"),
        Neutral(None, "is no limit"),
    ] = None
    retries: Annotated[int, Ge(0), Doc("times that a block is run again after its actor died")] = 3
    mixed_hardware: Annotated[
        bool,
        Doc("allow actors that compute different bits; marks the result, which is not shared"),
        Neutral(False, "refuses them"),
    ] = False

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
        for field in ("tf32", "autocast"):
            require(
                self.precision == "float32" or getattr(self, field) == NEUTRAL[field],
                field,
                getattr(self, field),
                f"computes in less than float32, and execution.precision={self.precision} asks for more",
                "leave it out, or set execution.precision=float32",
            )
        require(
            not self.compiled or self.executor == "block_graph",
            "compiled",
            self.compiled,
            f"is for captured steps of several clients, and execution.executor is {self.executor}",
            "set execution.executor=block_graph, or leave it out",
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
            f"set execution.block to {self.lanes} or more, or leave it out",
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

    def identity(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return what changes bits, of the section as it is written."""
        values = {field: written[field] for field in IDENTITY if written[field] != NEUTRAL.get(field)}
        if self.executor in CLIENT_BY_CLIENT:  # then blocks change none; the digests of before they did not are kept
            values["block"] = "auto"
        return values

    def resolve(self, models: Sequence[ModelSpec], batch_sizes: Sequence[int | Literal["full"]]) -> Execution:
        """Return the section with ``auto`` replaced by what it stands for on this machine; itself where nothing is.

        models: the clients' specifications. batch_sizes: of the run's stages. Raises
        :class:`~engine.base.errors.ConfigError` if the device that was found cannot do what is asked for.
        """
        device, executor = self.device, self.executor
        if device == "auto":
            cuda = self.gpus_per_actor > 0 or (self.actors == 0 and torch.cuda.is_available())
            device = "cuda" if cuda else "cpu"
        lanes = {}
        if executor == "auto":
            executor = default_executor(models, batch_sizes, device)
            count = default_lanes(models) if executor == "graph" and self.actors == 0 else 1
            if count > 1 and self.block == "auto":
                lanes = {"block": count, "lanes": count}
        if (device, executor) == (self.device, self.executor):
            return self
        resolved = self.model_copy(update={"device": device, "executor": executor, **lanes})
        try:
            resolved._check_device()
        except ConfigError as error:
            raise error.under("execution") from None
        return resolved


def check_share(execution: Execution) -> None:
    """Refuse a share of a GPU that nothing would compute on: asked for where a run begins, since old ones are read."""
    require(
        execution.device != "cpu" or execution.gpus_per_actor == 0,
        "execution.gpus_per_actor",
        execution.gpus_per_actor,
        "would keep a GPU from others, and execution.device is cpu",
        "set execution.gpus_per_actor=0, or leave execution.device out",
    )


def no_gpu(execution: Execution) -> ConfigError:
    """Return the error for a machine without a GPU, which names the field that asked for one."""
    field = "gpus_per_actor" if execution.gpus_per_actor else "device"
    return ConfigError(
        f"execution.{field}",
        getattr(execution, field),
        "needs a GPU and there is none",
        "set execution.gpus_per_actor=0 execution.device=cpu",
    )
