"""What standard output has with ``--json``: each command's keys. docs/scripting.md shows these tables."""

from __future__ import annotations

ERROR = {
    "kind": "the class of the error, such as ConfigError; Usage for wrong words, Stopped for Ctrl-C and signals",
    "message": "the sentence that standard error has, too",
    "field": "of a ConfigError: the key or option; otherwise null",
    "value": "of a ConfigError: what it was set to",
    "rule": "of a ConfigError: what is wrong with it",
    "repair": "of a ConfigError: what to do; may be empty",
    "exit_code": "the exit code that the command ends with",
}

CELLS = {  # of run, floor, tune-executor and scale, where a sweep was named without a cell
    "sweep": "the sweep that was named",
    "title": "what it is, in one sentence",
    "seeds": "its seeds",
    "cells": "the names of its cells: SWEEP:CELL",
}

_SWEEP = {
    "folder": "the sweep's folder",
    "name": "its name",
    "profile": "laptop or paper",
    "trials": "trials that were to run",
    "statuses": "how many trials have each status",
    "rounds_asked": "rounds that all trials have, together",
    "rounds_computed": "those that were computed; the others came from the store",
    "interrupted": "true if it was stopped before its end; resume goes on",
    "report": "the report's page; null if it was interrupted",
    "claims": "each claim with its verdict, see below",
    "tuned": "what each side's tuning chose, one sentence each",
}

DOCUMENTS: dict[str, dict[str, str]] = {
    "run": {
        "folder": "the run's folder",
        "...": "then all keys of its summary.json, see the page on metrics",
    },
    "resume": {
        "folder": "the folder",
        "...": "then those of run, or those of sweep",
    },
    "sweep": _SWEEP,
    "report": {
        "folder": "the folder that was read",
        "report": "the page that was written",
        "trials": "trials that were planned",
        "statuses": "how many trials have each status",
        "claims": "each claim with its verdict, see below; empty for a run",
    },
    "cite": {
        "folder": "the folder that was read",
        "bibtex": "the entries, with comments that say what each is cited for",
    },
    "claims": {
        "counts": "how many claims came to what, each claim once",
        "claims": "one object for each row: paper, sweep, profile, claim, verdict, interval, seeds, command",
        "stale": "with --check: the pages that are not up to date",
    },
    "export": {
        "folder": "the folder that was read",
        "to": "the tracker, csv or parquet",
        "place": "where the results are now, without a password",
        "new": "how many numbers a tracker was told, or files were written",
    },
    "query": {
        "rows": "the answer, one object for each row, by column",
        "tables": "with --columns: the columns of each table",
    },
    "compare": {
        "sides": "side -> its trials",
        "config": "key -> side -> its values, where sides differ",
        "versions": "the same of code, packages and machine",
        "interval": "the kind of the intervals",
        "pairs": "one object for each metric and pair of cells, see below",
        "unpaired": "what could not be paired, one sentence each",
    },
    "leaderboard": {
        "metric": "the column that it is of",
        "cells": "one object for each method and task, see below; the same is in leaderboard.json",
        "ranks": "methods by mean rank over the tasks that all have, see below; null with too few of either",
    },
    "merge": {
        "folder": "the folder that was written",
        "planned": "trials that the whole sweep has",
        "taken": "how many trials each part gave",
        "doubles": "trials that two parts have with equal bits",
        "missing": "trials that no part has",
        "damaged": "trials that cannot be read",
        "versions": "what computed the parts, where they differ",
    },
    "floor": {
        "experiment": "the experiment as it was timed",
        "stage": "the stage that was timed",
        "model": "parameters, buffers, multiply-adds and layers",
        "speed": "what the machine was measured to do, per second",
        "rounds": "one object for each round: seconds, work and floor",
        "typical": "the number of the median round",
        "share": "the share of that round's time that the floor is",
        "versions": "what computed it",
        "conclusion": "the sentence at the end",
    },
    "tune-executor": {
        "file": "the YAML file that was written",
        "executor": "the executor that was chosen",
        "auto": "the executor that auto stands for here",
        "executors": "one object for each: executor, median and rounds, in seconds",
    },
    "diagnose": {
        "folder": "the folder that was read",
        "page": "of a run: the page that was written",
        "facts": "of a run: what was compared, and how",
        "layers": "of a run: CKA between clients, one object for each layer",
        "heads": "of a run: class samples against classifier norms, one object for each client",
        "file": "of a sweep: the table that was written",
        "trials": "of a sweep: how many trials are in it",
    },
    "embed": {
        "picture": "the picture that was written",
        "images": "how many test images it shows",
        "accuracy": "of each stage: the share of these images that its head has right",
    },
    "images": {
        "folder": "the folder that was read",
        "round": "of a run: the round whose generator it is",
        "stage": "of a run: its stage",
        "images": "of a run: how many were generated",
        "figures": "of a run: what was measured, by the names of the trials table",
        "picture": "of a run: the picture that was written",
        "file": "of a sweep: the table that was written",
        "trials": "of a sweep: how many trials are in it",
    },
    "scale": {
        "folder": "the study's folder",
        "page": "the page that was written",
        "laws": "of each scaling: the law with its parameters, or why there is none; as in fit.json",
    },
    "check": {
        "ok": "checks that passed",
        "failed": "checks that failed",
        "skipped": "checks that have no meaning for the part",
        "parts": "one object for each part: section, name, checks (name, status, told, same_as)",
    },
    "new": {
        "file": "the file that was written",
        "test": "its test",
        "next": "the commands to go on with",
    },
    "list": {
        "list": "what was listed; null where the lists themselves are",
        "entries": "one object for each entry: name, about, fields (name: default, or required) or trials",
    },
    "doctor": {
        "ok": "true if nothing is wrong",
        "findings": "one object for each line: mark (ok, warn or wrong), topic, name, text",
    },
    "schema": {
        "...": "the JSON Schema of an experiment; the same document without --json, in many lines",
    },
}

