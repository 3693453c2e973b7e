"""What tells sweeps apart, and where they come from: digests, names of cells, users' files, overrides."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from ray import tune

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from algorithms.fedprox import FedProx
from engine.base.errors import ConfigError, RunFolderError
from engine.models import MODELS
from engine.results.claims import Claim
from engine.results.simulated_time import Devices
from engine.sweeps import running
from engine.sweeps.definition import Optuna, Pbt, Sweep
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.named import NamedSweep, load, named
from engine.sweeps.options import How
from engine.sweeps.planning import plan
from engine.sweeps.trial import Trial
from engine.sweeps.tuner import _Within
from fedskew.cli.naming import cell
from tests.support import small_sweeps
from tests.support.resumed import resume_sweep
from tests.support.small_sweeps import base
from tune_configs import SWEEPS

DIFFERENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"search": Optuna(), "space": {"mu": one}}, {"search": Optuna(), "space": {"mu": other}})
    for one, other in (
        (tune.uniform(0, 1), tune.uniform(0, 100)),
        (tune.uniform(0, 1), tune.quniform(0, 1, 0.1)),
        (tune.quniform(0, 1, 0.1), tune.quniform(0, 1, 0.2)),
        (tune.uniform(0.1, 1), tune.loguniform(0.1, 1)),
        (tune.uniform(0, 9), tune.randint(0, 9)),
        (tune.randn(0, 1), tune.randn(0, 2)),
        (tune.choice([0.0, 1.0]), tune.choice([0.0, 2.0])),
    )
]
DIFFERENT += [
    (
        {"search": Optuna(), "space": {"mu": tune.uniform(0, 1), "local.lr": 0.1}},
        {"search": Optuna(), "space": {"mu": tune.uniform(0, 1), "local.lr": 0.2}},
    ),
    (
        {"search": Optuna(), "space": {"mu": tune.uniform(0, 1), "E": tune.sample_from(lambda spec: 1)}},
        {"search": Optuna(), "space": {"mu": tune.uniform(0, 1), "E": tune.sample_from(lambda spec: 2)}},
    ),
    (
        {"scheduler": Pbt(2, {"mu": tune.uniform(0, 1)}), "space": {"mu": tune.choice([0.0, 1.0])}, "samples": 4},
        {"scheduler": Pbt(2, {"mu": tune.uniform(0, 9)}), "space": {"mu": tune.choice([0.0, 1.0])}, "samples": 4},
    ),
    (
        {"scheduler": Pbt(2, {"mu": tune.uniform(0, 1)}), "samples": 4},
        {"scheduler": Pbt(2, {"mu": tune.uniform(0, 1)}, quantile=0.5), "samples": 4},
    ),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_other_spaces_are_other_sweeps(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Kills: a changed space that goes on in the old folder, so that two spaces mix; a space that YAML cannot hold."""
    sweeps = [Sweep(**{"base": base(), "space": {}, **fields}) for fields in (one, one, other)]
    digests = [NamedSweep("made", "laptop", (), "made", sweep).digest for sweep in sweeps]
    assert digests[0] == digests[1] != digests[2]
    for sweep in sweeps:
        assert yaml.safe_load(yaml.safe_dump(sweep.to_mapping())) == sweep.to_mapping()


def test_lists_of_mutations_are_choices() -> None:
    """Kills: a list of mutations taken for a constant; a constant list taken for an axis."""
    fields: dict[str, Any] = {"space": {"model.hidden": [16]}, "samples": 6}
    sweep = Sweep(base(), scheduler=Pbt(2, {"local.batch_size": [8, 16]}), **fields)
    assert [axis["name"] for axis in sweep.axes()] == ["local.batch_size"]
    assert {trial.experiment.local.batch_size for trial in plan(sweep)} == {8, 16}
    assert {trial.experiment.value_of("model.hidden")[0] for trial in plan(sweep)} == {16}


def drawn(sweep: Sweep) -> list[tuple[int, int]]:
    """The seed of each trial, and that of its partition."""
    return [(trial.seed, trial.experiment.value_of("partition.seed")) for trial in plan(sweep)]


