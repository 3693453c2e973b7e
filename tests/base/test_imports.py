"""Processes import without the collector, and have it afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from engine.base.imports import uncollected

# Ray's workers have imported ray before they see a trial.
CODE = """
import gc, sys, ray
looked = []
gc.callbacks.append(lambda phase, about: looked.append(phase))
import engine.sweeps.trial
assert "torch" in sys.modules and gc.isenabled(), "the collector is left off"
print(len(looked))
"""


def test_a_trial_imports_without_the_collector() -> None:
    """Kills: heavy modules imported before it is off, or outside of it; a collector that stays off."""
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert int(said.stdout) < 20, said.stdout  # some hundred else


def test_the_collector_stays_as_it_was() -> None:
    """Kills: a collector that is switched on for who had it off, or left off by an import that fails."""
    with pytest.raises(ImportError), uncollected():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
