"""Experiments: values of each section, YAML files, names and places."""

from __future__ import annotations

from pathlib import Path

from tests.bad_input.case import Case, run, yaml_file

VALUES = [
    # the run
    run("name is a path", "name=../../x", "name=../../x: must be 1 to 64 of the characters A-Z, a-z, 0-9, '.'"),
    run("name has two lines", ('name="a\\nb"',), "name=a b: must be 1 to 64 of"),
    run("name steers the terminal", ('name="\\e[31m"',), r"name=\x1b[31m: must be 1 to 64 of"),
    run("name is of another script", "name=研究", "name=研究: must be 1 to 64 of the characters A-Z"),
    run("name is empty", "name=", "name=None: must be a valid string"),
    run("name of 65 letters", f"name={'a' * 65}", "must be 1 to 64 of"),
    run("name of 100,000 letters", f"name={'a' * 100_000}", "(100,000 characters): must be 1 to 64 of"),
    run("name is not UTF-8", ("name=\udcff",), r"name=\udcff: must be a valid string"),
    run("seed is negative", "seed=-1", "seed=-1: must be greater than or equal to 0"),
    run("seed has a fraction", "seed=1.5", "seed=1.5: must be a valid integer"),
    run("seed is a date", "seed=2024-01-01", "seed=2024-01-01: must be a valid integer"),
    run("seed is no date", "seed=2024-13-45", "seed=2024-13-45: must be a valid integer"),
    run("seed is beyond 64 bits", "seed=9223372036854775808", "seed=9223372036854775808: is larger than any"),
    run("seed of 5,000 digits", f"seed={'9' * 5000}", "(5,000 characters): Unable to parse"),
    run("seed in hexadecimal of 5,000 digits", f"seed=0x{'f' * 5000}", "seed=what is too long to be written: "),
    run("seed is tagged", ("seed=!!int abc",), "seed=!!int abc: must be a valid integer"),
    run("seed holds itself", ("seed=&a [*a]",), "seed=&a [*a]: must be a valid integer"),
    run("rounds is none", "rounds=0", "rounds=0: must be greater than or equal to 1"),
    run("rounds is huge", "rounds=10000000000", "rounds=10000000000: must be less than or equal to 1000000000"),
    run("rounds is a list", "rounds=[1]", "rounds=[1]: must be a valid integer"),
    run("rounds as floats are written", "rounds=1e9", "rounds=1e9: must be a valid integer; write rounds=1000000000"),
    run("spaces around the equals sign", "rounds = 0", "rounds=0: must be greater than or equal to 1"),
    run("a space behind the equals sign", "quickstart rounds= 0", "rounds=0: must be greater than or equal to 1"),
    run("a space before the equals sign", "rounds =0 seed=1", "rounds=0: must be greater than or equal to 1"),
    # local training
    run("lr is NaN", "local.lr=.nan", "local.lr=nan: must be a finite number"),
    run("lr is infinite", "local.lr=.inf", "local.lr=inf: must be a finite number"),
    run("lr is negative", "local.lr=-1", "local.lr=-1: must be greater than 0"),
    run("lr is a mapping", ("local.lr={a: 1}",), "local.lr={'a': 1}: must be a valid number"),
    run("lr of 400 digits", f"local.lr=1{'0' * 400}", "local.lr=1"),
    run("lr_decay is above 1", "local.lr_decay=1.1", "local.lr_decay=1.1: must be less than or equal to 1"),
    run("epochs is huge", f"local.epochs=1{'0' * 30}", "local.epochs=1000000000000000000000000000000: "),
    run("steps is text", "local.steps=many", "local.steps=many: must be a valid integer"),
    run(
        "batch size as floats are written",
        "local.batch_size=1e2",
        "=1e2: must be a valid integer; write local.batch_size",
    ),
    run("batch size is a word", "local.batch_size=ful", "local.batch_size=ful: must be 'full'"),
    run("momentum is 1", "local.momentum=1", "local.momentum=1: must be less than 1"),
    run("nesterov without momentum", "local.nesterov=true", "local.nesterov=True: needs momentum"),
    run("weight decay is negative", "local.weight_decay=-0.1", "local.weight_decay=-0.1: must be greater"),
    run("optimizer is unknown", "local.optimizer=lion", "local.optimizer=lion: must be 'sgd' or 'adam'"),
    run("augmentation is unknown", "local.augment=mixup", "local.augment=mixup: must be 'none'"),
    run("last batch is unknown", "local.last_batch=skip", "local.last_batch=skip: must be 'keep'"),
    # participation
    run("count is zero", "participation.count=0", "participation.count=0: must be greater"),
    run("count above the clients", "participation.count=21", "participation.count=21: must be at most"),
    run("count above few clients", "participation.count=8 partition.clients=5", "count=8: must be at most"),
    run("fraction is NaN", "participation.fraction=.nan", "participation.fraction=nan: must be"),
    run("count beside fraction", "participation.count=3 participation.fraction=0.5", "cannot be set beside"),
    run("scheme is unknown", "participation.scheme=poisson", "participation.scheme=poisson: must be 'fixed'"),
    # evaluation and checkpoints
    run("every is negative", "evaluation.every=-1", "evaluation.every=-1: must be greater"),
    run("batch of an evaluation is none", "evaluation.batch_size=0", "evaluation.batch_size=0: must be"),
    run("part is unknown", "evaluation.fine_tune_part=tail", "evaluation.fine_tune_part=tail: must be 'head'"),
    run("client loss is text", "evaluation.client_loss=perhaps", "evaluation.client_loss=perhaps: must be"),
    run("no round between checkpoints", "checkpoint.every=0", "checkpoint.every=0: must be greater"),
    run("no checkpoint is kept", "checkpoint.keep=0", "checkpoint.keep=0: must be greater"),
    # execution
    run("actors is negative", "execution.actors=-1", "execution.actors=-1: must be greater"),
    run("threads is huge", "execution.threads=1000000000", "execution.threads=1000000000: must be less"),
    run("workers is huge", "execution.workers=1000000000", "execution.workers=1000000000: must be less"),
    run("block is none", "execution.block=0", "execution.block=0: must be greater"),
    run("cache is negative", "execution.state_cache_mb=-1", "execution.state_cache_mb=-1: must be greater"),
    run("store is unknown", "execution.state_store=tape", "execution.state_store=tape: must be 'memory'"),
    run("timeout is infinite", "execution.block_timeout=.inf", "execution.block_timeout=inf: must be"),
    run("timeout is too long to wait for", "execution.start_timeout=1e300", "execution.start_timeout=1e300: must be"),
    run("retries is negative", "execution.retries=-1", "execution.retries=-1: must be greater"),
    run("device is unknown", "execution.device=tpu", "execution.device=tpu: must be 'auto'"),
    run("share above a GPU", "execution.gpus_per_actor=2", "execution.gpus_per_actor=2: must be less"),
    run("a GPU where there is none", "execution.actors=0 execution.device=cuda", "needs a GPU and there is none"),
    run("capture on a CPU", "execution.executor=graph execution.device=cpu", "execution.executor=graph: replays"),
    run("tf32 on a CPU", "execution.tf32=true execution.device=cpu", "execution.tf32=True: is arithmetic of a GPU"),
    run(
        "less than float64 for float64",
        "execution.autocast=bfloat16 execution.precision=float64",
        "execution.autocast=bfloat16: computes in less than float32",
    ),
    run("a cluster for this process", "--address auto execution.actors=0", "--address=auto: is of a Ray cluster"),
    # algorithm
    run("algorithm is unknown", "algorithm.name=fedprx", "algorithm.name=fedprx: is not a known algorithm"),
    run("algorithm is a list", "algorithm.name=[1]", "algorithm.name=[1]: is not a known algorithm"),
    run("algorithm has no name", "algorithm={}", "algorithm.name=None: is required"),
    run("algorithm's name is a mapping", ("algorithm={name: {a: 1}}",), "algorithm.name={'a': 1}: is not a known"),
    run("mu of a method that has none", "algorithm.mu=0.1", "fedprox, fednova, moon, fedser, clsprox, clsnorm have it"),
    run("mu in a stage that has none", "cbfl stages.warmup.algorithm.mu=0.1", "of algorithm 'fedavg'; fedprox, fed"),
    run("a symbol of a method that has none", "mu=0.1", "did you mean algorithm.mu? fedprox, fednova, moon, fedser,"),
    run(
        "hidden layers of another model",
        "model.name=cnn model.hidden=[3]",
        "is not a field of model 'cnn'; mlp, dan have it",
    ),
    run("a field of other data", "data.valid=train", "field of data 'fashion_mnist_sample'; cinic10 has it"),
    run("a field of another partition", "partition.shards_per_client=2", "of partition 'dirichlet'; shards has it"),
    run("a field is a number", ("algorithm={1: 2, name: fedavg}",), "algorithm.1=2: is not a field"),
    run("mu is negative", "algorithm.name=fedprox algorithm.mu=-1", "algorithm.mu=-1.0: must be at least 0"),
    run("mu is NaN", "algorithm.name=fedprox algorithm.mu=.nan", "algorithm.mu=nan: must be"),
    run("option is unknown", "algorithm.name=scaffold algorithm.option=III", "algorithm.option=III: must be 'I'"),
    run("adam off the path", "algorithm.name=scaffold local.optimizer=adam", "local.optimizer=adam: scaffold reads"),
    run("moon without its projection", "algorithm.name=moon", "model.projection=False: must be True for moon"),
    run("a stage's algorithm alone", "algorithm.name=ccvr", "algorithm.name=ccvr: has no rounds of its own"),
    # model
    run("model is unknown", "model.name=resnet", "model.name=resnet: is not a known model"),
    run("no hidden layer", "model.hidden=[]", "model.hidden=(): must not be empty"),
    run("hidden layer of no units", "model.hidden=[0]", "model.hidden=(0,): must be positive"),
    run("hidden layers are a number", "model.hidden=3", "model.hidden=3: must be a valid tuple"),
    run("model beyond memory", "model.hidden=[10000000000]", "hidden=(10000000000,)): needs 127,200 GB", loads=True),
    run("model beyond 64 bits", "model.hidden=[1000000000000000000]", "copies of its weights", loads=True),
    run(
        "image too small for the model",
        "model.name=lenet data.name=synthetic partition.clients=5 participation.count=2",
        "model.name=lenet: needs",
        loads=True,
    ),
    run("head is unknown", "model.head=cosine", "model.head=cosine: must be"),
    run("clients' models are one", "client_models=mlp", "client_models=mlp: must be a list of models"),
    run("a client's model is a number", "client_models=[3]", "client_models.0"),
    run("a client's model has a list for a name", ("client_models=[{name: [1]}]",), "client_models.0.name=[1]: is not"),
    run("models that cannot be averaged", "client_models=[mlp,lenet]", "is not for fedavg"),
    # keys
    run("no key", "=3", "override==3: must be key=value"),
    run("a key twice in a value", ("algorithm={name: fedprox, mu: 1, mu: 2}",), "it has the key 'mu' twice, in line 1"),
    run("no value", "local.lr", "experiment=local.lr: is neither a file nor a known name"),
    run("unknown key", "local.lrr=1", "local.lrr=1: is not a known key; did you mean 'local.lr'?"),
    run("key without its section", "lr=1", "lr=1: is not a key: keys are dotted"),
    run("key below a field", "local.lr.x=3", "local.lr.x=3: is not a known key"),
    run("a section as a number", "local=3", "local=3: is not a known key"),
    run("a stage where there are none", "stages.x.rounds=3", "stages.x.rounds=3: is not a known key"),
    run("a symbol of two things", "algorithm.name=feddc alpha=3", "alpha=3: stands for more than one key"),
]

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{one}: &{one} [{','.join([f'*{before}'] * 10)}]\n" for before, one in zip("abcdefgh", "bcdefghi", strict=True)
)
STAGES = "stages: [{name: a, rounds: 2}, {name: b, rounds: 2, needs: [a]}]\n"