def test_a_seed_draws_its_own_partition() -> None:
    """Kills: one partition for all seeds, of which an interval says nothing; two of them in one comparison; a split of
    the source's that is drawn anew; a searcher's trial that has another partition than a planned one."""
    fields: dict[str, Any] = {"space": {"mu": tune.grid_search([0.0, 1.0])}, "seeds": (0, 3)}
    start = base().replace({"partition.seed": 40})
    assert drawn(Sweep(start, **fields)) == [(0, 40), (0, 40), (3, 43), (3, 43)]
    assert drawn(Sweep(start, **fields, partitions="one")) == [(0, 40), (0, 40), (3, 40), (3, 40)]
    whole = {"partition": tune.grid_search([{"name": "dirichlet", "clients": 8, "seed": 7}])}
    assert drawn(Sweep(start, whole, seeds=(0, 3))) == [(0, 7), (3, 10)]
    for partitions, seed in (("anew", 43), ("one", 40)):
        job: Any = SimpleNamespace(base=start, partitions=partitions)
        trial: Any = SimpleNamespace(_job=job, trial_name="00000", _record=TrialRecord("00000", {"mu": 0.5}, 3))
        assert Trial._experiment(trial).value_of("partition.seed") == seed


def test_a_seed_tests_on_its_own_rows() -> None:
    """Kills: one part of the test rows for all seeds, of which an interval says nothing; a part where none is asked
    for; two parts in one comparison."""
    fields: dict[str, Any] = {"space": {"mu": tune.grid_search([0.0, 1.0])}, "seeds": (0, 3)}
    for before, after in ((None, [None] * 4), (2, [2, 2, 5, 5])):
        for partitions in ("anew", "one"):
            start = base().replace({"data.test_samples": 20, "data.test_part": before})
            trials = plan(Sweep(start, **fields, partitions=partitions))
            assert [trial.experiment.data.test_part for trial in trials] == after
    start = base().replace({"data.test_samples": 20, "data.test_part": 0})
    with pytest.raises(ConfigError, match="tests on rows of its own"):
        Sweep(start, {"data.test_part": tune.grid_search([0, 1])})
    searched = Sweep(start, {"local.lr": tune.uniform(0.01, 0.1)}, seeds=(0, 3), search=Optuna(), samples=2)
    parts = [experiment.data.test_part for experiment in running._data_sections(searched, []).values()]
    assert parts == [0, 3]


