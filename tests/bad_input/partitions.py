"""Partitions: fields that contradict each other, and data that do not allow what is asked."""

from __future__ import annotations

from tests.bad_input.case import Case, run
from tests.bad_input.datasets import parquet


def table(name: str, content: bytes, *words: str, loads: bool = False) -> Case:
    """``fedskew run partition.name=table`` of a file with that content."""
    typed = ("run", "partition.name=table", "partition.file=split.parquet", "participation.count=null", *words)
    return Case(name, typed, {"split.parquet": content}, loads=loads)


MATRIX = "partition.name=class_matrix partition.matrix="
GROUPS = "partition.name=owner_groups data.name=synthetic data.users=4 participation.count=1 "

FIELDS = [
    run("partition is unknown", "partition.name=dirchlet"),
    run("no client", "partition.clients=0"),
    run("a negative client", "partition.clients=-5"),
    run("half a client", "partition.clients=2.5"),
    run("alpha is NaN", "partition.alpha=.nan"),
    run("alpha is infinite", "partition.alpha=.inf"),
    run("alpha is zero", "partition.alpha=0"),
    run("alpha of a partition without one", "partition.name=iid partition.alpha=1"),
    run("min_samples without effect", "partition.min_samples=5"),
    run("min_samples is negative", "partition.min_samples=-1 partition.on_small=redraw"),
    run("on_small is unknown", "partition.on_small=ignore"),
    run("sizes are infinite", "partition.name=dirichlet_client partition.size_sigma=.inf"),
    run("no class for a client", "partition.name=classes_per_client partition.classes=0"),
    run("no shard for a client", "partition.name=shards partition.shards_per_client=0"),
    run("degree is unknown", "partition.name=personalised partition.degree=some"),
    run("owners that are moved", "partition.name=natural partition.min_samples=3 partition.on_small=redraw"),
    run("a seed beyond numpy's old generator", "partition.name=cbfl_code partition.seed=4294967296"),
    run("sets are a number", "partition.name=class_sets partition.sets=3"),
    run("sets are unknown", "partition.name=class_sets partition.sets=IS-3"),
    run("a set with a word", "partition.name=class_sets partition.sets=[[0,x]]"),
    run("a set has a class twice", "partition.name=class_sets partition.sets=[[1,1]] partition.clients=1"),
    run("a set for nobody", "partition.name=class_sets partition.sets=[] partition.clients=1"),
    run("sets of others", "partition.name=class_sets partition.clients=7"),
    run("a poor device that is none", "partition.name=class_sets partition.poor_device=9"),
    run("a share above 1", "partition.name=class_sets partition.poor_share=1.5"),
    run("no sample for a client", "partition.name=replacement partition.samples=0"),
    run(
        "more than a client has",
        "partition.name=replacement partition.min_samples=30 partition.on_small=redraw",
    ),
    run("alpha in words", "partition.alpha=[0.1,much]"),
    run("alpha for some clients", "partition.alpha=[0.1,1]"),
    run("sizes of others", "partition.name=sizes partition.sizes=[1,2]"),
    run("a size that is none", "partition.name=sizes partition.sizes=[1,x]"),
    run(
        "shares of sizes that are not all",
        "partition.name=sizes partition.clients=2 participation.count=2 partition.sizes=[0.5,0.4]",
    ),
    run("growth is unknown", "partition.name=sizes partition.sizes=cubic"),
    run("sizes twice", "partition.name=dirichlet_client partition.size_sigma=1 partition.sizes=linear"),
    run("a matrix without numbers", f"{MATRIX}[[]]"),
    run("a matrix with a short row", f"{MATRIX}[[1,2],[3]]"),
    run("a matrix of texts", f"{MATRIX}[[1,x]]"),
    run("no matrix", "partition.name=class_matrix"),
    run("no group of owners", "partition.name=owner_groups"),
    run("shards of two rules", "partition.name=shards partition.shard_size=9"),
    run("no table", "partition.name=table"),
    run("a table that is gone", "partition.name=table partition.file=gone.parquet"),
    run("a table at nobody's home", "partition.name=table partition.file=~nobody-at-all/x"),
    run("a folder for a table", "partition.name=table partition.file=."),
    table("a table that is none", b"row,client"),
    table("a table without clients", parquet(row=[0])),
    table("a table with a row twice", parquet(row=[0, 0], client=[0, 1])),
    table("a table whose rows are held out", parquet(row=[0], client=[0]), "data.validation=0.1", loads=True),
    table("a table of fractions", parquet(row=[0.5], client=[0])),
    table("a table of another split", parquet(row=[0], client=[0], split=["all"])),
]

OF_DATA = [
    run("more clients than samples", "partition.clients=1000000000000", loads=True),
    run("clients beyond 64 bits", f"partition.clients={'9' * 30}"),
    run(
        "clients beyond memory",
        "partition.name=replacement partition.clients=1000000000000",
        loads=True,
    ),
    run(
        "samples beyond memory",
        "partition.name=replacement partition.samples=1000000000000",
        loads=True,
    ),
    run(
        "more min_samples than samples",
        "partition.name=iid partition.min_samples=5000 partition.on_small=redraw",
        loads=True,
    ),
    run(
        "a draw that never comes",
        "partition.alpha=0.001 partition.min_samples=400 partition.on_small=redraw",
        loads=True,
    ),
    run(
        "more classes than there are",
        "partition.name=classes_per_client partition.classes=11",
        loads=True,
    ),
    run(
        "more shards than samples",
        "partition.name=shards partition.shards_per_client=1000000000000",
        loads=True,
    ),
    run(
        "owners that there are not",
        "partition.name=natural",
        loads=True,
    ),
    run(
        "another number of owners",
        "partition.name=natural partition.clients=9 data.name=synthetic data.users=4",
        loads=True,
    ),
    run(
        "a class that the data lack",
        "partition.name=class_sets partition.sets=[[0,99]] partition.clients=1 participation.count=1",
        loads=True,
    ),
    run(
        "more of a class than there is",
        "partition.name=class_sets partition.per_class=600 participation.count=2",
        loads=True,
    ),
    run(
        "sizes that are not all",
        "partition.name=sizes partition.clients=2 participation.count=2 partition.sizes=[100,200]",
        loads=True,
    ),
    run(
        "a matrix of other classes",
        f"{MATRIX}[[1,2]] participation.count=2",
        loads=True,
    ),
    run(
        "alpha for some classes",
        "partition.name=dirichlet_client partition.alpha=[1,2]",
        loads=True,
    ),
    run(
        "classes that go round too few clients",
        "partition.name=classes_per_client partition.assignment=deterministic partition.clients=4 partition.classes=3 "
        "participation.count=4",
        loads=True,
    ),
    run("more groups than owners", f"{GROUPS}partition.clients=9", loads=True),
    run(
        "groups that do not come out even",
        f"{GROUPS}partition.owners_per_client=3 partition.remainder=refuse",
        loads=True,
    ),
    run(
        "fewer shards than clients",
        "partition.name=shards partition.shards_per_client=null partition.shard_size=3000",
        loads=True,
    ),
    table(
        "a table of more rows than there are",
        parquet(row=[0, 10_000], client=[0, 1]),
        loads=True,
    ),
    table(
        "a table of another content",
        parquet(row=[0], client=[0]),
        f"partition.sha256={'a' * 64}",
        loads=True,
    ),
    run(
        "more clients in a round than hold data",
        "partition.alpha=0.0001 participation.count=20",
        loads=True,
    ),
]

CASES = [*FIELDS, *OF_DATA]
