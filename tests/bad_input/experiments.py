"""Experiments: values of each section, YAML files, names and places."""

from __future__ import annotations

from pathlib import Path

from tests.bad_input.case import Case, run, yaml_file

VALUES = [
    # the run
    run("name is a path", "name=../../x"),
    run("name has two lines", ('name="a\\nb"',)),
    run("name steers the terminal", ('name="\\e[31m"',)),
    run("name is of another script", "name=研究"),
    run("name is empty", "name="),
    run("name of 65 letters", f"name={'a' * 65}"),
    run("name of 100,000 letters", f"name={'a' * 100_000}"),
    run("name is not UTF-8", ("name=\udcff",)),
    run("seed is negative", "seed=-1"),
    run("seed has a fraction", "seed=1.5"),
    run("seed is a date", "seed=2024-01-01"),
    run("seed is no date", "seed=2024-13-45"),
    run("seed is beyond 64 bits", "seed=9223372036854775808"),
    run("seed of 5,000 digits", f"seed={'9' * 5000}"),
    run("seed in hexadecimal of 5,000 digits", f"seed=0x{'f' * 5000}"),
    run("seed is tagged", ("seed=!!int abc",)),
    run("seed holds itself", ("seed=&a [*a]",)),
    run("rounds is none", "rounds=0"),
    run("rounds is huge", "rounds=10000000000"),
    run("rounds is a list", "rounds=[1]"),
    run("rounds as floats are written", "rounds=1e9"),
    run("spaces around the equals sign", "rounds = 0"),
    run("a space behind the equals sign", "quickstart rounds= 0"),
    run("a space before the equals sign", "rounds =0 seed=1"),
    # local training
    run("lr is NaN", "local.lr=.nan"),
    run("lr is infinite", "local.lr=.inf"),
    run("lr is negative", "local.lr=-1"),
    run("lr is a mapping", ("local.lr={a: 1}",)),
    run("lr of 400 digits", f"local.lr=1{'0' * 400}"),
    run("lr_decay is above 1", "local.lr_decay=1.1"),
    run("epochs is huge", f"local.epochs=1{'0' * 30}"),
    run("steps is text", "local.steps=many"),
    run(
        "batch size as floats are written",
        "local.batch_size=1e2",
    ),
    run("batch size is a word", "local.batch_size=ful"),
    run("momentum is 1", "local.momentum=1"),
    run("nesterov without momentum", "local.nesterov=true"),
    run("weight decay is negative", "local.weight_decay=-0.1"),
    run("optimizer is unknown", "local.optimizer=lion"),
    run("augmentation is unknown", "local.augment=mixup"),
    run("last batch is unknown", "local.last_batch=skip"),
    # participation
    run("count is zero", "participation.count=0"),
    run("count above the clients", "participation.count=21"),
    run("count above few clients", "participation.count=8 partition.clients=5"),
    run("fraction is NaN", "participation.fraction=.nan"),
    run("count beside fraction", "participation.count=3 participation.fraction=0.5"),
    run("scheme is unknown", "participation.scheme=poisson"),
    # work
    run("least work above the most", "work.low=3"),
    run("everybody is dropped", "work.cut=drop"),
    run("a table of work and a draw", "work.table=[1,2] work.stragglers=0.5"),
    run("work of nothing", "work.table=[1,0]"),
    run("a table of work is missing", "work.table=missing.csv"),
    run("half steps", "work.table=[1.5] local.steps=3 partition.clients=1 participation.count=1"),
    run("a table of work for few clients", "work.table=[1,2]"),
    # privacy
    run("noise without a clip", "privacy.noise=1"),
    run("noise that is next to none", "privacy.clip=1 privacy.noise=1e-9"),
    run("noise on a cohort of a fixed size", "privacy.clip=1 privacy.noise=1 participation.count=5"),
    run(
        "noise on what stragglers of a cohort do",
        "privacy.clip=1 privacy.noise=1 participation.scheme=binomial work.stragglers=0.5",
    ),
    run("privacy of control variates", "algorithm.name=scaffold privacy.clip=1"),
    run("privacy of running statistics", "model.name=resnet8 privacy.clip=1"),
    # evaluation and checkpoints
    run("every is negative", "evaluation.every=-1"),
    run("batch of an evaluation is none", "evaluation.batch_size=0"),
    run("part is unknown", "evaluation.fine_tune_part=tail"),
    run("client loss is text", "evaluation.client_loss=perhaps"),
    run("no round between checkpoints", "checkpoint.every=0"),
    run("no checkpoint is kept", "checkpoint.keep=0"),
    # execution
    run("actors is negative", "execution.actors=-1"),
    run("threads is huge", "execution.threads=1000000000"),
    run("workers is huge", "execution.workers=1000000000"),
    run("block is none", "execution.block=0"),
    run("cache is negative", "execution.state_cache_mb=-1"),
    run("store is unknown", "execution.state_store=tape"),
    run("timeout is infinite", "execution.block_timeout=.inf"),
    run("timeout is too long to wait for", "execution.start_timeout=1e300"),
    run("retries is negative", "execution.retries=-1"),
    run("device is unknown", "execution.device=tpu"),
    run("share above a GPU", "execution.gpus_per_actor=2"),
    run("share of a GPU for the CPU", "execution.gpus_per_actor=0.5 execution.device=cpu"),
    run("a GPU where there is none", "execution.actors=0 execution.device=cuda"),
    run("capture on a CPU", "execution.executor=graph execution.device=cpu"),
    run("tf32 on a CPU", "execution.tf32=true execution.device=cpu"),
    run(
        "less than float64 for float64",
        "execution.autocast=bfloat16 execution.precision=float64",
    ),
    run("a cluster for this process", "--address auto execution.actors=0"),
    # algorithm
    run("algorithm is unknown", "algorithm.name=fedprx"),
    run("algorithm is a list", "algorithm.name=[1]"),
    run("algorithm has no name", "algorithm={}"),
    run("algorithm's name is a mapping", ("algorithm={name: {a: 1}}",)),
    run("mu of a method that has none", "algorithm.mu=0.1"),
    run("mu in a stage that has none", "cbfl stages.warmup.algorithm.mu=0.1"),
    run("a symbol of a method that has none", "mu=0.1"),
    run(
        "hidden layers of another model",
        "model.name=cnn model.hidden=[3]",
    ),
    run("a field of other data", "data.valid=train"),
    run("a field of another partition", "partition.shards_per_client=2"),
    run("a field is a number", ("algorithm={1: 2, name: fedavg}",)),
    run("mu is negative", "algorithm.name=fedprox algorithm.mu=-1"),
    run("mu is NaN", "algorithm.name=fedprox algorithm.mu=.nan"),
    run("option is unknown", "algorithm.name=scaffold algorithm.option=III"),
    run("adam off the path", "algorithm.name=scaffold local.optimizer=adam"),
    run("moon without its projection", "algorithm.name=moon"),
    run("a stage's algorithm alone", "algorithm.name=ccvr"),
    # model
    run("model is unknown", "model.name=resnet"),
    run("no hidden layer", "model.hidden=[]"),
    run("hidden layer of no units", "model.hidden=[0]"),
    run("hidden layers are a number", "model.hidden=3"),
    run("model beyond memory", "model.hidden=[10000000000]", loads=True),
    run("model beyond 64 bits", "model.hidden=[1000000000000000000]", loads=True),
    run(
        "image too small for the model",
        "model.name=lenet data.name=synthetic partition.clients=5 participation.count=2",
        loads=True,
    ),
    run("head is unknown", "model.head=cosine"),
    run("clients' models are one", "client_models=mlp"),
    run("a client's model is a number", "client_models=[3]"),
    run("a client's model has a list for a name", ("client_models=[{name: [1]}]",)),
    run("models that cannot be averaged", "client_models=[mlp,lenet]"),
    # keys
    run("no key", "=3"),
    run("a key twice in a value", ("algorithm={name: fedprox, mu: 1, mu: 2}",)),
    run("no value", "local.lr"),
    run("unknown key", "local.lrr=1"),
    run("key without its section", "lr=1"),
    run("key below a field", "local.lr.x=3"),
    run("a section as a number", "local=3"),
    run("a stage where there are none", "stages.x.rounds=3"),
    run("a symbol of two things", "algorithm.name=feddc alpha=3"),
]

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{one}: &{one} [{','.join([f'*{before}'] * 10)}]\n" for before, one in zip("abcdefgh", "bcdefghi", strict=True)
)
STAGES = "stages: [{name: a, rounds: 2}, {name: b, rounds: 2, needs: [a]}]\n"

