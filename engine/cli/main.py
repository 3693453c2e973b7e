"""The entry point of ``fedskew``: its commands in the order of ``--help``, and how a failure is told."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer
from rich.logging import RichHandler

from engine import __version__
from engine.base.errors import FedskewError, one_line
from engine.cli import doctor, listing, run, studies, sweep
from engine.cli.show import console
from engine.cli.tracebacks import unforeseen

app = typer.Typer(
    help="Federated learning under label skew, simulated on Ray, equal to the bit on any number of actors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run_command)
app.command("sweep")(sweep.sweep_command)
app.command("resume")(run.resume_command)
app.command("report")(sweep.report_command)
app.command("floor")(studies.floor_command)
app.command("tune-executor")(studies.tune_executor_command)
app.command("diagnose")(studies.diagnose_command)
app.command("embed")(studies.embed_command)
app.command("images")(studies.images_command)
app.command("scale")(studies.scale_command)
app.command("list")(listing.list_command)
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
    try:
        app()
    except Exception as raised:
        error = raised if isinstance(raised, FedskewError) else unforeseen(raised)
        console.print("error:", style="bold red", end=" ")
        console.print(one_line(str(error)), highlight=False, soft_wrap=True, markup=False)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)


if __name__ == "__main__":
    main()
