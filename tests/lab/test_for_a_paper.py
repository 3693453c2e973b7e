"""Whom to cite for a folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import engine
from engine.base import own_modules
from engine.base.errors import RunFolderError
from engine.experiment import CHOICES, Experiment
from fedskew.lab.paper import citations
from fedskew.lab.paper.citations import references
from tests.support import own_prox
from tests.support.command_line import fedskew
from tests.support.report_pages import CLAIMS as SOME_CLAIMS
from tests.support.report_pages import TABLE, small
from tests.support.sweep_folders import BASE, make_run

pytestmark = pytest.mark.slow

ENTRIES, SOURCES = references()
CLAIMS, RANKS = SOURCES["statistics", "verdicts"], SOURCES["statistics", "ranks"]


def parsed(text: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Entries of BibTeX by key: type and fields; fails on what is neither an entry nor a comment."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    rest = "\n".join(line for line in text.splitlines() if not line.startswith("%")).strip()
    while rest:
        head = re.match(r"@(\w+)\{([A-Za-z0-9]+),\s*", rest)
        assert head, rest[:80]
        rest, fields = rest[head.end() :], dict[str, str]()
        while not rest.startswith("}"):
            name = re.match(r"(\w+)\s*=\s*\{", rest)
            assert name, rest[:80]
            depth, end = 1, name.end()
            while depth:
                depth += {"{": 1, "}": -1}.get(rest[end], 0)
                end += 1
            assert name[1] not in fields, (head[2], name[1])
            fields[name[1]] = rest[name.end() : end - 1]
            rest = rest[end:].lstrip(",").lstrip()
        assert head[2] not in found, head[2]
        found[head[2]], rest = (head[1], fields), rest[1:].lstrip()
    return found


def test_every_entry_is_whole() -> None:
    """Kills: an entry that BibTeX refuses, two of one key, a title that loses its capitals, a wrong kind of number."""
    made = parsed("\n".join(ENTRIES.values()))
    assert list(made) == list(ENTRIES) == sorted(ENTRIES)
    where = {"inproceedings": "booktitle", "article": "journal", "techreport": "institution", "misc": "year"}
    for key, (kind, fields) in made.items():
        assert {"title", "year", where[kind]} <= set(fields) and "cited_for" not in fields, key
        assert re.fullmatch(r"\{.+\}", fields["title"]) and re.fullmatch(r"(19|20)\d\d", fields["year"]), key
        assert "author" in fields or key == "cbfl2023"  # whose authors are not recorded here
        assert re.fullmatch(r"\d{4}\.\d{4,5}", fields.get("eprint", "0000.00000")), key
        assert ("eprint" in fields) == ("archiveprefix" in fields), key
        surname = re.sub(r"\\.|[^A-Za-z]", "", fields.get("author", key).partition(",")[0]).lower()
        assert key.startswith(surname) or key == "cbfl2023", key
    assert {key for keys in SOURCES.values() for key in keys} == set(ENTRIES)


@pytest.mark.parametrize("section", ["algorithm", "data", "partition", "model"])
def test_everything_that_has_a_name_has_a_source(section: str) -> None:
    """Kills: a method, data set, partition or architecture that nobody would cite; a line for one that is gone."""
    assert {name for place, name in SOURCES if place == section} == set(CHOICES[section])


@pytest.mark.parametrize("name", ["fedavg", "ccvr", "ditto", "fedper", "scaffold", "pflego", "fedrep", "moon"])
def test_sources_are_those_that_the_methods_name(name: str) -> None:
    """Kills: the entry of another paper: each names the arXiv number that its module does."""
    import importlib

    number = re.search(r"arXiv:\s*(\d{4}\.\d{5})", importlib.import_module(f"algorithms.{name}").__doc__ or "")
    assert number is not None
    assert f"eprint = {{{number[1]}}}" in ENTRIES[SOURCES["algorithm", name][0]]


STAGES = [
    {"name": "train", "rounds": 2, "algorithm": {"name": "fedprox", "mu": 0.1}},
    {"name": "calibrate", "rounds": 0, "needs": ["train"], "algorithm": {"name": "ccvr"}},
]


def test_a_sweep_cites_what_its_trials_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kills: what the base has and no trial; a later stage left out; an entry twice; no word of what has no source."""
    fields = {"claims": SOME_CLAIMS[:1], "tables": [TABLE]}
    axis = {"name": "alpha", "key": "partition.alpha", "kind": "grid", "values": [0.1, 0.5], "log": False}
    made = small(tmp_path / "sweep", base={"stages": STAGES}, axes=(axis,), rounds=2, **fields)
    text = citations(made)
    keys = list(parsed(text))
    wanted = ["fedskew", "li2020federated", "luo2021no", "xiao2017fashion", "yurochkin2019bayesian"]
    assert keys == [*wanted, "mcmahan2017communication", *CLAIMS, *RANKS]
    assert "% algorithm ccvr: luo2021no\n" in text and f"version = {{{engine.__version__}}}" in text
    path = made / "trials" / "00001" / "experiment.yaml"
    changed = yaml.safe_load(path.read_text())
    changed["stages"][0]["algorithm"]["name"] = "mine"
    changed["partition"]["name"] = "iid"
    path.write_text(yaml.safe_dump(changed))
    (made / "trials" / "00002" / "experiment.yaml").write_text("[")
    text = citations(made)
    assert "% algorithm mine: no entry here\n" in text and "% partition iid: nothing to cite\n" in text
    code, out, _ = fedskew(monkeypatch, capsys, "cite", str(made))
    assert code == 0 and out.strip() == text.strip()
    with pytest.raises(RunFolderError, match="no experiment to cite for"):
        citations(tmp_path)