FILES = [
    yaml_file("empty file", ""),
    yaml_file("a list", "- a\n- b"),
    yaml_file("an open bracket", "a: ["),
    yaml_file("a section twice", "local: {lr: 1}\nseed: 1\nlocal: {}\n"),
    yaml_file("a field twice", "local:\n  lr: 1\n  'lr': 2\n"),
    yaml_file("a stage's field twice", "stages: [{name: a, rounds: 1, local: {lr: 1,\n lr: 2}}]"),
    yaml_file("a field of another method", "algorithm: {name: fedavg, lam: 1}"),
    yaml_file("a tab", "local:\n\tlr: 1"),
    yaml_file("two documents", "name: a\n---\nname: b\n"),
    yaml_file("a class", "!!python/object/apply:os.system ['touch owned']"),
    yaml_file("a bomb of aliases", BOMB),
    yaml_file("a mapping that holds itself", "local: &a {lr: *a}"),
    yaml_file("100,000 brackets", "[" * 100_000),
    yaml_file("100,000 dashes", "- " * 100_000),
    yaml_file("100,000 mappings", "a: " + "{a: " * 100_000),
    yaml_file("20 megabytes", "# " + "x" * 20 * 2**20),
    yaml_file("a number of 5,000 digits", f"seed: {'9' * 5000}"),
    yaml_file("a number of 5,000 digits of 16", f"seed: 0x{'f' * 5000}"),
    yaml_file("a number of 5,000 digits and underscores", f"seed: 1{'_0' * 5000}"),
    yaml_file("a 13th month", "seed: 2024-13-45"),
    yaml_file("neither true nor false", "local: {nesterov: !!bool maybe}"),
    yaml_file("another encoding", "name: ä".encode("utf-16")),
    yaml_file("binary", bytes(range(256))),
    yaml_file("NUL", b"name: a\0b"),
    yaml_file("a key that is a list", "? [a]\n: b"),
    yaml_file("unknown section", "locl: {lr: 1}"),
    yaml_file("a section that is a number", "3: 4"),
    yaml_file("unknown field", "local: {lrr: 1}"),
    yaml_file("a section without content", "local:"),
    yaml_file("a choice by its name alone", "algorithm: fedavg"),
    yaml_file("a value of another section", "data: {name: fedavg}"),
    yaml_file("stages are a mapping", "stages: {a: 1}"),
    yaml_file("a stage is a number", "stages: [3]"),
    yaml_file("a stage without rounds or name", "stages: [{}]"),
    yaml_file("a stage's name is a path", "stages: [{name: ../a, rounds: 1}]"),
    yaml_file("a stage's name has a dot", "stages: [{name: a.b, rounds: 1}]"),
    yaml_file("a stage twice", "stages: [{name: a, rounds: 1}, {name: a, rounds: 1}]"),
    yaml_file("a stage needs itself", "stages: [{name: a, rounds: 1, needs: [a]}]"),
    yaml_file("a stage with negative rounds", "stages: [{name: a, rounds: -1}]"),
    yaml_file("no stage with rounds", "stages: [{name: a, rounds: 0}]"),
    yaml_file(
        "101 stages",
        "stages: [" + ", ".join(f"{{name: s{number}, rounds: 1}}" for number in range(101)) + "]",
    ),
    yaml_file("a stage's lr is none", "stages: [{name: a, rounds: 1, local: {lr: 0}}]"),
    yaml_file(
        "rounds after a calibration",
        STAGES.replace("2, needs: [a]", "1, needs: [a], algorithm: {name: ccvr}"),
    ),
    yaml_file("schedule is a number", "schedule: 3"),
    yaml_file("a change of nothing", "schedule: [{round: 3}]"),
    yaml_file("a change before the start", "schedule: [{round: 1, set: {}}]"),
    yaml_file("a change after the end", "schedule: [{round: 99, set: {}}]"),
    yaml_file("a change of the partition", "schedule: [{round: 3, set: {partition.alpha: 1}}]"),
    yaml_file("a change to a bad value", "schedule: [{round: 3, set: {local.lr: -1}}]"),
    yaml_file("a change of an unknown key", "schedule: [{round: 3, set: {local.x: 1}}]"),
    yaml_file("two changes in a round", "schedule: [{round: 3, set: {}}, {round: 3, set: {}}]"),
]