def test_an_old_folder_keeps_its_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a resume that goes on with other partitions than those of the trials that are there, or not at all."""
    monkeypatch.setattr(running, "run_sweep", lambda named, *_, **__: named)
    for partitions, of_seeds in (("one", {(0, 0), (1, 0)}), ("anew", {(0, 0), (1, 1)})):
        found = load(f"{small_sweeps.__file__}:grid", "laptop", [], {})
        made = replace(found, sweep=replace(found.sweep, partitions=partitions))
        folder = SweepFolder(tmp_path / partitions)
        folder.create(made, How().to_mapping())
        values = folder.sweep()
        if partitions == "one":
            del values["partitions"]
            (folder.path / "sweep.yaml").write_text(yaml.safe_dump(values))
        _, resumed = resume_sweep(folder.path)
        assert set(drawn(cast(Any, resumed).sweep)) == of_seeds


def test_a_folder_knows_the_claims_that_its_trials_began_with(tmp_path: Path) -> None:
    """Kills: claims made after the outcome that a further start takes for those of the beginning, or a third one for
    those of the second; a guard where nothing has changed, or has changed back; a target that is moved afterwards."""
    found, folder = load(f"{small_sweeps.__file__}:claimed", "laptop", [], {}), SweepFolder(tmp_path)
    first, *others = (replace(found.sweep.claims[0], margin=margin) for margin in (0.0, 0.1, 0.2))

    def started(claim: Claim, target: float | None = 0.5) -> dict[str, Any]:
        folder.create(replace(found, sweep=replace(found.sweep, claims=(claim,), target_accuracy=target)), {})
        assert folder.sweep()["claims"] == [claim.to_mapping()]
        return folder.sweep().get("begun", {})

    assert [started(one) for one in (*others, first)] == [{}] * 3  # no trial has begun
    folder.write(TrialRecord("00000", {"local.lr": 0.1}, 0))
    then = {"claims": [first.to_mapping()]}
    assert [started(one) for one in (first, *others, first)] == [{}, then, then, {}]
    assert [started(others[0], 0.9), started(first, 0.9)] == [
        {**then, "target_accuracy": 0.5},
        {"target_accuracy": 0.5},
    ]
    for damaged in ({"begun": 3}, {"begun": {"claims": 3}}):
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(folder.sweep() | damaged))
        with pytest.raises(RunFolderError, match="it has no claims to begin with"):
            started(first)


def test_devices_are_of_the_analysis(tmp_path: Path) -> None:
    """Kills: devices that change which trials there are, or a sweep that has none; a file that a folder would need;
    devices that are moved once the outcome is known."""
    found, folder = load(f"{small_sweeps.__file__}:claimed", "laptop", [], {}), SweepFolder(tmp_path)
    first, other = (replace(found, sweep=replace(found.sweep, devices=Devices(seed=seed))) for seed in (1, 2))
    assert "devices" not in found.sweep.to_mapping() and first.digest == other.digest == found.digest
    with pytest.raises(ConfigError, match=r"devices\.table=phones\.csv: is a file beside the sweep's folder"):
        replace(found.sweep, devices=Devices(table="phones.csv"))

    def started(named: NamedSweep) -> dict[str, Any]:
        folder.create(named, {})
        return folder.sweep().get("begun", {})

    assert started(first) == {}
    folder.write(TrialRecord("00000", {"local.lr": 0.1}, 0))
    then = {"devices": asdict(Devices(seed=1))}
    assert [started(one) for one in (first, other, found, first)] == [{}, then, then, {}]


def of_methods(*methods: Any, better: Any = "fedprox", worse: Any = "fedavg", **fields: Any) -> NamedSweep:
    """A sweep of methods beside each other, with a claim on two of them."""
    claim = Claim("better", "ours", {"algorithm": better}, {"algorithm": worse}, fields.pop("where", {}))
    space = {"algorithm": tune.grid_search(list(methods)), "alpha": tune.grid_search([0.1, 1])}
    made = Sweep(**{"base": base(), "space": space, "claims": (claim,), **fields})
    return named("made", lambda profile: made, "laptop", [])


def test_methods_stand_beside_each_other() -> None:
    """Kills: an instance that is no data, or another digest than the same method as data; its defaults in its label; a
    name that has another form among labels; an axis of models that takes no instances; a list of them."""
    found = of_methods(
        "fedavg", FedProx(mu=0.5), {"name": "scaffold"}, FedProx(), better=FedProx(mu=0.5), worse=FedAvg()
    )
    sweep = found.sweep
    names = ["fedavg", "fedprox(mu=0.5)", "scaffold", "fedprox"]
    assert [sweep.label(one) for one in sweep.settings()] == [f"{n},alpha={a}" for a in ("0.1", "1") for n in names]
    algorithms = [sweep.experiment(one, 0).algorithm for one in sweep.settings()[:4]]
    assert algorithms == [FedAvg(), FedProx(mu=0.5), ALGORITHMS.build({"name": "scaffold"}), FedProx(mu=0.01)]
    as_data = ["fedavg", {"name": "fedprox", "mu": 0.5}, {"name": "scaffold"}, {"name": "fedprox"}]
    assert of_methods(*as_data, better=as_data[1]).digest == found.digest
    assert sweep.claims[0].sides == ({"algorithm": [as_data[1]]}, {"algorithm": [{"name": "fedavg"}]})
    assert yaml.safe_load(yaml.safe_dump(sweep.to_mapping())) == sweep.to_mapping()
    model, two = MODELS.build({"name": "mlp", "hidden": [8]}), [MODELS.build({"name": "logistic"}), "mlp"]
    of_models = Sweep(base(), {"model": tune.choice([model]), "client_models": tune.grid_search([two])})
    assert of_models.settings() == [
        {"model": {"name": "mlp", "hidden": [8]}, "client_models": [{"name": "logistic"}, "mlp"]}
    ]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"better": "fedprx"}, "is of no trial; did you mean 'fedprox(mu=0.5)'?"),
        ({"worse": {"name": "fedprox", "mu": 2}}, "is of no trial; did you mean 'fedprox(mu=0.5)'?"),
        ({"where": {"alpha": [0.1, 0.3]}}, "alpha=0.3: is of no trial"),
        (
            {"more": [FedProx(mu=2)]},
            "is more than one setting; say which: {'name': 'fedprox', 'mu': 0.5} or {'name': 'fedprox', 'mu': 2}",
        ),
        ({"space": {"algorithm": tune.choice(["fedavg"])}}, "claims=fedprox: is of no trial; known: fedavg"),
        ({"space": {"algorithm": tune.choice(["fedavg"])}, "search": Optuna()}, "claims=fedprox: is of no trial"),
    ],
)
def test_a_claim_is_on_settings_of_its_sweep(fields: dict[str, Any], told: str) -> None:
    """Kills: a misspelt method that is found out when all has run; a name of two settings; a value in ``where`` that
    nothing has; a space that is drawn, or searched, looked at less closely."""
    with pytest.raises(ConfigError) as raised:
        of_methods("fedavg", FedProx(mu=0.5), *fields.pop("more", ()), **fields)
    assert told in str(raised.value)


def test_a_claim_is_known_by_name_or_label_and_survives_overrides() -> None:
    """Kills: a name that only its fields stand for; values that a searcher draws from a range, refused; a narrowed
    sweep that is refused for the claims of the whole one."""
    methods = "fedavg", FedProx(mu=0.5)
    assert of_methods(*methods).sweep.claims[0].better == {"algorithm": "fedprox"}
    of_methods(*methods, better="fedprox(mu=0.5)", where={"alpha": [0.1, 1]})
    drawn = {"algorithm": tune.choice(list(methods)), "alpha": tune.uniform(0.1, 1)}
    of_methods(space=drawn, search=Optuna(), where={"alpha": 0.3})
    sweep = of_methods(*methods).sweep
    narrowed = named("made", lambda profile: sweep, "laptop", ["algorithm=fedavg"]).sweep
    assert [narrowed.label(one) for one in narrowed.settings()] == ["fedavg,alpha=0.1", "fedavg,alpha=1"]


@pytest.mark.parametrize("inner", [tune.uniform(0, 1), tune.grid_search([0, 1]), [tune.choice([1])]])
def test_values_have_no_choices_inside(inner: Any) -> None:
    """Kills: a domain that dies as JSON when the sweep begins; a grid in a value, which no label tells of."""
    value = {"name": "fedprox", "mu": inner}
    for space in (tune.choice([value]), tune.grid_search([value]), value):
        with pytest.raises(ConfigError, match="space=algorithm: has choices inside of a value; name each value whole"):
            Sweep(base(), {"algorithm": space})


def test_cells_of_an_oracle_say_so() -> None:
    """Kills: an oracle that is listed as a method among others; a mark that no cell is found by."""
    sweep = load("ccvr.main", "laptop", [], SWEEPS).sweep
    names = [sweep.label(setting) for setting in sweep.settings()]
    oracles = [name for name in names if "iid_calibration" in name]
    assert len(oracles) == len(names) / 3
    assert all("iid_calibration(breaks-privacy,fraction=1)" in name for name in oracles)
    assert sum("breaks-privacy" in name for name in names) == len(oracles)
    chosen = cell(f"ccvr.main:{oracles[0]}", "laptop")
    assert chosen is not None and chosen.chain[-1].algorithm.breaks_privacy


def test_cells_are_told_apart() -> None:
    """Kills: one name for two cells whose algorithms differ in a field; a name of two words."""
    space = {"algorithm": tune.grid_search([{"name": "fedprox", "mu": mu} for mu in (0.1, 1.0)])}
    sweep = Sweep(base(), {**space, "E": tune.grid_search([1, 2])})
    labels = [sweep.label(setting) for setting in sweep.settings()]
    assert labels[0] == "fedprox(mu=0.1),E=1"
    assert len(set(labels)) == 4


USER_FILE = """
from __future__ import annotations
from dataclasses import dataclass
from ray import tune
from engine.sweeps.definition import Sweep
from tests.support.small_sweeps import base

