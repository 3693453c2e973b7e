"""What users import: all of it, typed, and nothing before it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fedskew
from fedskew.lazy import places

ROOT = Path(__file__).parents[1]
FACE = """
Algorithm Asha Claim ConfigError Devices Experiment FedAvg FedskewError Optuna Pbt Phase Run Sweep Tuned __version__
algorithm dataset idle_when load_results metric model partition require resume run sweep tune_results
"""
CONTRACT = """
AdvancedHooks Algorithm Assignment Batch Client ClientView Clients Cohort Compute ConfigError Context Dataset Doc
Entries Entry Ge Generative Gt Kind Le Local LocalRun Lt Merge Model ModelSpec ModelState Net Neutral ParamLayout
Partition Personalised Phase PhaseResult PlannedStage Pooled PostTraining Requires Scalar Setting Source Split
Statistics Tensors Traffic TrainingTools idle_when require split_model
"""
RESULTS = "Claim Frames PaperTable Results RunFolder load_results"


def test_the_names_are_these() -> None:
    """Kills: a name that goes without a word, comes in by accident, or cannot be loaded; one that has moved and does
    not say where."""
    modules = {fedskew: FACE, fedskew.contract: CONTRACT, fedskew.results: RESULTS}
    for module, names in modules.items():
        assert module.__all__ == sorted(names.split()) == dir(module) == sorted(places(str(module.__file__)))
        assert all(getattr(module, name) is not None for name in module.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'Experimant'"):
            _ = module.Experimant  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match=r"^fedskew\.LocalRun is fedskew\.contract\.LocalRun now$"):
        from fedskew import LocalRun  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(ImportError, match=r"^fedskew\.Frames is fedskew\.results\.Frames now$"):
        _ = fedskew.Frames  # type: ignore[attr-defined]


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
