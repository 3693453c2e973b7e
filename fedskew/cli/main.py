"""The entry point of ``fedskew``: its commands in the order of ``--help``, and how a failure is told."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Annotated, Any

import typer
from rich.logging import RichHandler
from rich.text import Text
from typer.core import TyperGroup

from engine import __version__
from engine.base import last_word
from engine.base.errors import FedskewError, one_line
from fedskew.cli import (
    claims,
    doctor,
    export,
    json_output,
    listing,
    own,
    paper,
    results,
    run,
    schema,
    stopping,
    studies,
    sweep,
)
from fedskew.cli.show import console, leave_streams_to_ray
from fedskew.cli.tracebacks import unforeseen


class _Commands(TyperGroup):
    """The commands; typer takes an EOFError for the end of typed input, says "Aborted", and ends with 1."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.with_resource(json_output.alone_on_stdout(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise unforeseen(error) from error
        except KeyboardInterrupt:
            sys.exit(_stopped(stopping.exit_code()))
        except Exception as error:
            if callable(told := getattr(error, "format_message", None)):  # of the parser: wrong words
                json_output.print_ended("Usage", str(told()), getattr(error, "exit_code", 2))
            raise


app = typer.Typer(
    cls=_Commands,
    help="Federated learning under label skew, simulated on Ray, equal to the bit on any number of actors.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run_command)
app.command("sweep")(sweep.sweep_command)
app.command("resume")(run.resume_command)
app.command("report")(sweep.report_command)
app.command("cite")(paper.cite_command)
app.command("export")(export.export_command)
app.command("claims")(claims.claims_command)
app.command("query")(results.query_command)
app.command("compare")(results.compare_command)
app.command("merge")(results.merge_command)
app.command("leaderboard")(results.leaderboard_command)
app.command("floor")(studies.floor_command)
app.command("tune-executor")(studies.tune_executor_command)
app.command("diagnose")(studies.diagnose_command)
app.command("embed")(studies.embed_command)
app.command("images")(studies.images_command)
app.command("scale")(studies.scale_command)
app.command("check")(own.check_command)
app.command("new")(own.new_command)
app.command("list")(listing.list_command)
app.command("schema")(schema.schema_command)
app.command("doctor")(doctor.doctor_command)


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
    last_word.before_ray[:] = [leave_streams_to_ray]
    with stopping.listening():
        _run()


def _run() -> None:
    """Run the command, and say how it ended."""
    try:
        app()
    except Exception as raised:
        error = raised if isinstance(raised, FedskewError) else unforeseen(raised)
        sentence, parts = one_line(str(error)), json_output.error_parts(error)
        if not last_word.failed(sentence, parts):
            console.print(Text.assemble(("error:", "bold red"), f" {sentence}"), soft_wrap=True)
            json_output.print_error(parts)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(_stopped(stopping.exit_code()))
    except SystemExit as exit:
        if exit.code == signal.SIGTERM:  # by Ray, while it starts
            sys.exit(_stopped(128 + signal.SIGTERM))
        raise


def _stopped(code: int) -> int:
    told = "; ".join(["stopped", *filter(None, [last_word.how_to_go_on()])])
    console.print(told, highlight=False, soft_wrap=True)
    json_output.print_ended("Stopped", told, code)
    return code


if __name__ == "__main__":
    main()
