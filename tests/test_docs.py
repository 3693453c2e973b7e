"""What the documentation says about the config, against the config."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from docs.site import config_keys
from engine.algorithm import Kind
from engine.experiment import CHOICES, IDENTITY, SECTIONS, Experiment, keys
from fedskew.testing.checks import CHECKS
from tune_configs import SWEEPS

PAGE = (Path(__file__).parents[1] / "docs" / "config.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The rows of the table below a heading, without its head."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_the_table_of_keys_is_todays() -> None:
    """Kills: a page with a default, a range or a meaning that the code no longer has."""
    assert config_keys.page() == PAGE, "python -m docs.site.config_keys"


def test_the_table_has_every_key() -> None:
    """Kills: a key without a line, or a line for a key that is gone; a line that does not say what the key is."""
    rows = table("Keys")
    assert {row[0].strip("`") for row in rows} == set(keys())
    assert all(len(row) == 6 and row[2] and row[3] and row[5] for row in rows)
    assert ["`algorithm.mu`", "fedprox", "number >= 0", "0.01", "0 is FedAvg", "weight of the proximal term"] in rows
    clients = next(row for row in rows if row[0] == "`partition.clients`")
    assert clients[3] == "100; class_sets: 5"


def test_the_example_of_stages_is_a_config() -> None:
    """Kills: an example that does not run; rounds and rates that the text gets wrong."""
    stages, schedule = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = Experiment.from_mapping(yaml.safe_load(stages))
    changing = Experiment.from_mapping({**yaml.safe_load(schedule), "rounds": 30})
    assert [changing.chain[0].at(round).local.lr for round in (10, 11, 21)] == [0.05, 0.05, 0.02]
    assert [changing.at(round).algorithm.server_lr for round in (20, 21)] == [1, 0.5]
    warm_up, prox = config.chain
    assert (warm_up.rounds, prox.rounds, prox.needs) == (70, 30, ("warm-up",))
    assert prox.local.lr_at(71) == 0.05 * 0.996**70
    assert prox.local.momentum == 0.9


def test_the_example_of_many_clients_is_a_config() -> None:
    """Kills: an example that the engine would refuse, or that keeps all states in memory."""
    page = (Path(__file__).parents[1] / "docs" / "many_clients.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    config = Experiment.from_mapping(yaml.safe_load(example))
    assert config.partition.clients == 100_000
    assert config.execution.state_store == "disk"


def test_keys_named_anywhere_on_the_page_exist() -> None:
    """Kills: a key in the table of symbols, or in the text, that is none."""
    sections = "|".join([*CHOICES, *SECTIONS])
    named = set(re.findall(rf"`((?:{sections})\.[a-z0-9_]+)", PAGE))
    assert named - {"contract.md"} <= set(keys())


def test_what_is_said_to_be_hashed_is() -> None:
    """Kills: a key that moved into the digest or out of it without a word."""
    (_, _, _, inside) = (row[0] for row in table("What identifies a run"))
    assert set(re.findall(r"`execution\.(\w+)`", inside)) == set(IDENTITY)
    identity = Experiment().identity()
    assert "evaluation" in identity
    assert not {"name", "checkpoint"} & set(identity)


def test_every_symbol_has_its_key() -> None:
    """Kills: a paper's symbol that nobody can set."""
    assert all(len(row) == 3 and row[2] for row in table("Symbols of the papers"))


def test_the_contract_tells_every_kind_of_entry() -> None:
    """Kills: a kind that authors do not find, or take for another."""
    page = (Path(__file__).parents[1] / "docs" / "contract.md").read_text(encoding="utf-8")
    kinds = page.split("| kind | shape |")[1].split("\n\n")[0]
    named = [name for row in kinds.splitlines()[2:] for name in re.findall(r"`([A-Z_]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(kind.name for kind in Kind)


def test_what_the_audited_page_names_is_there() -> None:
    """Kills: a sweep or a file that was renamed, where a reader is sent to look; a finding of which nothing is said."""
    root = Path(__file__).parents[1]
    page = (root / "docs" / "audited.md").read_text(encoding="utf-8")
    sweeps = re.findall(rf"`((?:{'|'.join(SWEEPS)})\.\w+)`", page)
    files = re.findall(r"`((?:algorithms|tune_configs|benchmarks)/[\w/]+\.\w+)`", page)
    assert len(set(sweeps)) > 20 and len(set(files)) > 8
    assert {*sweeps} <= {f"{module}.{name}" for module, names in SWEEPS.items() for name in names}
    assert all((root / path).exists() for path in files)
    rows = [line for line in page.splitlines() if line.startswith("| ") and line != "| found | now |"]
    assert len(rows) > 50
    assert all(line.count(" | ") == 1 and re.search(r"\*\*(Mended|Answered)\*\*", line) for line in rows)


def test_every_check_of_own_parts_is_on_its_page() -> None:
    """Kills: a check that nobody can look up; a row for one that is gone."""
    page = (Path(__file__).parents[1] / "docs" / "own_parts.md").read_text(encoding="utf-8")
    section = page.split("\n### Algorithms\n")[1]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert named == [check.name for of in ("algorithm", "model", "data", "partition") for check in CHECKS[of]]


def test_the_hashes_of_own_parts_are_those_measured() -> None:
    """Kills: a table that no measurement gave; doors whose bits differ from the built-in's, told as equal."""
    root = Path(__file__).parents[1]
    rows = json.loads((root / "benchmarks" / "results" / "own_parts.json").read_text(encoding="utf-8"))
    lines = (root / "docs" / "own_parts.md").read_text(encoding="utf-8").splitlines()
    for door, row in rows.items():
        name = "the built-in" if door == "twin" else door
        (line,) = [line for line in lines if line.startswith(f"| {name} |") and row["0 actors"][:8] in line]
        alone = [row["2 actors"], *row["sweep"], row.get("two nodes", ""), *row.get("asha", ()), *row.get("optuna", ())]
        assert re.findall(r"\b[0-9a-f]{8}\b", line) == [text[:8] for text in alone if text]
        assert row["0 actors"] == row["2 actors"]
        assert ("| 3 of 3 |" in line) == (row.get("pbt") == "3 of 3 trials are the twin's run of their schedules")


def test_the_tests_of_tunes_traps_are_there() -> None:
    """Kills: a promise on the page whose test was renamed or never written."""
    root = Path(__file__).parents[1]
    page = (root / "docs" / "ray_tune.md").read_text(encoding="utf-8")
    written = "".join(path.read_text(encoding="utf-8") for path in (root / "tests" / "sweeps").glob("*.py"))
    named = re.findall(r"`(test_\w+)`", page)
    assert len(named) > 7 and all(f"def {name}(" in written for name in named)
