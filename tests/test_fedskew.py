"""What users import: all of it, typed, and nothing before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedskew

ROOT = Path(__file__).parents[1]
NAMES = """
Algorithm Asha Assignment Batch Claim Client Clients Cohort Compute ConfigError Context Dataset Entries Entry Experiment
FedAvg FedskewError Frames Generative Kind Local LocalRun Model ModelSpec ModelState Net Optuna PaperTable ParamLayout
Partition Pbt Personalised Phase PhaseResult Pooled PostTraining Requires Results Run RunFolder Scalar Setting Source
Split Sweep Tensors TrainingTools Tuned __version__ algorithm dataset idle_when load_results model partition require
resume run split_model sweep
"""


def test_the_names_are_these() -> None:
    """Kills: a name that goes without a word, or comes in by accident; one that cannot be loaded."""
    assert fedskew.__all__ == sorted(NAMES.split()) == dir(fedskew) == sorted(fedskew._PLACE_OF)
    assert all(getattr(fedskew, name) is not None for name in fedskew.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Experimant'"):
        _ = fedskew.Experimant  # type: ignore[attr-defined]


def test_the_types_are_of_the_same_places() -> None:
    """Kills: a checker that sees another class than the one that is loaded."""
    tree = ast.parse((ROOT / "fedskew" / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    typed = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == fedskew._PLACE_OF


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # -E: without tests/support/startup, whose stub would hide what is imported.
    return subprocess.run([sys.executable, "-E", "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def test_nothing_is_imported_before_it_is_used(tmp_path: Path) -> None:
    """Kills: seconds of torch and Ray for a name; Ray for an experiment or a run in process; torch's compiler, a second
    and a half, for a run, which the first operation on the meta device imports; pandas for its modules."""
    code = f"""
import sys
sys.path.insert(1, {str(ROOT)!r})
import fedskew
light = [name for name in ("torch", "ray", "pandas", "engine") if name in sys.modules]
from fedskew import Experiment, Run, algorithm
early = [name for name in ("pandas", "ray") if name in sys.modules]
data = {{"name": "fashion_mnist_sample", "train_samples": 200, "test_samples": 50}}
experiment = Experiment(rounds=1, data=data, execution={{"actors": 0, "device": "cpu"}})
Run.open(experiment, "run").advance()
from fedskew import load_results
unused = ("ray", "torch._dynamo", "sympy", "scipy.stats", "matplotlib", "fedskew.trackers")
late = [name for name in unused if name in sys.modules]
print(light, early, late)
"""
    assert python(code, tmp_path).stdout.split("\n")[0] == "[] [] []"


@pytest.mark.parametrize("name", ["engine", "algorithms", "tune_configs"])
@pytest.mark.parametrize("form", ["package", "folder", "file"])
def test_what_hides_ours_is_named(tmp_path: Path, name: str, form: str) -> None:
    """Kills: an ImportError deep inside the engine, for a folder beside one's script."""
    if form == "file":
        (tmp_path / f"{name}.py").write_text("")
    else:
        (tmp_path / name).mkdir()
    if form == "package":
        (tmp_path / name / "__init__.py").write_text("")
    code = f"import sys\nsys.path.append({str(ROOT)!r})\nsys.path.insert(0, {str(tmp_path)!r})\nimport fedskew\n"
    said = python(code, tmp_path).stderr
    if form == "folder":  # Python takes a package before it, wherever that is
        assert said == ""
        return
    assert f"hides fedskew's own package '{name}' ({ROOT / name}); rename yours" in said.splitlines()[-1]
    assert str(tmp_path / name) in said.splitlines()[-1]