@dataclass
class Rate:
    factor: float

    def __call__(self, spec):
        return self.factor * spec.config["mu"]

def f(profile: str) -> Sweep:
    return Sweep(base(), {"mu": tune.grid_search([0.5, 1.0]), "local.lr": tune.sample_from(Rate(0.1))})
"""


@pytest.mark.slow
def test_a_users_file_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a reference that holds in one directory; dataclasses that need their module."""
    (tmp_path / "own.py").write_text(USER_FILE)
    monkeypatch.chdir(tmp_path)
    found = load("own.py:f", "laptop", [], {})
    monkeypatch.chdir("/")
    assert found.name == "own.f"
    assert load(found.reference, "laptop", [], {}).digest == found.digest
    assert [setting["local.lr"] for setting in found.sweep.settings()] == [0.05, 0.1]


BROKEN_FILES: list[tuple[str, str]] = [
    (
        "def f(profile):\n    return 1 +\n",
        r"own.py: cannot be imported: SyntaxError: invalid syntax \(own.py, line 2\)",
    ),
    ("\nimport nowhere_at_all\n", r"ModuleNotFoundError: No module named 'nowhere_at_all' \(own.py, line 2\)"),
    (
        "def f(profile):\n    return len(3)\n",
        r"raised TypeError: object of type 'int' has no len\(\) \(own.py, line 2\)",
    ),
    ("import json\ndef f(profile):\n    json.loads('{')\n", r"raised JSONDecodeError: .* \(own.py, line 3\)"),
    ("def f():\n    pass\n", r"own.py:f: cannot be called with a profile \(too many positional arguments\)"),
    ("def f(profile, other):\n    pass\n", r"cannot be called with a profile \(missing a required argument: 'other'\)"),
    ("def f(profile):\n    return 3\n", "returned a int; return a Sweep"),
    ("def g(profile):\n    return 3\n", "has no function 'f'; known: g"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN_FILES, ids=lambda value: str(value)[:30])
def test_broken_files_are_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    """Kills: a traceback for a user's mistake; a mistake inside of the function blamed on its arguments."""
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(f"{tmp_path}/own.py:f", "laptop", [], SWEEPS)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seeds=[a", r"seeds=\['\[a'\]: must be whole numbers from 0 on"),
        ("seeds=[]", "must name at least one"),
        ("seeds=true", "must be whole numbers from 0 on"),
        ("samples=[1", r"samples=\[1: must be a whole number of at least 1"),
        ("samples=3", "samples=3: draws from a space in which nothing is drawn"),
        ("alpha=3", "alpha=3: is varied by this sweep"),
        ("seeds", "override=seeds: must be key=value"),
    ],
)
def test_overrides_of_sweeps(override: str, message: str) -> None:
    """Kills: a traceback of YAML's; a seed that is no number; an override without effect."""
    assert load("drift.fedprox_mu", "laptop", ["seeds=4"], SWEEPS).sweep.seeds == (4,)
    with pytest.raises(ConfigError, match=message):
        load("drift.fedprox_mu", "laptop", [override], SWEEPS)


