"""Partitions: fields that contradict each other, and data that do not allow what is asked."""

from __future__ import annotations

from tests.bad_input.case import run

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
    run("a set with a word", "partition.name=class_sets partition.sets=[[0,x]]", "partition.sets.0.1=x: must be a valid"),
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
        "more clients in a round than hold data",
        "partition.alpha=0.0001 participation.count=20",
        "the number of clients that hold data",
        loads=True,
    ),
]

CASES = [*FIELDS, *OF_DATA]
