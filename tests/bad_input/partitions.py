"""Partitions: fields that contradict each other, and data that do not allow what is asked."""

from __future__ import annotations

from tests.bad_input.case import Case, run
from tests.bad_input.datasets import parquet


def table(name: str, content: bytes, message: str, *words: str, loads: bool = False) -> Case:
    """``fedskew run partition.name=table`` of a file with that content."""
    typed = ("run", "partition.name=table", "partition.file=split.parquet", "participation.count=null", *words)
    return Case(name, typed, message, {"split.parquet": content}, loads=loads)


MATRIX = "partition.name=class_matrix partition.matrix="
GROUPS = "partition.name=owner_groups data.name=synthetic data.users=4 participation.count=1 "

FIELDS = [
    run("partition is unknown", "partition.name=dirchlet", "partition.name=dirchlet: is not a known partition; did"),
    run("no client", "partition.clients=0", "partition.clients=0: must be at least 1"),
    run("a negative client", "partition.clients=-5", "partition.clients=-5: must be at least 1"),
    run("half a client", "partition.clients=2.5", "partition.clients=2.5: must be a valid integer"),
    run("alpha is NaN", "partition.alpha=.nan", "partition.alpha=nan: must be a number above 0"),
    run("alpha is infinite", "partition.alpha=.inf", "partition.alpha=inf: must be a number above 0"),
    run("alpha is zero", "partition.alpha=0", "partition.alpha=0.0: must be a number above 0"),
    run(
        "alpha of a partition without one", "partition.name=iid partition.alpha=1", "is not a field of partition 'iid'"
    ),
    run("min_samples without effect", "partition.min_samples=5", "partition.min_samples=5: has no effect with"),
    run("min_samples is negative", "partition.min_samples=-1 partition.on_small=redraw", "must not be negative"),
    run("on_small is unknown", "partition.on_small=ignore", "partition.on_small=ignore: must be 'allow'"),
    run(
        "sizes are infinite", "partition.name=dirichlet_client partition.size_sigma=.inf", "must be a number from 0 on"
    ),
    run("no class for a client", "partition.name=classes_per_client partition.classes=0", "partition.classes=0: must"),
    run("no shard for a client", "partition.name=shards partition.shards_per_client=0", "must be at least 1"),
    run("degree is unknown", "partition.name=personalised partition.degree=some", "partition.degree=some: must be"),
    run(
        "owners that are moved", "partition.name=natural partition.min_samples=3 partition.on_small=redraw", "cannot be"
    ),
    run("a seed beyond numpy's old generator", "partition.name=cbfl_code partition.seed=4294967296", "from 0 to 2^32"),
    run("sets are a number", "partition.name=class_sets partition.sets=3", "partition.sets=3: must be"),
    run("sets are unknown", "partition.name=class_sets partition.sets=IS-3", "partition.sets=IS-3: must be"),
    run(
        "a set with a word", "partition.name=class_sets partition.sets=[[0,x]]", "partition.sets.0.1=x: must be a valid"
    ),
    run("a set has a class twice", "partition.name=class_sets partition.sets=[[1,1]] partition.clients=1", "each once"),
    run(
        "a set for nobody", "partition.name=class_sets partition.sets=[] partition.clients=1", "partition.sets=[]: must"
    ),
    run("sets of others", "partition.name=class_sets partition.clients=7", "partition.clients=7: is not the number of"),
    run("a poor device that is none", "partition.name=class_sets partition.poor_device=9", "must be the number of a"),
    run("a share above 1", "partition.name=class_sets partition.poor_share=1.5", "must be above 0 and at most 1"),
    run("no sample for a client", "partition.name=replacement partition.samples=0", "partition.samples=0: must be at"),
    run(
        "more than a client has",
        "partition.name=replacement partition.min_samples=30 partition.on_small=redraw",
        "is more than the 20 samples of each client",
    ),
    run("alpha in words", "partition.alpha=[0.1,much]", "partition.alpha=[0.1, 'much']: must be a valid number"),
    run("alpha for some clients", "partition.alpha=[0.1,1]", "partition.alpha=[0.1, 1.0]: has 2 values for 20 clients"),
    run("sizes of others", "partition.name=sizes partition.sizes=[1,2]", "is not the number of sizes, 2; set it to 2"),
    run(
        "a size that is none", "partition.name=sizes partition.sizes=[1,x]", "partition.sizes.1=x: must be a valid num"
    ),
    run(
        "shares of sizes that are not all",
        "partition.name=sizes partition.clients=2 participation.count=2 partition.sizes=[0.5,0.4]",
        "partition.sizes=[0.5, 0.4]: must add up to 1 where they are shares, not to 0.9",
    ),
    run("growth is unknown", "partition.name=sizes partition.sizes=cubic", "partition.sizes=cubic: must be 'linear'"),
    run(
        "sizes twice", "partition.name=dirichlet_client partition.size_sigma=1 partition.sizes=linear", "has no effect"
    ),
    run("a matrix without numbers", f"{MATRIX}[[]]", "partition.matrix=[[]]: must have a number for each client"),
    run("a matrix with a short row", f"{MATRIX}[[1,2],[3]]", "partition.matrix=[[1, 2], [3]]: must have a number for"),
    run("a matrix of texts", f"{MATRIX}[[1,x]]", "partition.matrix.0.1=x: must be a valid number"),
    run("no matrix", "partition.name=class_matrix", "partition.matrix=None: is required"),
    run(
        "no group of owners", "partition.name=owner_groups", "partition.clients=0: must be given, or owners_per_client"
    ),
    run(
        "shards of two rules", "partition.name=shards partition.shard_size=9", "partition.leftover=keep: cannot be kept"
    ),
    run("no table", "partition.name=table", "partition.file=None: is required"),
    run("a table that is gone", "partition.name=table partition.file=gone.parquet", "there is no such file (looked at"),
    run(
        "a table at nobody's home", "partition.name=table partition.file=~nobody-at-all/x", "names no folder (Could no"
    ),
    run("a folder for a table", "partition.name=table partition.file=.", "partition.file=.: cannot be read as a table"),
    table("a table that is none", b"row,client", "partition.file=split.parquet: cannot be read as a table of rows and"),
    table("a table without clients", parquet(row=[0]), "it has no column 'client'"),
    table("a table with a row twice", parquet(row=[0, 0], client=[0, 1]), "gives row 0 of the split train more than"),
    table(
        "a table of fractions", parquet(row=[0.5], client=[0]), "its column 'row' must hold whole numbers, not double"
    ),
    table("a table of another split", parquet(row=[0], client=[0], split=["all"]), "train and test, not 'all'"),
]

