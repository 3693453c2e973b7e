"""What a sweep decides before it starts: cells, order, place, fit; and what a searcher is told."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from ray import tune
from torch import nn

from algorithms import ALGORITHMS
from algorithms.fedprox import FedProx
from engine.base.errors import ConfigError, ResourceError
from engine.experiment import Execution, Experiment
from engine.results.claims import Claim, PaperTable
from engine.sweeps.definition import Asha, Optuna, Pbt, Sweep
from engine.sweeps.folder import TrialRecord
from engine.sweeps.named import known, load
from engine.sweeps.planning import Needs, check_fit, choose_mode, order, plan
from engine.sweeps.searching import InOrder, Proposed, optuna_search
from tests.support.loops import each
from tests.support.small_sweeps import STAGES, base, grid, warmup
from tune_configs import SWEEPS


@cache
def loaded(name: str, profile: str) -> Sweep:
    """A sweep of ours; building one takes a while, and nobody changes it."""
    return load(name, profile, [], SWEEPS).sweep


TWO_CORES = [{"CPU": 2.0, "memory": 1e9}]


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["laptop", pytest.param("paper", marks=pytest.mark.long)])
def test_every_sweep_of_ours_is_valid_in_both_profiles(profile: str) -> None:
    """Kills: a cell that the engine refuses, a claim or a table of a hyper-parameter that is not varied."""
    for name in known(SWEEPS):
        sweep = loaded(name, profile)
        assert plan(replace(sweep, seeds=sweep.seeds[-1:]))  # one seed: whether a cell is valid does not hang on it
        axes = {axis["name"] for axis in sweep.axes()}
        for claim in sweep.claims:
            assert {*claim.better, *claim.worse, *claim.where} <= axes
        for table in sweep.tables:
            assert {*table.rows, *table.columns} <= axes


@each("name", known(SWEEPS))
def test_sources_are_citations(name: str) -> None:
    """Kills: an algorithm's mapping, or a placeholder, where the reader expects a paper."""
    for profile in ("laptop", "paper"):
        sweep = loaded(name, profile)
        for source in [claim.source for claim in sweep.claims] + [table.source for table in sweep.tables]:
            assert "{" not in source


PICTURES = {"fedser.figure2"}  # of a partition, as the source's: there is nothing to claim of training


@each("name", [name for name in known(SWEEPS) if name not in PICTURES])
def test_every_sweep_of_ours_claims_something(name: str) -> None:
    """Kills: a sweep without a claim; one that its own seeds can never decide; where=0.1 where 0.05 is run as well; the
    paper's default alpha together with the strong ones, whose gains would carry it."""
    for profile in ("laptop", "paper"):
        sweep = loaded(name, profile)
        assert sweep.claims or name.startswith("board.")  # no paper says anything about these
        assert len(sweep.seeds) >= 3
        for claim in sweep.claims:
            if name.startswith("ccvr.") and "alpha" in claim.where:
                strong = [alpha for alpha in sweep.space["alpha"]["grid_search"] if alpha <= 0.1]
                assert claim.where["alpha"] in (strong, [0.5])


@pytest.mark.parametrize(
    ("name", "data", "model", "number"),
    [
        ("ccvr.main", "cifar10", "moon_cnn", 100),
        ("ccvr.main_cifar100", "cifar100", "mobilenetv2", 500),
        ("ccvr.main_cinic10", "cinic10", "mobilenetv2", 1000),
    ],
)
def test_data_network_and_virtual_features_go_together(name: str, data: str, model: str, number: int) -> None:
    """Kills: CIFAR-100 with CIFAR-10's virtual features; a network that MOON's quarter refuses; laptop sizes that
    change what is compared."""
    trials = plan(load(name, "paper", [], SWEEPS).sweep)
    assert len(trials) == 3 * 4 * 3 * 3
    for trial in trials:
        chosen = trial.experiment.to_mapping()
        assert (chosen["data"]["name"], chosen["model"]["name"]) == (data, model)
        assert chosen["model"]["projection"]
        calibration = chosen["stages"][1]["algorithm"]
        if calibration["name"] == "ccvr" and calibration["epochs"]:
            assert calibration["samples_per_class"] == number
    assert len(plan(load(name, "laptop", [], SWEEPS).sweep)) == 72
    assert len(plan(load("ccvr.cka", "laptop", [], SWEEPS).sweep)) == 3 * 2 * 5


