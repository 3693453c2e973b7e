"""How a command ends that is stopped, or comes to the end of a file."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from fedskew.cli import stopping
from tests.support.command_line import fedskew


def test_a_terminal_that_is_gone_is_written_to_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a closed window that makes an error of each line, and exit code 1 in place of 129."""
    window, terminal = os.openpty()
    os.close(window)
    with open(terminal, "w", encoding="utf-8") as lost:
        with pytest.raises(OSError, match="Input/output error"):
            os.write(terminal, b"stopped")
        monkeypatch.setattr(stopping, "console", SimpleNamespace(file=lost))
        monkeypatch.setattr(sys, "stdout", lost)
        stopping._do_without_a_lost_terminal()
        print("stopped", flush=True)


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [(EOFError("cut off"), 1, "error: EOFError: cut off"), (KeyboardInterrupt(), 130, "stopped")],
)
def test_a_sentence_is_ours_and_not_typers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, told: str
) -> None:
    """Kills: "Aborted!" for a file that ends too early, and for a command that was stopped nothing at all."""

    def raises(*_: object) -> None:
        raise raised

    monkeypatch.setattr("fedskew.cli.listing.plain_console", raises)
    found, _, err = fedskew(monkeypatch, capsys, "list")
    assert found == code and err.startswith(told) and "Abort" not in err
