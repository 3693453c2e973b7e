"""Whose failure it is: a client's, which its experiment decides about, or the machine's, which never costs a client.

A client fails by what it computes, so it fails alike wherever it runs, and a run that leaves it out has the same bits
on any number of actors. Memory and disks are the machine's: such a failure ends the run, or moves the block elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from engine.base.errors import ClientError, FedskewError, MachineFailed, MemoryShort, RunError, UnkeyedDraw
from engine.client.steps.client_round import ClientResult, ClientTask

Attempted = ClientResult | ClientError
# In torch's messages of what is not a client's doing; its exceptions do not tell it apart.
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED", "bad_alloc")
OF_VMAP = ("vmap", "functorch", "Batching rule")
OF_DEVICE = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS", "cuDNN error")


def attempt(
    train: Callable[[Sequence[ClientTask]], Sequence[Attempted]], group: Sequence[ClientTask]
) -> list[Attempted]:
    """Return what each client of a group comes to: its result, or its error.

    Where something is raised in a pass of several, each is trained alone to find whose it is, and the others once more
    without it. What that comes to depends on the group alone.
    """
    try:
        return list(train(group))
    except ClientError as error:
        if len(group) == 1:
            return [error]
        raise
    except Exception as error:
        _pass_on(error, group)
        if len(group) == 1:
            return [_of_client(error, group[0])]
        alone = {task.number: attempt(train, [task])[0] for task in group}
        failed = {number: ended for number, ended in alone.items() if isinstance(ended, ClientError)}
        if not failed:
            raise RunError(
                f"{_members(group)} failed together, and none of them alone: {_in_one_line(error)}"
            ) from error
        rest = [task for task in group if task.number not in failed]
        again = iter(attempt(train, rest) if rest else ())
        return [failed[task.number] if task.number in failed else next(again) for task in group]


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Say what was done when something was raised that is not written for users."""
    try:
        yield
    except FedskewError:
        raise
    except Exception as error:
        kind = MemoryShort if is_of_memory(error) else RunError
        raise kind(f"{what}: {_in_one_line(error)}") from error


def _of_client(error: Exception, task: ClientTask) -> ClientError:
    number, round = task.number, task.context.round
    client_error = ClientError(f"client {number} failed in round {round}: {_in_one_line(error)}", number, round)
    client_error.__cause__ = error
    return client_error


def _pass_on(error: Exception, group: Sequence[ClientTask]) -> None:
    """Raise what is not of a client."""
    if is_of_memory(error):
        raise MemoryShort(f"{_members(group)} do not fit into a worker's memory: {_in_one_line(error)}") from error
    if isinstance(error, OSError) or (isinstance(error, RuntimeError) and _says(error, OF_DEVICE)):
        raise MachineFailed(f"{_members(group)}: a file or a device failed: {_in_one_line(error)}") from error
    if isinstance(error, RuntimeError) and str(error).startswith("vmap:") and "random" in str(error):
        raise UnkeyedDraw(
            f"{_members(group)}: {type(group[0].algorithm).__name__}, or a module of the network, draws random numbers "
            f"in a way that cannot be mapped over clients ({_first_sentence(error)}); a loss finds in batch.drawn what "
            "step_randomness has drawn from client.rng, a gradient draws nothing; where the network draws, set "
            "execution.executor=loop"
        ) from error
    if isinstance(error, RuntimeError) and _says(error, OF_VMAP):
        told = "the network or its loss cannot be computed for several clients in one pass"
        raise RunError(f"{_members(group)}: {told} ({_first_sentence(error)}); set execution.executor=loop") from error
    if isinstance(error, FedskewError):  # of the engine: a step that cannot be captured, for example
        raise error


def is_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a worker's memory did not do."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError | MemoryShort):
        return True
    return isinstance(error, RuntimeError) and _says(error, OUT_OF_MEMORY)


def _says(error: BaseException, texts: tuple[str, ...]) -> bool:
    return any(text in str(error) for text in texts)


def _members(group: Sequence[ClientTask]) -> str:
    return f"round {group[0].context.round}, clients " + ", ".join(str(task.number) for task in group)


def _first_sentence(error: Exception) -> str:
    return " ".join(str(error).split()).partition(". ")[0]


def _in_one_line(error: Exception) -> str:
    """Return an error in one line, with its type."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