def test_similarity_is_claimed_of_every_layer() -> None:
    """Kills: a layer that no claim is about; a claim on one that the network does not have; taps for the seven."""
    for profile in ("laptop", "paper"):
        sweep = load("ccvr.cka", profile, [], SWEEPS).sweep
        modules = sweep.base.model.build((3, 32, 32), 10).named_modules()
        weighted = [name.removeprefix("body.") for name, one in modules if isinstance(one, nn.Conv2d | nn.Linear)]
        names = {"project2": "features", "head": "logits"}  # what a diagnosis calls them
        layers = [f"cka_of_{names.get(name, name)}" for name in weighted]
        assert sweep.diagnose == "weights" and len(layers) == 7
        assert [claim.metric for claim in sweep.claims if claim.metric.startswith("cka_of_")] == layers
        assert [table.metric for table in sweep.tables][:7] == layers


def test_a_diagnosis_names_its_layers() -> None:
    """Kills: a misspelt choice, which would be taken for the taps."""
    with pytest.raises(ConfigError, match="diagnose=weight: is none of False, True, 'taps' and 'weights'"):
        Sweep(base(), {"mu": tune.grid_search([0.0])}, diagnose="weight")  # type: ignore[arg-type]


def test_remedies_are_named_by_their_algorithms() -> None:
    """Kills: clsnorm on a linear head, or the others on a normalised one; an oracle after another training than
    FedAvg's."""
    for profile, trials in (("laptop", 7 * 2 * 3), ("paper", 11 * 3 * 3)):
        planned = plan(load("ccvr.remedies", profile, [], SWEEPS).sweep)
        assert len(planned) == trials
        names = set()
        for trial in planned:
            chosen = trial.experiment.to_mapping()
            own = chosen["algorithm"]  # what a stage does that names no other
            stages = [((stage["algorithm"] or own)["name"], stage["rounds"]) for stage in chosen["stages"]]
            name = stages[1][0]
            names.add(name)
            assert stages == [("fedavg" if name == "iid_calibration" else name, chosen["rounds"]), (name, 0)]
            assert (name == "clsnorm") == (chosen["model"]["head"] == "normalised")
        assert names == {"fedavg", "clsprox", "clsnorm", "iid_calibration"}


def test_settings_are_grid_by_draws_and_repeat() -> None:
    """Kills: draws that differ between grid points or between processes; a sample_from that is not resolved."""
    space = {
        "mu": tune.grid_search([0.0, 1.0]),
        "local.lr": tune.loguniform(1e-3, 1.0),
        "E": tune.sample_from(lambda spec: 1 if spec.config["mu"] else 2),
    }
    sweep = Sweep(base(), space, samples=3)
    settings = sweep.settings()
    assert settings == sweep.settings()
    assert len(settings) == 6
    rates = [setting["local.lr"] for setting in settings]
    assert rates[0::2] == rates[1::2]
    assert len(set(rates)) == 3
    assert [setting["E"] for setting in settings[:2]] == [2, 1]
    assert [axis["name"] for axis in sweep.axes()] == ["mu", "local.lr"]
    assert [axis["log"] for axis in sweep.axes()] == [False, True]


