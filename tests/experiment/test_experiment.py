"""The config: YAML in and out, dotted overrides, the hash, one-sentence errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.base.errors import ConfigError
from engine.experiment import Experiment, Local, Stage, keys
from engine.record import stage_hashes as stages
from engine.record.numerics import numerics
from tests.support.loops import each
from tests.support.tiny import experiment
from tune_configs import EXPERIMENTS

STAGES = [
    {"name": "warm-up", "rounds": 2, "algorithm": {"name": "fedavg"}},
    {"name": "main", "rounds": 3, "needs": ["warm-up"], "algorithm": {"name": "fedprox"}, "local": {"lr": 0.02}},
]


@pytest.mark.parametrize("make", [*EXPERIMENTS.values(), lambda: experiment(stages=STAGES)])
def test_yaml_round_trip(tmp_path: Path, make: Any) -> None:
    """Kills: a field that YAML loses or changes."""
    config = make()
    path = tmp_path / "experiment.yaml"
    path.write_text(config.to_yaml())
    again = Experiment.from_yaml(path)
    assert again == config
    assert again.digest == config.digest


def test_stages_inherit_field_by_field() -> None:
    """Kills: a stage that forgets the experiment's local section, or writes into it."""
    warm_up, main = experiment(stages=STAGES).chain
    assert (warm_up.local.lr, main.local.lr) == (0.1, 0.02)
    assert main.local.batch_size == 8
    assert experiment().chain[0].name == "train"


@pytest.mark.parametrize(
    "change",
    [
        "local.lr=0.2",
        "seed=1",
        "partition.seed=1",
        "partition.alpha=0.5",
        "rounds=21",
        "execution.threads=2",
        "execution.precision=float64",
        "execution.block=3",
        "algorithm.server_lr=0.5",
        "evaluation.every=2",
        "data.train_samples=100",
    ],
)
def test_what_bits_depend_on_is_hashed(change: str) -> None:
    """Kills: two experiments in one folder."""
    config = Experiment(execution={"cpus_per_actor": 2})
    assert config.override([change]).digest != config.digest


@pytest.mark.parametrize(
    "change",
    [
        "name=other",
        "execution.actors=7",
        "execution.cpus_per_actor=3",
        "execution.state_store=disk",
        "execution.retries=9",
        "checkpoint.every=3",
    ],
)
def test_what_bits_do_not_depend_on_is_not_hashed(change: str) -> None:
    """Kills: a resume that is refused for its placement."""
    assert Experiment().override([change]).digest == Experiment().digest


def test_whole_epochs_are_one_number() -> None:
    """Kills: 1 and 1.0 with two digests, or with two texts; a share of an epoch that is cut to a whole number."""
    config = Experiment(local=Local(epochs=2))
    for same in (config.override(["local.epochs=2.0"]), Experiment(local=Local(epochs=2.0))):
        assert (same.digest, same.to_yaml()) == (config.digest, config.to_yaml())
        assert isinstance(same.local.epochs, int)
    half = config.override(["E=0.5"])
    assert half.local.epochs == 0.5
    assert half.digest != config.override(["local.epochs=1"]).digest
    assert Experiment.from_mapping(yaml.safe_load(half.to_yaml())).digest == half.digest


def test_the_data_root_is_not_hashed(tmp_path: Path) -> None:
    """Kills: a path in the identity."""
    one = Experiment(data={"name": "fashion_mnist", "root": str(tmp_path)})
    assert one.digest == Experiment(data={"name": "fashion_mnist"}).digest
    own = [Experiment(data={"name": "imagefolder", "root": str(tmp_path / name)}) for name in "ab"]
    assert own[0].digest != own[1].digest  # somebody's own data: another folder is other data


def test_stage_hash_covers_parents_and_code_but_not_its_own_length() -> None:
    """Kills: reuse of a stage whose parent differs; a hash that stops a longer run from using a shorter one."""
    base = experiment(stages=STAGES)
    computed_by = numerics(base, "some CPU")

    def stage_hash(config: Experiment, stage: Stage) -> str:
        return stages.stage_hash(config, stage, computed_by, "data")

    hashes = [stage_hash(base, stage) for stage in base.chain]
    assert len(set(hashes)) == 2
    longer = experiment(stages=[STAGES[0], {**STAGES[1], "rounds": 9}])
    assert stage_hash(longer, longer.chain[1]) == hashes[1]
    parent = experiment(stages=[{**STAGES[0], "rounds": 4}, STAGES[1]])
    assert stage_hash(parent, parent.chain[0]) == hashes[0]
    assert stage_hash(parent, parent.chain[1]) != hashes[1]
    fields = experiment(stages=[STAGES[0], {**STAGES[1], "algorithm": {"name": "fedprox", "mu": 0.5}}])
    assert stage_hash(fields, fields.chain[1]) != hashes[1]
    renamed: Stage = base.chain[1].model_copy(update={"name": "other"})
    assert stage_hash(base, renamed) == hashes[1]
    assert {"torch", "device", "hardware"} <= set(computed_by)
    assert stages.stage_hash(base, base.chain[0], {**computed_by, "hardware": "other"}, "data") != hashes[0]
    assert stages.stage_hash(base, base.chain[0], computed_by, "other data") != hashes[0]


