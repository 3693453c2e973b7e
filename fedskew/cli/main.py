"""The commands of ``fedskew`` in the order and the groups of ``--help``, and what is said when one fails."""

from __future__ import annotations

import functools
import inspect
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.logging import RichHandler
from rich.text import Text
from typer.core import TyperGroup

from engine import __version__
from engine.base.errors import FedskewError, one_line
from engine.base.part_calls import staying
from fedskew.cli import (
    board,
    child,
    claims,
    diagnose,
    doctor,
    listing,
    output,
    parts,
    results,
    run,
    schema,
    studies,
    sweep,
)
from fedskew.cli.naming import With, meant_by_option
from fedskew.cli.output import Json, console, unforeseen

# Group -> command, what it does, an example.
COMMANDS: dict[str, tuple[tuple[str, Callable[..., None], str], ...]] = {
    "Run": (
        ("run", run.run_command, "run algorithm.name=fedprox algorithm.mu=0.1 rounds=20"),
        ("sweep", sweep.sweep_command, "sweep drift.fedprox_mu"),
        ("resume", run.resume_command, "resume runs/quickstart-0123456789ab"),
    ),
    "Results": (
        ("report", results.report_command, "report runs/SWEEP"),
        ("cite", results.cite_command, "cite runs/SWEEP > methods.bib"),
        ("export", results.export_command, "export runs/SWEEP --to csv"),
        ("claims", claims.claims_command, "claims ccvr.main"),
        ("query", results.query_command, 'query runs/* "select mu, avg(accuracy) from trials group by mu"'),
        ("compare", results.compare_command, "compare runs/FIRST runs/SECOND"),
        ("merge", results.merge_command, "merge runs/whole runs/half-1 runs/half-2"),
        ("leaderboard", results.leaderboard_command, "leaderboard runs/*"),
        ("diagnose", diagnose.diagnose_command, "diagnose runs/RUN --round 5"),
        ("embed", diagnose.embed_command, "embed runs/RUN"),
        ("images", diagnose.images_command, "images runs/RUN"),
    ),
    "Write a method": (
        ("new", parts.new_command, "new algorithm my_prox"),
        ("check", parts.check_command, "check my_prox.py"),
        ("board", board.board_command, "board my_prox.py"),
        ("list", listing.list_command, "list algorithms"),
        ("schema", schema.schema_command, "schema > experiment.schema.json"),
    ),
    "Machine": (
        ("doctor", doctor.doctor_command, "doctor"),
        ("floor", studies.floor_command, "floor model.name=cnn --layers"),
        ("tune-executor", studies.tune_executor_command, "tune-executor mine.yaml"),
        ("scale", studies.scale_command, "scale --actors 0,1,2"),
    ),
}


class _Commands(TyperGroup):
    """The commands; typer takes an EOFError for the end of typed input, says "Aborted", and ends with 1."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.obj = [*" ".join(args).replace("=", " ").split(" "), "..."]
        ctx.with_resource(output.alone_on_stdout(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise unforeseen(error) from error
        except KeyboardInterrupt:
            sys.exit(_stopped(child.stop_code()))
        except Exception as error:
            self._name_key(error, ctx.obj)
            if callable(sentence := getattr(error, "format_message", None)):  # of the parser: wrong words
                output.print_ended("Usage", str(sentence()), getattr(error, "exit_code", 2))
            raise

    @staticmethod
    def _name_key(error: Any, words: list[str]) -> None:
        """Add to the parser's sentence of an option that is none the key that may have been meant."""
        command, option = getattr(getattr(error, "ctx", None), "command", None), getattr(error, "option_name", None)
        if option in words and any(one.name in ("what", "overrides") for one in getattr(command, "params", ())):
            repair = meant_by_option(option, words[words.index(option) + 1])
            if repair:
                error.message, error.possibilities = f"{error.message}; {repair}", None


app = typer.Typer(
    cls=_Commands,
    help="Federated learning under label skew, simulated on Ray, equal to the bit on any number of actors.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--json`` and ``--with``, which every one has; it asks ``output.json_wanted``."""

    @functools.wraps(command)
    def wrapped(as_json: bool = False, own: list[Path] | None = None, **words: Any) -> None:
        with staying("code of your own"):
            command(**words)

    signature = inspect.signature(command, eval_str=True)
    shared = inspect.signature(wrapped, follow_wrapped=False).parameters
    added = [shared["as_json"].replace(annotation=Json), shared["own"].replace(annotation=With)]
    signature = signature.replace(parameters=[*signature.parameters.values(), *added])
    vars(wrapped)["__signature__"] = signature
    wrapped.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
    return wrapped


for _group, _commands in COMMANDS.items():
    for _name, _command, _example in _commands:
        _add = app.command(_name, rich_help_panel=_group, epilog=f"Example: fedskew {_example}")
        _add(_with_shared_options(_command))


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command that was typed; errors that are the user's to repair end in one sentence and their exit code."""
    log = logging.getLogger("fedskew")
    if not any(isinstance(handler, RichHandler) for handler in log.handlers):
        log.addHandler(RichHandler(console=console, show_time=False, show_path=False, level=logging.WARNING))
    logging.getLogger("matplotlib").setLevel(
        logging.ERROR
    )  # it warns of a home folder that is not ours, and does without
    with child.stopping():
        _run()


def _run() -> None:
    """Run the command, and say how it ended."""
    try:
        app(prog_name="fedskew")  # by which the scripts of shells ask what completes a word
    except Exception as raised:
        error = raised if isinstance(raised, FedskewError) else unforeseen(raised)
        console.print(Text.assemble(("error:", "bold red"), f" {one_line(str(error))}"), soft_wrap=True)
        output.print_error(error)
        child.ended(error.exit_code)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(_stopped(child.stop_code()))
    except SystemExit as exit:
        if exit.code == signal.SIGTERM:  # by Ray, while it starts
            sys.exit(_stopped(128 + signal.SIGTERM))
        raise


def _stopped(code: int) -> int:
    if finished := child.what_is_finished():
        output.say(finished)
        return 0
    sentence = f"stopped; {child.how_to_go_on() or 'give the command again'}"
    output.say(sentence)
    output.print_ended("Stopped", sentence, code)
    return code


if __name__ == "__main__":
    main()