def test_symbols_of_the_papers_are_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a symbol that reaches another key, or one of two keys in silence."""
    experiment = base()
    assert [experiment.key_of(symbol) for symbol in ("mu", "alpha", "E", "eta_s", "local.lr", "seed")] == [
        "algorithm.mu", "partition.alpha", "local.epochs", "algorithm.server_lr", "local.lr", "seed"
    ]  # fmt: skip
    assert warmup("laptop").base.key_of("R_w") == "stages.warmup.rounds"
    assert experiment.override(["mu=0.5"]).value_of("algorithm.mu") == 0.5
    monkeypatch.setattr(FedProx, "symbols", {"alpha": "mu", "lambda": "mu"})
    assert ALGORITHMS["fedprox"].symbols
    assert experiment.key_of("lambda") == "algorithm.mu"
    with pytest.raises(
        ConfigError, match=r"alpha=1: stands for more than one key; write partition.alpha or algorithm.mu"
    ):
        experiment.override(["alpha=1"])


def test_short_prefixes_come_first_and_nobody_waits_for_a_longer_one() -> None:
    """Kills: a trial that starts before the rounds it shares, or that waits for those it does not share."""
    trials = plan(warmup("laptop"))  # R_w 5, 3, 7, then the same with another rate: trials 0 to 5
    ordered, needs = order(trials)
    assert ordered[0].trial == "00001"
    assert needs["00000"] == Needs("00001", 3)
    assert needs["00002"] == Needs("00000", 5)
    assert needs["00004"] == Needs("00001", 3)
    assert "00001" not in needs
    assert order(plan(grid("laptop")))[1] == {}
    measured = [trial.experiment.replace({"evaluation.every": n + 1}) for n, trial in enumerate(trials)]
    others = [type(trials[0])(t.trial, t.setting, t.seed, e) for t, e in zip(trials, measured, strict=True)]
    assert order(others)[1] == {}  # rows are shared with the weights, so what is measured must agree


def test_the_searcher_holds_dependants_back() -> None:
    """Kills: a dependant that starts early, one that never starts because its provider failed."""
    ordered, needs = order(plan(warmup("laptop")))
    begun: list[str] = []
    search = InOrder(warmup("laptop"), ordered, needs, lambda trial, setting, seed: begun.append(trial))
    assert search.suggest("a") is not None
    assert begun == ["00001"]
    assert search.suggest("b") is None
    search.on_trial_result("a", {"round": 2})
    assert search.suggest("b") is None
    search.on_trial_result("a", {"round": 3})
    assert search.suggest("b") is not None
    assert search.suggest("c") is not None
    assert search.suggest("d") is None
    search.on_trial_complete("b", None, error=True)
    search.on_trial_complete("c", None, error=True)
    assert search.suggest("d") is not None


class Told:
    """A searcher that proposes numbers and remembers what it is told."""

    def __init__(self) -> None:
        self.proposed = 0
        self.completed: list[Any] = []
        self.points: list[Any] = []

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.proposed += 1
        return {"local.lr": 0.1 * self.proposed}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.completed.append((result, error))

    def add_evaluated_point(self, parameters: dict[str, Any], value: float) -> None:
        self.points.append((parameters, value))


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_resumed_search_draws_the_rest_at_random(sampler: Literal["tpe", "gp"]) -> None:
    """Kills: settings of an earlier process taken off the random ones, of which they are counted as well."""
    pytest.importorskip("optuna")
    drawn = {"local.lr": tune.loguniform(1e-4, 0.5)}
    search = Optuna(random=3, sampler=sampler)
    sweep = Sweep(base=base(), space=drawn, seeds=(0, 1), samples=4, search=search, metric="accuracy")
    told, untold = (optuna_search(sweep, search, known=4) for _ in range(2))
    for rate, accuracy in ((0.01, 0.1), (0.1, 0.9)):
        told.add_evaluated_point({"local.lr": rate}, accuracy)
    assert told.suggest("third") == untold.suggest("third")


def test_a_searcher_is_told_means_and_old_results() -> None:
    """Kills: a value of one seed alone, a failed trial that counts as zero, old results lost or told too late."""
    sweep = Sweep(base(), {"local.lr": tune.uniform(0, 1), "mu": 0.5}, seeds=(0, 1), samples=3, search=Optuna())
    told: Any = Told()
    old = [TrialRecord(f"0000{n}", {"local.lr": 0.7, "mu": 0.5}, n, status="finished") for n in range(2)]
    search = Proposed(sweep, told, old, lambda *_: None)
    configs = [search.suggest(name) for name in "ab"]
    assert search.suggest("c") is None  # old results are told first
    for name, value in zip("ab", (0.2, 0.4), strict=True):
        search.on_trial_complete(name, {"last10_accuracy": value, "failed": False})
    configs += [search.suggest(name) for name in "cdef"]
    assert [config["seed"] for config in configs if config] == [0, 1, 0, 1, 0, 1]
    assert configs[2] == {"trial": "00002", "local.lr": 0.1, "mu": 0.5, "seed": 0}
    assert search.suggest("g") is None
    for name, value in zip("cdef", (0.5, 0.7, 0.9, 0.1), strict=True):
        search.on_trial_complete(name, {"last10_accuracy": value, "failed": name == "f"})
    assert told.points == [({"local.lr": 0.7}, pytest.approx(0.3))]
    assert told.completed == [({"last10_accuracy": pytest.approx(0.6)}, False), ({"last10_accuracy": 0.9}, False)]


def test_proposals_wait_for_the_warm_up_that_they_share() -> None:
    """Kills: trials that hold CPUs while one of them computes what all of them need."""
    stages = Experiment.from_mapping({**base().to_mapping(), "stages": STAGES})
    sweep = Sweep(stages, {"stages.serve.local.lr": tune.uniform(0, 1)}, samples=3, search=Optuna())
    told: Any = Told()
    told.suggest = lambda _: {"stages.serve.local.lr": 0.1}
    search = Proposed(sweep, told, [], lambda *_: None, reuse=True)
    assert search.suggest("a") is not None
    assert search.suggest("b") is None
    search.on_trial_result("a", {"round": 2})
    assert search.suggest("b") is None
    search.on_trial_result("a", {"round": 5})
    assert search.suggest("b") is not None
    assert search.suggest("c") is not None


@pytest.mark.parametrize(
    ("trials", "nodes", "asked", "kind", "actors", "slots"),
    [
        (24, TWO_CORES, "auto", "inside", 0, 2),
        (2, [{"CPU": 16.0}], "auto", "nested", 8, 2),
        (3, [{"CPU": 4.0}, {"CPU": 4.0}], "auto", "nested", 2, 4),
        (24, TWO_CORES, "nested", "nested", 2, 1),
        (2, [{"CPU": 16.0}], "inside", "inside", 0, 16),
    ],
)
def test_where_trials_run(trials: int, nodes: Any, asked: str, kind: str, actors: int, slots: int) -> None:
    """Kills: big trials that leave a cluster idle, small ones that pay for actors."""
    mode = choose_mode(trials, Execution(actors=2), 0.0, nodes, asked)
    assert (mode.kind, mode.actors, mode.slots) == (kind, actors, slots)


def test_nested_trials_without_a_number_share_the_cluster() -> None:
    """Kills: trials of one actor each on a cluster that they leave idle, since this process is the default."""
    assert choose_mode(4, Execution(), 0.0, [{"CPU": 16.0}], "nested").actors == 4
    assert choose_mode(40, Execution(), 0.0, [{"CPU": 16.0}], "nested").actors == 1


def test_shares_of_cards_limit_trials() -> None:
    """Kills: a share that spans cards, or trials that are counted by CPUs where cards are short."""
    node = [{"CPU": 16.0, "GPU": 2.0}]
    assert choose_mode(24, Execution(gpus_per_actor=0.25), 0.25, node, "auto").slots == 8
    assert choose_mode(24, Execution(gpus_per_actor=0.3), 0.3333, node, "auto").slots == 6
    assert choose_mode(24, Execution(gpus_per_actor=0.4), 0.4, node, "auto").slots == 4  # a fifth has half on each card
    mode = choose_mode(2, Execution(gpus_per_actor=0.5), 0.5, [{"CPU": 16.0}], "inside")
    with pytest.raises(ResourceError, match=r"GPU: 0.5 asked for, 0 in the cluster.*execution.gpus_per_actor"):
        check_fit(mode, [{"CPU": 16.0}])


BAD: list[tuple[dict[str, Any], str]] = [
    ({"seeds": ()}, "seeds=.*: must name at least one"),
    ({"seeds": (0, "a")}, "seeds=.*'a'.*: must be whole numbers from 0 on"),
    ({"seeds": (True,)}, "seeds=.*: must be whole numbers from 0 on"),
    ({"partitions": "two"}, "partitions=two: is neither anew nor one; use anew or one"),
    (
        {"space": {"partition.seed": tune.grid_search([0, 1])}},
        "space=partition.seed: is set by each seed of the sweep, .*; set partitions='one' in the sweep",
    ),
    ({"samples": 2.5}, "samples=2.5: must be a whole number of at least 1"),
    ({"samples": 4, "space": {"mu": tune.grid_search([0.0])}}, "samples=4: draws from a space in which nothing is"),
    ({"search": Optuna(), "space": {"mu": 0.1}}, "draws from a space in which nothing is drawn"),
    ({"space": {"mu": tune.grid_search([])}}, "space=mu: has no value to choose from"),
    ({"space": {"mu": tune.choice([])}}, "space=mu: has no value to choose from"),
    ({"space": {"mu": 0.1, "algorithm.mu": 0.2}}, "space=algorithm.mu: is mu by another name; keep one of the two"),
    ({"mode": "maximum"}, "mode=maximum: is not the way to a better last10_accuracy; set mode='max'"),
    ({"metric": "loss"}, "mode=max: is not the way to a better loss; set mode='min'"),
    ({"mode": "min"}, "mode=min: is not the way to a better last10_accuracy"),
    ({"stop": {"loss": 0.5}}, "stop=loss: is no metric of which more is better"),
    ({"stop": {"acuracy": 0.5}}, "stop=acuracy: .*; did you mean 'accuracy'"),
    ({"space": {"rounds": tune.grid_search([1])}}, "space=rounds: is a column of the trials table"),
    ({"tables": (PaperTable("t", rows=("mu",), columns=()),)}, "tables=mu: is not varied by this sweep"),
    ({"tables": (PaperTable("t", (), (), where={"mu": 1}),)}, "tables=mu: is not varied by this sweep"),
    ({"tables": (PaperTable("t", (), (), metric="acuracy"),)}, "tables=acuracy: is no figure of a trial"),
    ({"claims": (Claim("c", "s", {"mu": 1}, {"mu": 0}),)}, "claims=mu: is not varied by this sweep"),
    (
        {"claims": (Claim("c", "s", {"model.hidden": [16]}, {"model.hidden": [8]}),), "space": {"model.hidden": [16]}},
        "claims=model.hidden: is not varied by this sweep",
    ),
    ({"claims": (Claim("c", "s", {"mu": 1}, {"mu": 0}, metric="acuracy"),)}, "claims=acuracy: is no figure of a trial"),
    ({"metric": "accuracyy"}, "metric=accuracyy: is not reported; did you mean 'accuracy'"),
    ({"metric": "class_accuracy[1, 2]"}, "metric=class_accuracy.*: is not reported; did you mean 'class_accuracy"),
    ({"metric": "class_std"}, "mode=max: is not the way to a better class_std; set mode='min'"),
    ({"stop": {"class_std": 0.1}}, "stop=class_std: is no metric of which more is better"),
    ({"stop": {"class_accuracy": 0.1}}, "stop=class_accuracy: .*; did you mean 'class_accuracy"),
    (
        {"claims": (Claim("c", "s", {"mu": 1}, {"mu": 0}, metric="class_accuracy[1,1]"),)},
        r"claims=class_accuracy\[1,1\]: is no figure of a trial; did you mean 'class_accuracy\[1\]'",
    ),
    ({"space": {"mu": tune.grid_search([0])}, "search": Optuna()}, "is a grid, which a searcher cannot use"),
    ({"scheduler": Asha(grace=3), "step": 2}, "scheduler.grace=3: must be a multiple of step=2"),
    ({"scheduler": Pbt(2, {"mu": [0.1]}), "seeds": (0, 1)}, "must be one: trials copy each other's weights"),
    ({"scheduler": Pbt(2, {"alpha": [0.1]})}, "scheduler.mutations=alpha: cannot change in mid-run"),
    ({"scheduler": Pbt(2, {"mu": [0.1]})}, "samples=1: makes a population of 1"),
    ({"scheduler": Pbt(2, {"mu": []}), "samples": 4}, "=mu: has no value to choose from"),
    ({"scheduler": Pbt(2, {}), "samples": 1}, "scheduler.mutations={}: must name what changes"),
    ({"scheduler": Pbt(2, {"mu": 0.1})}, "scheduler.mutations=mu: must be a list of values or drawn"),
    ({"scheduler": Pbt(2, {"mu": [0.1]}), "space": {"algorithm.mu": 0.1}}, "is mu by another name"),
    ({"scheduler": Pbt(2, {"mu": [0.1]}, quantile=0.0)}, "scheduler.quantile=0.0: must be above 0 and at most 0.5"),
    ({"scheduler": Pbt(2, {"mu": [0.1]}, quantile=0.6)}, "scheduler.quantile=0.6: must be above 0 and at most 0.5"),
    ({"scheduler": Pbt(2, {"mu": [0.1]}, resample=1.5)}, "scheduler.resample=1.5: must be between 0 and 1"),
    (
        {"scheduler": Pbt(2, {"mu": [0.1, 1]}), "search": Optuna(), "samples": 4},
        "search=optuna: cannot propose what a population changes",
    ),
    (
        {"scheduler": Pbt(2, {"mu": [0.1]}), "space": {"alpha": tune.grid_search([1.0])}},
        "differs between trials that copy each other's weights",
    ),
]


@each("changes, message", BAD)
def test_bad_sweeps_are_one_sentence(changes: dict[str, Any], message: str) -> None:
    """Kills: a sweep that cannot work and says so after an hour."""
    with pytest.raises(ConfigError, match=message):
        Sweep(**{"base": base(), "space": {}, **changes})


def test_references(tmp_path: Path) -> None:
    """Kills: a typing error in a sweep's name that ends in a traceback."""
    with pytest.raises(
        ConfigError, match=r"sweep=drift.fedprox: is not a known sweep; did you mean 'drift.fedprox_mu'"
    ):
        load("drift.fedprox", "laptop", [], SWEEPS)
    with pytest.raises(ConfigError, match="--profile=lap: is not a profile"):
        load("drift.fedprox_mu", "lap", [], SWEEPS)
    with pytest.raises(ConfigError, match="is not a file"):
        load(f"{tmp_path}/none.py:f", "laptop", [], SWEEPS)


