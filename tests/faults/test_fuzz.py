"""The fuzzer's readers on their own seeds and on seeded damage to them; make chaos gives them more time."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import fuzz

pytestmark = pytest.mark.faults
READERS = fuzz.readers()
DAMAGED = 200  # inputs of each reader


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_read(name: str) -> None:
    """Kills: a seed that its reader refuses, so that nothing behind the refusal is ever reached."""
    for content in READERS[name].seeds:
        assert fuzz.tried(READERS[name], content) == ""


@pytest.mark.parametrize("name", READERS)
def test_damage_is_refused_or_read(name: str) -> None:
    """Kills: a reader that ends in another exception than a FedskewError."""
    rng = random.Random(name)
    for _ in range(DAMAGED):
        content = fuzz.mutated(READERS[name].seeds, rng)
        try:
            fuzz.tried(READERS[name], content)
        except Exception as error:
            error.add_note(f"of {content!r}")
            raise


def test_a_finding_is_kept_and_told(tmp_path: Path) -> None:
    """Kills: a fuzzer that finds nothing whatever happens."""
    pytest.importorskip("atheris")
    code = (
        "import sys; from tests.faults import fuzz\n"
        "def read(folder, content):\n    if content[:1] == b'x': raise ZeroDivisionError\n"
        "fuzz.readers = lambda: {'bad': fuzz.Reader('bad', read, (b'x',))}\n"
        "sys.exit(fuzz.main())\n"
    )
    findings = tmp_path / "findings"
    (findings / "bad").mkdir(parents=True)
    words = ["--child", "bad", "--findings", str(findings), "--", "-runs=200", "-seed=1", str(tmp_path)]
    (tmp_path / "seed").write_bytes(b"x")
    subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=False)
    [note] = [json.loads(line) for line in (findings / "bad" / fuzz.NOTES).read_text().splitlines()]
    assert note["error"].startswith("ZeroDivisionError")
    assert (findings / "bad" / note["inputs"][0]).read_bytes()[:1] == b"x"
