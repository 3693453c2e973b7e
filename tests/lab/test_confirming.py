"""The sweep of an entry of the ledger, to be computed again for one of its seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from engine.base.errors import ConfigError
from engine.sweeps.options import How
from fedskew.lab.ledger import read
from fedskew.lab.sweeping.confirming import again, spec_of
from fedskew.lab.tuned_sides import read as choices
from tune_configs import SWEEPS

LEDGER = Path(__file__).parents[2] / "docs" / "claims"


def test_one_seed_with_what_each_side_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: all seeds again; sides that are searched anew, or that have no choice; trials of other code found in the
    folder; the second best in the folder of the best."""
    monkeypatch.chdir(tmp_path)
    entry = read(LEDGER / "fedser.headline.laptop.yaml")
    named, folder = again(entry, How(), SWEEPS)
    values = yaml.safe_load((folder / "sweep.yaml").read_text())
    assert named.sweep.seeds == (0,) and values["seeds"] == [0]
    assert choices(folder) == entry.searched != ()
    assert folder.name.endswith(spec_of(named).sources()[:8])
    assert again(entry, How(), SWEEPS)[1] == folder  # it is gone on with
    second = replace(entry, definition={**entry.definition, "choice": "second-best"})
    other, place = again(second, How(), SWEEPS)
    assert (other.rank, place == folder) == (1, False)


def test_what_cannot_be_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a folder of one machine that is looked for on another; a side that gets what nobody chose."""
    monkeypatch.chdir(tmp_path)
    entry = read(LEDGER / "fedser.headline.laptop.yaml")
    with pytest.raises(ConfigError, match=r"was run with data\.root=FOLDER; run it again, and record it"):
        again(replace(entry, overrides=("data.root=FOLDER",)), How(), SWEEPS)
    before = replace(entry, definition={**entry.definition, "searched": []})
    with pytest.raises(ConfigError, match="does not say which candidates its sides had"):
        again(before, How(), SWEEPS)