def test_schedules() -> None:
    """Kills: a change that begins a round early or late, or that leaks into a stage it is not for."""
    experiment = base(**{"local.lr": 0.1})
    plain = experiment.to_mapping()
    changing = Experiment.from_mapping({**plain, "schedule": [{"round": 3, "set": {"local.lr": 0.01}}]})
    (stage,) = changing.chain
    assert [stage.at(round).local.lr for round in (1, 2, 3, 6)] == [0.1, 0.1, 0.01, 0.01]
    assert changing.digest != experiment.digest
    assert Experiment.from_mapping(changing.to_mapping()) == changing
    with pytest.raises(ConfigError, match=r"schedule=partition.alpha: cannot change in mid-run"):
        Experiment.from_mapping({**plain, "schedule": [{"round": 3, "set": {"partition.alpha": 1}}]})
    symbol = Experiment.from_mapping({**plain, "schedule": [{"round": 3, "set": {"eta": 0.01}}]})
    assert symbol.digest == changing.digest
    with pytest.raises(ConfigError, match="schedule=7: is beyond the last round, 6"):
        Experiment.from_mapping({**plain, "schedule": [{"round": 7, "set": {"local.lr": 0.01}}]})
    staged = {**warmup("laptop").base.to_mapping(), "schedule": [{"round": 5, "set": {"stages.serve.local.lr": 0.01}}]}
    assert [len(stage.changes) for stage in Experiment.from_mapping(staged).chain] == [0, 1]
    with pytest.raises(ConfigError, match="must name each round once, ascending"):
        Experiment.from_mapping({**plain, "schedule": [{"round": 3, "set": {}}, {"round": 2, "set": {}}]})