CLAIM = {
    "text": "the claim",
    "source": "where the paper states it",
    "metric": "the figure that it is of",
    "margin": "by how much one side is to be better",
    "kind": "greater: than the other side by more than the margin; equal: within it; above: by itself above it",
    "verdict": "held, not held or undecided",
    "effect": "of the cell that stands worst for it; more than 0 speaks for it",
    "low": "the lower end of the effect's 95 % interval",
    "high": "its upper end",
    "p": "of an exact sign-flip test that the claim is wrong; the verdict ignores it",
    "p_holm": "the same, adjusted for the number of claims",
    "seeds": "the seeds that count",
    "seeds_to_decide": "about how many seeds would decide it; null if it is decided, or if none would",
    "why": "why it is undecided; may be empty",
    "improvement": "the probability that a run of the one side beats a run of the other; null where one has no run",
    "improvement_low": "the lower end of its 95 % interval",
    "improvement_high": "its upper end",
    "rope": "half the width of the region of practical equivalence; null of a metric that is no share",
    "below": "the probability that the mean difference lies below that region, in the weakest cell",
    "within": "that it lies within",
    "above": "that it lies above",
}

PAIR = {
    "first": "the one side",
    "second": "the other",
    "cell": "the setting that both have; may be empty",
    "metric": "the column that is compared",
    "mean_first": "its mean over the seeds of the one",
    "mean_second": "and of the other",
    "difference": "the second less the first",
    "low": "the lower end of its 95 % interval",
    "high": "its upper end",
    "p": "of the paired test",
    "p_holm": "the same, adjusted for the number of pairs",
    "improvement": "the probability that a run of the second is better than one of the first; null where none is",
    "improvement_low": "the lower end of its 95 % interval; null with one run",
    "improvement_high": "its upper end",
    "rope": "half the width of the region of practical equivalence; null of a metric that is no share",
    "below": "the probability that the mean difference lies below that region; null with one run",
    "within": "that it lies within",
    "above": "that it lies above",
    "seeds": "the seeds that both have",
    "equal_weights": "how many of them ended with equal weights",
    "equal_partitions": "how many have the same partition of the data",
}

RANKS = {
    "methods": "one object for each, the best first: method, rank",
    "tasks": "the tasks that all methods have",
    "critical_difference": "by how much two mean ranks must differ to be told apart (Nemenyi, 95 %)",
    "p": "of Friedman's test that all methods are equal; null where all are tied",
}

RANKED = {
    "method": "the row",
    "task": "the column",
    "mean": "over the runs",
    "low": "the lower end of its 95 % interval; null with one run",
    "high": "its upper end",
    "best": "true where no other is better, see the page on results",
    "runs": "one object for each: seed, value, source, trial, experiment, code, weights, config, command, needs",
}