def test_overrides_reach_the_stages_that_leave_them_open() -> None:
    """Kills: an override that changes the hash and nothing that runs, or that overrules what a stage says itself."""
    base = experiment(stages=STAGES)
    changed = base.override(["local.lr=0.5", "local.batch_size=3"])
    assert [stage.local.lr for stage in changed.chain] == [0.5, 0.02]
    assert [stage.local.batch_size for stage in changed.chain] == [3, 3]
    assert changed.digest != base.digest
    with pytest.raises(ConfigError, match=r"algorithm.server_lr=0.5: is set by each stage"):
        base.override(["algorithm.server_lr=0.5"])  # both stages name their algorithm
    with pytest.raises(ConfigError, match="rounds=9: is set by each stage"):
        base.override(["rounds=9"])


def test_overrides_reset_what_a_new_choice_does_not_have() -> None:
    """Kills: an alpha of the old partition that makes the new one invalid; the order of words mattering."""
    config = Experiment().override(["partition.alpha=0.7", "partition.name=dirichlet_client", "partition.clients=9"])
    plain = config.to_mapping()["partition"]
    assert (plain["name"], plain["alpha"], plain["clients"]) == ("dirichlet_client", 0.7, 9)
    assert "alpha" not in Experiment().override(["partition.name=iid"]).to_mapping()["partition"]


def test_a_new_kind_of_participation_replaces_the_old() -> None:
    """Kills: count and fraction from two sources at once; two typed ones passing silently."""
    config = experiment(participation={"count": 3}).override(["participation.fraction=0.5"])
    assert (config.participation.count, config.participation.fraction) == (None, 0.5)
    with pytest.raises(ConfigError, match=r"participation.count=3: cannot be set beside participation.fraction"):
        Experiment().override(["participation.count=3", "participation.fraction=0.5"])


def test_values_are_yaml() -> None:
    """Kills: text where a number or a list was meant."""
    config = Experiment().override(["model.name=mlp", "model.hidden=[5, 6]", "local.lr=1e-3", "local.nesterov=false"])
    assert config.to_mapping()["model"]["hidden"] == [5, 6]
    assert config.local.lr == 0.001


def test_every_key_reaches_its_field() -> None:
    """Kills: a key that is listed and does nothing (dead flags are what Blades was read for)."""
    config = Experiment()
    for key in keys(config.to_mapping()):
        section, dot, field = key.partition(".")
        value = config.to_mapping()[section][field] if dot else config.to_mapping()[section]
        if value is not None:
            assert config.override([f"{key}={yaml.safe_dump(value).removesuffix('...').strip()}"]) == config


