"""Experiments and sweeps that are ready to run, by the names that the command line knows them by.

It offers the names of functions: those of ``EXPERIMENTS`` return an experiment, those of ``SWEEPS`` a sweep for the
profile laptop or paper, one module a paper and one function a table or figure. Read ``drift.py`` first; a sweep's
module is imported when the sweep is asked for, so that an experiment alone needs no Ray Tune.
"""

from tune_configs.quickstart import cifar10, fashion_mnist, quickstart, scaling, small_cbfl, small_cbhma

EXPERIMENTS = {
    "quickstart": quickstart,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cbfl": small_cbfl,
    "cbhma": small_cbhma,
    "scaling": scaling,
}

SWEEPS = {
    "drift": (
        "fedprox_mu",
        "scaffold_options",
        "participation_epochs",
        "warmup",
        "methods",
        "heterogeneity",
        "local_epochs",
        "participation",
    ),
    "ccvr": (
        "headline",
        "cka",
        "norms",
        "remedies",
        "iid_calibration",
        "main",
        "main_cifar100",
        "main_cinic10",
        "virtual_features",
        "ablation",
        "embedding",
        "communication",
    ),
    "fedser": (
        "table1",
        "table1_literal",
        "table2",
        "table3",
        "table4",
        "figure2",
        "figure3",
        "options",
    ),
    "pflego": (
        "table",
        "curves",
        "tau",
        "participation",
        "time",
        "diverse",
        "omniglot",
        "errata",
        "cifar10_reduced",
    ),
    "fedper": ("heterogeneity", "heads"),
    "fedrep": ("table1", "table1_cifar100"),
    "fedbabu": ("grid_1_epoch", "grid_4_epochs", "grid_10_epochs"),
    "fedrecon": ("options",),
    "cbfl": (
        "table1",
        "table2",
        "table3",
        "table4",
        "table5",
        "table6",
        "table7",
        "table8",
        "table9",
        "table10",
        "table11",
        "table12",
        "table12_mobilenetv2",
        "table13",
        "figure1",
        "figures6_7",
        "figure8",
        "figure9",
        "figure10",
        "figure11",
        "text_vs_code",
        "scaffold_rule",
    ),
    "cbhma": (
        "motivation",
        "cost",
        "per_class",
        "alpha",
        "samples",
        "architecture",
        "errata",
        "quality",
        "leakage",
    ),
}