OWN_METHOD = r'''
r"""A method.

@article{nobody2026of,
  author = {N{\"o}body, Ann},
  title = {{Of the module}},
}
"""
import fedskew
from dataclasses import dataclass

@fedskew.algorithm("of_the_class")
@dataclass(frozen=True)
class OfTheClass(fedskew.FedAvg):
    r"""The same, better.

    @misc{nobody2027better,
      title = {{Of the {class}}},
      year = {2027},
    }

    @article{mcmahan2017communication, title = {{Another}}}
    """

@fedskew.algorithm("of_the_module")
@dataclass(frozen=True)
class OfTheModule(OfTheClass):
    mu: float = 0.0
'''


def test_a_part_of_ones_own_brings_its_bibtex(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kills: an entry of the class it derives from, or of the module beside its own; a key for two papers; an entry cut
    off at its first brace; a part that is not known here and of which nobody says how it is given."""
    known = ENTRIES["mcmahan2017communication"].strip()
    own = OWN_METHOD.replace("@article{mcmahan2017communication, title = {{Another}}}", known.replace("\n", "\n    "))

    def cite(name: str, text: str, given: bool = True) -> tuple[int, str, str]:
        (tmp_path / "mine.py").write_text(text)
        with own_prox.forgotten():
            own_modules.import_file(tmp_path / "mine.py", "--with")
            algorithm = {"name": name}
            run = make_run(
                tmp_path / name, Experiment(**BASE | {"algorithm": algorithm, "rounds": 2}), client_rows=False
            )
        with own_prox.forgotten():
            words = ["--with", str(tmp_path / "mine.py")] if given else []
            return fedskew(monkeypatch, capsys, "cite", str(run), *words)

    code, out, err = cite("of_the_class", own)
    assert code == 0, err
    made = parsed(out)
    assert "% algorithm of_the_class: nobody2027better, mcmahan2017communication\n" in out
    assert made["nobody2027better"] == ("misc", {"title": "{Of the {class}}", "year": "2027"})
    assert "nobody2026of" not in made and f"\n{known}\n" in out
    made = parsed(cite("of_the_module", own)[1])
    assert made["nobody2026of"][1]["author"] == r"N{\"o}body, Ann" and "nobody2027better" not in made

    code, out, _ = cite("of_the_class", own, given=False)
    told = f"algorithm 'of_the_class' came from {tmp_path / 'mine.py'} and is not known here; give its file: --with"
    assert code == 0 and f"% algorithm of_the_class: no entry here ({told} {tmp_path / 'mine.py'})\n" in out
    code, _, err = cite("of_the_class", OWN_METHOD)
    assert code == 2 and "brings an entry mcmahan2017communication, which is another one's key here" in err
    code, _, err = cite("of_the_class", own.replace("{{Of the {class}}}", "{{Of the {class}}"))
    assert code == 2 and "brings the entry nobody2027better, whose braces do not close; close them" in err


def test_a_run_cites_its_servers_optimizer(tmp_path: Path) -> None:
    """Kills: Adam on the server without its paper; statistics of claims for a run that has none."""
    algorithm = {"name": "pflego", "server_optimizer": "adam"}
    run = make_run(tmp_path / "run", Experiment(**BASE | {"algorithm": algorithm, "rounds": 2}))
    keys = list(parsed(citations(run)))
    assert keys[:3] == ["fedskew", "nikoloutsopoulos2022personalized", "reddi2021adaptive"]
    assert not set(CLAIMS) & set(keys)


def test_citation_file_of_fedskew() -> None:
    """Kills: a version left behind, a field that CFF 1.2.0 requires left out, a license other than the package's."""
    root = Path(__file__).parents[2]
    cff = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    assert cff["cff-version"] == "1.2.0" and {"message", "title", "authors"} <= set(cff)
    assert all("name" in one or "family-names" in one for one in cff["authors"])
    assert cff["version"] == engine.__version__
    assert f'license = "{cff["license"]}"' in (root / "pyproject.toml").read_text(encoding="utf-8")