FILES = [
    yaml_file("empty file", "", "must hold sections"),
    yaml_file("a list", "- a\n- b", "must hold sections"),
    yaml_file("an open bracket", "a: [", "bad.yaml: is not YAML (while parsing a flow node did not find expected node"),
    yaml_file(
        "a section twice", "local: {lr: 1}\nseed: 1\nlocal: {}\n", "the key 'local' twice, in line 1 and in line 3"
    ),
    yaml_file("a field twice", "local:\n  lr: 1\n  'lr': 2\n", "the key 'lr' twice, in line 2 and in line 3"),
    yaml_file(
        "a stage's field twice", "stages: [{name: a, rounds: 1, local: {lr: 1,\n lr: 2}}]", "'lr' twice, in line 1"
    ),
    yaml_file("a field of another method", "algorithm: {name: fedavg, lam: 1}", "cbfl, ditto, pfedme have it"),
    yaml_file("a tab", "local:\n\tlr: 1", "is not YAML"),
    yaml_file("two documents", "name: a\n---\nname: b\n", "is not YAML"),
    yaml_file("a class", "!!python/object/apply:os.system ['touch owned']", "is not YAML"),
    yaml_file("a bomb of aliases", BOMB, "it stands for more than 1,000,000 values"),
    yaml_file("a mapping that holds itself", "local: &a {lr: *a}", "the alias *a is part of what it stands for"),
    yaml_file("100,000 brackets", "[" * 100_000, "it is more than 64 levels deep"),
    yaml_file("100,000 dashes", "- " * 100_000, "it is more than 64 levels deep"),
    yaml_file("100,000 mappings", "a: " + "{a: " * 100_000, "it is more than 64 levels deep"),
    yaml_file("20 megabytes", "# " + "x" * 20 * 2**20, "it is longer than 16,777,216 bytes"),
    yaml_file("a number of 5,000 digits", f"seed: {'9' * 5000}", "cannot be read: Exceeds the limit"),
    yaml_file("a 13th month", "seed: 2024-13-45", "it has a value that cannot be read: month must be in 1..12"),
    yaml_file("neither true nor false", "local: {nesterov: !!bool maybe}", "it has a value that cannot be read"),
    yaml_file("another encoding", "name: ä".encode("utf-16"), "it is not UTF-8"),
    yaml_file("binary", bytes(range(256)), "is not YAML"),
    yaml_file("NUL", b"name: a\0b", "is not YAML"),
    yaml_file("a key that is a list", "? [a]\n: b", "is not YAML"),
    yaml_file("unknown section", "locl: {lr: 1}", "locl={'lr': 1}: is not a section of an experiment; did you mean"),
    yaml_file("a section that is a number", "3: 4", "3=4: is not a section of an experiment"),
    yaml_file("unknown field", "local: {lrr: 1}", "local.lrr=1: is not a field of local"),
    yaml_file("a section without content", "local:", "local=None: "),
    yaml_file("a choice by its name alone", "algorithm: fedavg", "algorithm=fedavg: must be a name with fields"),
    yaml_file("a value of another section", "data: {name: fedavg}", "data.name=fedavg: is not a known data"),
    yaml_file("stages are a mapping", "stages: {a: 1}", "stages={'a': 1}: must be a valid"),
    yaml_file("a stage is a number", "stages: [3]", "stages.0=3: "),
    yaml_file("a stage without rounds or name", "stages: [{}]", "stages.0.name=None: is required"),
    yaml_file(
        "a stage's name is a path", "stages: [{name: ../a, rounds: 1}]", "stages.../a.name=../a: must be 1 to 64"
    ),
    yaml_file(
        "a stage's name has a dot", "stages: [{name: a.b, rounds: 1}]", "of the characters A-Z, a-z, 0-9, '_' and"
    ),
    yaml_file("a stage twice", "stages: [{name: a, rounds: 1}, {name: a, rounds: 1}]", "stages.name=a: is used twice"),
    yaml_file("a stage needs itself", "stages: [{name: a, rounds: 1, needs: [a]}]", "needs=a: names no earlier stage"),
    yaml_file("a stage with negative rounds", "stages: [{name: a, rounds: -1}]", "stages.a.rounds=-1: must be at"),
    yaml_file("no stage with rounds", "stages: [{name: a, rounds: 0}]", "stages.a.rounds=0: a stage without rounds"),
    yaml_file(
        "101 stages",
        "stages: [" + ", ".join(f"{{name: s{number}, rounds: 1}}" for number in range(101)) + "]",
        "at most 100 items",
    ),
    yaml_file("a stage's lr is none", "stages: [{name: a, rounds: 1, local: {lr: 0}}]", "stages.a.local.lr=0: must be"),
    yaml_file(
        "rounds after a calibration",
        STAGES.replace("2, needs: [a]", "1, needs: [a], algorithm: {name: ccvr}"),
        "stages.b.rounds=1: must be 0, for ccvr has no rounds",
    ),
    yaml_file("schedule is a number", "schedule: 3", "schedule=3: must be a valid"),
    yaml_file("a change of nothing", "schedule: [{round: 3}]", "schedule.0.set=None: is required"),
    yaml_file("a change before the start", "schedule: [{round: 1, set: {}}]", "schedule.0.round=1: must be greater"),
    yaml_file("a change after the end", "schedule: [{round: 99, set: {}}]", "schedule=99: is beyond the last round"),
    yaml_file("a change of the partition", "schedule: [{round: 3, set: {partition.alpha: 1}}]", "cannot change in mid"),
    yaml_file("a change to a bad value", "schedule: [{round: 3, set: {local.lr: -1}}]", "local.lr=-1: must be greater"),
    yaml_file("a change of an unknown key", "schedule: [{round: 3, set: {local.x: 1}}]", "local.x=1: is not a known"),
    yaml_file("two changes in a round", "schedule: [{round: 3, set: {}}, {round: 3, set: {}}]", "must name each round"),
]