def test_what_a_function_gives_follows_from_the_setting() -> None:
    """Kills: trials of several rates in one cell; a sweep that draws anew whenever it is asked, and cannot go on."""
    counted, drawn = iter(range(100)), tune.choice([0.1, 0.2])
    for called, space in (
        (tune.sample_from(lambda spec: next(counted) + 1), {"mu": tune.grid_search([0.0, 1.0])}),
        (tune.sample_from(lambda spec: 0.1 if spec.config["alpha"] > 0.4 else 0.2), {"alpha": drawn}),
    ):
        refused = pytest.raises(ConfigError, match=r"space=local.lr: comes to another value each time it is asked")
        with refused if "mu" in space else nullcontext():
            Sweep(base(), {**space, "local.lr": called}, samples=2 if "alpha" in space else 1)


@pytest.mark.parametrize(("name", "told"), [("rounds", "write R"), ("seed", "name them as seeds")])
def test_names_of_columns_are_refused_with_what_to_write(name: str, told: str) -> None:
    """Kills: the advice to write a key that is the same word."""
    with pytest.raises(ConfigError, match=f"space={name}: is a column of the trials table; {told}"):
        Sweep(base(), {name: tune.grid_search([1, 2])})


def test_perturbed_values_stay_in_what_they_are_drawn_from() -> None:
    """Kills: a population that leaves multiples of a step, or the ends of a range."""
    within = _Within({"B": tune.qrandint(8, 32, 8), "mu": tune.quniform(0, 1, 0.25), "lr": tune.uniform(0.1, 0.2)})
    assert within({"B": 10, "mu": 0.9, "lr": 0.3}) == {"B": 8, "mu": 1.0, "lr": 0.2}
    uneven = _Within({"B": tune.qrandint(5, 96, 10)})
    assert [uneven({"B": value})["B"] for value in (1, 5, 200)] == [10, 10, 90]
    assert within({"B": 38, "mu": 0.4, "lr": 0.15}) == {"B": 32, "mu": 0.5, "lr": 0.15}