BAD: list[tuple[str | list[str], str]] = [
    ("local.lrr=0.1", "local.lrr=0.1: is not a known key; did you mean 'local.lr'?"),
    ("mu=0.1", "mu=0.1: is not a key: keys are dotted; did you mean algorithm.mu?"),
    ("momentum=0.1", "momentum=0.1: is not a key: keys are dotted; did you mean local.momentum?"),
    ("lr=0.1", "lr=0.1: is not a key: keys are dotted; did you mean local.lr?"),
    ("roundz=3", "roundz=3: is not a known key; did you mean 'rounds'?"),
    ("algorithm.mu=0.1", "algorithm.mu=0.1: is not a field of algorithm 'fedavg'; fedprox, fednova, moon, fedacg, "),
    ("algorithm.server_lrr=1", "algorithm.server_lrr=1: is not a known key; did you mean 'algorithm.server_lr'?"),
    ("algorithm.name=fedprx", "algorithm.name=fedprx: is not a known algorithm; did you mean 'fedprox'?"),
    ("model.name=resnet", "model.name=resnet: is not a known model; did you mean 'resnet"),
    ("data.name=svhn", "data.name=svhn: is not a known data"),
    ("partition.alpha=0", "partition.alpha=0"),
    ("partition.alpha=-1", "partition.alpha=-1"),
    ("partition.alpha=x", "partition.alpha=x: must be a valid number"),
    ("partition.clients=0", "partition.clients=0"),
    ("local.epochs=0", "local.epochs=0: must be greater than 0; for example local.epochs=1"),
    ("local.lr=0", "local.lr=0: must be greater than 0"),
    ("local.lr=.nan", "local.lr=nan: must be"),
    ("local.momentum=1", "local.momentum=1: must be at least 0 and below 1"),
    ("local.nesterov=true", "local.nesterov=True: needs SGD with momentum; set local.optimizer=sgd"),
    ("participation.fraction=1.2", "participation.fraction=1.2: must be greater than 0 and at most 1"),
    ("participation.count=21", "participation.count=21: must be at most partition.clients=20"),
    ("rounds=0", "rounds=0: must be at least 1 and at most 1,000,000,000"),
    ("rounds=many", "rounds=many: must be a valid integer"),
    (
        ["execution.actors=1", "execution.threads=2"],
        "execution.cpus_per_actor=1.0: must be at least execution.threads=2",
    ),
    ("execution.workers=0", "execution.workers=0: must be"),
    (["execution.device=cuda", "execution.workers=2"], "execution.workers=2: is threads of one process"),
    ("execution.device=tpu", "execution.device=tpu: must be 'auto', 'cpu' or 'cuda'"),
    (["algorithm.name=scaffold", "local.optimizer=adam"], "local.optimizer=adam: scaffold reads gradients off"),
    (["algorithm.name=fedprox", "algorithm.mu=-1"], "algorithm.mu=-1: must be at least 0; 0 is FedAvg"),
    (["algorithm.name=scaffold", "algorithm.option=III"], "algorithm.option=III: must be 'I' or 'II'"),
    ("local.batch_size=0", "local.batch_size=0: must be at least 1; for example local.batch_size=32"),
    ("local.batch_size=-1", "local.batch_size=-1: must be at least 1"),
    ("local.batch_size=ful", "local.batch_size=ful: must be 'full'; for example local.batch_size=32"),
    ("local.batch_size=1.5", "local.batch_size=1.5: must be a valid integer"),
    ("execution.block=0", "execution.block=0: must be at least 1; for example execution.block=auto"),
    ("execution.block=-1", "execution.block=-1: must be at least 1"),
    ("execution.block=ful", "execution.block=ful: must be 'auto'"),
    ("execution.block=1.5", "execution.block=1.5: must be a valid integer"),
    ("nonsense", "override=nonsense: must be key=value; for example local.lr=0.1"),
    ("name=../../etc", "name=../../etc: "),
]


@each("words, message", BAD)
def test_bad_values_are_one_sentence(words: str | list[str], message: str) -> None:
    """Kills: a value that passes, or a message without its field, value, rule and repair."""
    with pytest.raises(ConfigError) as error:
        Experiment().override([words] if isinstance(words, str) else words)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert "pydantic" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b", "must hold sections"),
        ("a: [", "is not YAML"),
        ("locl: {lr: 1}", "locl={'lr': 1}: is not a section of an experiment; did you mean 'local'?"),
        ("local: {lrr: 1}", "local.lrr=1: is not a field of local; did you mean 'lr'?"),
        ("local: 3", "local=3: "),
        ("algorithm: fedavg", "algorithm=fedavg: must be a name with fields"),
        ("stages: [{name: a, rounds: 1, needs: [b]}]", "stages.a.needs=b: names no earlier stage"),
        ("stages: [{name: a, rounds: 1}, {name: a, rounds: 1}]", "stages.name=a: is used twice"),
        ("stages: [{name: a}]", "stages.a.rounds"),
        ("stages: [3]", "stages.0=3: "),
        ("stages: [{name: a, rounds: 1, local: {lr: 0}}]", "stages.a.local.lr=0: must be greater than 0"),
        ("stages: [{name: a, rounds: 1, local: {batch_size: 0}}]", "stages.a.local.batch_size=0: must be at least 1"),
        ("stages: [{name: a, rounds: 1, local: {lrr: 1}}]", "stages.a.local.lrr=1: is not a field of local"),
        ("stages: [{name: a, rounds: 1, colour: 1}]", "stages.a.colour=1: is not a field of stages.a"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    """Kills: a YAML of another shape that ends in a traceback."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        Experiment.from_yaml(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_field_goes_over_to_a_new_choice_only_where_it_means_the_same() -> None:
    """Kills: a base's clients forced on the natural partition; the capped rule without its own least size."""
    base = Experiment()
    assert base.override(["partition.name=natural"]).to_mapping()["partition"]["clients"] == 0
    capped = base.override(["partition.name=dirichlet_capped"]).to_mapping()["partition"]
    assert (capped["min_samples"], capped["on_small"], capped["clients"]) == (10, "redraw", 20)