def _taken(folder: Path) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "thesis.tex").touch()
    (folder / "file").touch()
    (folder / "nowhere").symlink_to(folder / "gone")
    (folder / "loop").symlink_to(folder / "loop")


def _place(name: str, words: str, message: str) -> Case:
    return Case(name, ("run", *words.split()), message, make=_taken)


PLACES = [
    _place(
        "an experiment that is not there", "gone.yaml", "gone.yaml: cannot be read (No such file or directory); name"
    ),
    Case("a file's name mistyped", ("run", "mine.yml"), "did you mean 'mine.yaml'?", {"mine.yaml": "rounds: 1"}),
    _place("a folder for a file", "full", "experiment=full: is not YAML (it is a folder)"),
    _place("an endless file", "/dev/zero", "experiment=/dev/zero: is not YAML (it is a device, not a file)"),
    _place("a link to itself", "loop.yaml", "experiment=loop.yaml: cannot be read"),
    _place("a name of 300 letters", f"{'a' * 300}.yaml", "cannot be read"),
    _place("an unknown name", "quikstart", "experiment=quikstart: is neither a file nor a known name; did you mean"),
    _place("an unknown profile", "--profile poster", "--profile=poster: is not a profile"),
    _place("out is a file", "--out file", "--out=file: is not a folder"),
    _place("out is below a file", "--out file/below", "is not a folder); name another"),
    _place("out is somebody's folder", "--out full", "--out=full: is not empty and holds no run"),
    _place("out is a link to nowhere", "--out nowhere", "--out=nowhere: cannot be written"),
    _place("out is a link to itself", "--out loop", "--out=loop: cannot be written"),
    _place("out is where nothing can be", "--out /proc/nowhere", "--out=/proc/nowhere: cannot be written"),
    _place("out has a name of 300 letters", f"--out {'a' * 300}", "cannot be written (File name too long)"),
    _place("store is a file", "--store file", "--store=file: cannot be written"),
    _place("store is where nothing can be", "--store /proc/nowhere", "--store=/proc/nowhere: cannot be written"),
]

CASES = [*VALUES, *FILES, *PLACES]