def _taken(folder: Path) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "thesis.tex").touch()
    (folder / "file").touch()
    (folder / "nowhere").symlink_to(folder / "gone")
    (folder / "loop").symlink_to(folder / "loop")


def _place(name: str, words: str) -> Case:
    return Case(name, ("run", *words.split()), make=_taken)


PLACES = [
    _place("an experiment that is not there", "gone.yaml"),
    Case("a file's name mistyped", ("run", "mine.yml"), {"mine.yaml": "rounds: 1"}),
    _place("a folder for a file", "full"),
    _place("an endless file", "/dev/zero"),
    _place("a link to itself", "loop.yaml"),
    _place("a name of 300 letters", f"{'a' * 300}.yaml"),
    _place("an unknown name", "quikstart"),
    _place("an unknown profile", "--profile poster"),
    _place("out is a file", "--out file"),
    _place("out is below a file", "--out file/below"),
    _place("out is somebody's folder", "--out full"),
    _place("out is a link to nowhere", "--out nowhere"),
    _place("out is a link to itself", "--out loop"),
    _place("out is where nothing can be", "--out /proc/nowhere"),
    _place("out has a name of 300 letters", f"--out {'a' * 300}"),
    _place("store is a file", "--store file"),
    _place("store is where nothing can be", "--store /proc/nowhere"),
]

CASES = [*VALUES, *FILES, *PLACES]