PICKED = {
    "alpha=0.5": {"alpha": [0.5]},
    "mu=[1,0]": {"mu": [0.0, 1.0]},
    "partition.alpha=0.05": {"alpha": [0.05]},
    "algorithm.mu=0": {"mu": [0.0]},
}


@pytest.mark.parametrize("override", PICKED)
def test_values_of_a_grid_are_picked(override: str) -> None:
    """Kills: a part of a sweep whose trials are others than in the whole, or come in another order."""
    whole, part = (load("drift.fedprox_mu", "laptop", words, SWEEPS) for words in ([], [override]))
    ((name, values),) = PICKED[override].items()
    assert part.sweep.settings() == [one for one in whole.sweep.settings() if one[name] in values]
    assert part.digest != whole.digest


def test_a_method_is_picked_by_its_name_and_tuned_ones_are_not() -> None:
    """Kills: a mapping that has to be typed in full; a part whose sides would be tuned on fewer cells."""
    reference = f"{small_sweeps.__file__}:cells"
    for words in ("algorithm=fedprox", "algorithm=fedprox(mu=1)", "algorithm=[{name: fedprox, mu: 1}]"):
        found = load(reference, "laptop", [words], SWEEPS).sweep.settings()
        assert [one["algorithm"]["name"] for one in found] == ["fedprox"] * 2
    for wrong in ("algorithm=fedpro", "algorithm=[fedavg, fedpro]", "algorithm=[]", "alpha=null"):
        with pytest.raises(ConfigError, match=r"is varied by this sweep; name values of its grid \("):
            load(reference, "laptop", [wrong], SWEEPS)
    with pytest.raises(ConfigError, match="is varied by this sweep; what tuned sides are given depends on all values"):
        load(f"{small_sweeps.__file__}:tuned", "laptop", ["algorithm=fedavg"], SWEEPS)


def test_a_lock_alone_is_no_other_sweep(tmp_path: Path) -> None:
    """Kills: a sweep that ended before it wrote sweep.yaml and whose folder nobody can use again."""
    found = load("drift.fedprox_mu", "laptop", [], SWEEPS)
    (tmp_path / ".lock").touch()
    assert SweepFolder.for_sweep(found, tmp_path).path == tmp_path
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not empty and holds no sweep"):
        SweepFolder.for_sweep(found, tmp_path)