OF_DATA = [
    run("more clients than samples", "partition.clients=1000000000000", "is more than the 10000 training", loads=True),
    run("clients beyond 64 bits", f"partition.clients={'9' * 30}", "is larger than any number of a run can be"),
    run(
        "clients beyond memory",
        "partition.name=replacement partition.clients=1000000000000",
        "makes a table",
        loads=True,
    ),
    run(
        "samples beyond memory",
        "partition.name=replacement partition.samples=1000000000000",
        "makes a table",
        loads=True,
    ),
    run(
        "more min_samples than samples",
        "partition.name=iid partition.min_samples=5000 partition.on_small=redraw",
        "partition.min_samples=5000: is more than 10000 samples give 20 clients",
        loads=True,
    ),
    run(
        "a draw that never comes",
        "partition.alpha=0.001 partition.min_samples=400 partition.on_small=redraw",
        "was not reached in 1000 draws",
        loads=True,
    ),
    run(
        "more classes than there are",
        "partition.name=classes_per_client partition.classes=11",
        "partition.classes=11: is more than the 10 classes",
        loads=True,
    ),
    run(
        "more shards than samples",
        "partition.name=shards partition.shards_per_client=1000000000000",
        "makes more shards than the 10000 training samples",
        loads=True,
    ),
    run(
        "owners that there are not",
        "partition.name=natural",
        "partition.name=natural: needs data with owners",
        loads=True,
    ),
    run(
        "another number of owners",
        "partition.name=natural partition.clients=9 data.name=synthetic data.users=4",
        "partition.clients=9: is not the number of owners, 4",
        loads=True,
    ),
    run(
        "a class that the data lack",
        "partition.name=class_sets partition.sets=[[0,99]] partition.clients=1 participation.count=1",
        "has class 99, but the data have classes 0 to 9",
        loads=True,
    ),
    run(
        "more of a class than there is",
        "partition.name=class_sets partition.per_class=600 participation.count=2",
        "partition.per_class=600: for 5 devices",
        loads=True,
    ),
    run(
        "sizes that are not all",
        "partition.name=sizes partition.clients=2 participation.count=2 partition.sizes=[100,200]",
        "partition.sizes=[100, 200]: add up to 300, but there are 10000 training samples; set data.train_samples=300",
        loads=True,
    ),
    run(
        "a matrix of other classes",
        f"{MATRIX}[[1,2]] participation.count=2",
        "partition.matrix=[[1, 2]]: has 1 rows, but the data have 10 classes",
        loads=True,
    ),
    run(
        "alpha for some classes",
        "partition.name=dirichlet_client partition.alpha=[1,2]",
        "partition.alpha=[1.0, 2.0]: has 2 values for 10 classes; give 10 values, or one number for all",
        loads=True,
    ),
    run(
        "classes that go round too few clients",
        "partition.name=classes_per_client partition.assignment=deterministic partition.clients=4 partition.classes=3 "
        "participation.count=4",
        "partition.clients=4: with assignment=deterministic leaves class 6 to nobody; set it to 10 or more",
        loads=True,
    ),
    run(
        "more groups than owners", f"{GROUPS}partition.clients=9", "is more than the 4 owners; set it to 4", loads=True
    ),
    run(
        "groups that do not come out even",
        f"{GROUPS}partition.owners_per_client=3 partition.remainder=refuse",
        "partition.owners_per_client=3: does not divide the 4 owners",
        loads=True,
    ),
    run(
        "fewer shards than clients",
        "partition.name=shards partition.shards_per_client=null partition.shard_size=3000",
        "partition.shard_size=3000: makes 4 shards for 20 clients; set it to 500 or less",
        loads=True,
    ),
    table(
        "a table of more rows than there are",
        parquet(row=[0, 10_000], client=[0, 1]),
        "partition.file=split.parquet: has row 10000, but there are 10000 training samples",
        loads=True,
    ),
    table(
        "a table of another content",
        parquet(row=[0], client=[0]),
        "partition.file=split.parquet: says something else than the table of partition.sha256=",
        f"partition.sha256={'a' * 64}",
        loads=True,
    ),
    run(
        "more clients in a round than hold data",
        "partition.alpha=0.0001 participation.count=20",
        "the number of clients that hold data",
        loads=True,
    ),
]

CASES = [*FIELDS, *OF_DATA]
