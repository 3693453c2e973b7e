"""The metrics of a run: one table of their names and labels, their units and sources, and their meanings.

Summaries and trial tables have a metric under its name, sweeps and claims ask for it by its name, reports and the
command line show it by its label. ``docs/metrics.md`` is this table.

Accuracies and shares are stored as fractions. The *lineage* is the last stage and the stages that it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.base.evaluated import BETTER
from engine.record.metric import ClientCurve, Metric, Source, by_rows, evaluated, own_models, share, skew

TARGET = "the target accuracy"  # stands in labels for the sweep's ``target_accuracy``
_PERSONAL = "accuracy of personal models"
_PARTICIPANTS = "accuracy of a round's participants after local work"
_FINE_TUNED = "accuracy of personal models after fine-tuning"
_HELD_OUT = "accuracy of held-out clients"
_LOCAL = "test accuracy of local models before aggregation"

ALL = (
    evaluated("accuracy", "final test accuracy", 4, "Test accuracy", short="final"),
    share(
        "best_accuracy",
        "best test accuracy",
        "summary.json",
        "The highest test accuracy of an evaluation of the lineage in the last scope.",
        short="best",
        reported=True,
        column=5,
    ),
    Metric(
        "best_round",
        "best round",
        "summary.json",
        "The round (global) of the best accuracy; the first one of several.",
        whole=True,
        column=6,
    ),
    share(
        "last10_accuracy",
        "test accuracy, mean of the last 10 rounds",
        "summary.json",
        "Mean test accuracy over the evaluations of the last ten rounds.",
        short="last 10 rounds",
        reported=True,
        column=1,
    ),
    share(
        "last10_std",
        "test accuracy, standard deviation over the last 10 rounds",
        "summary.json",
        "Standard deviation (n - 1) of the test accuracy over these evaluations; NaN of a single one.",
        short="last 10 rounds, std",
        better="min",
        column=2,
    ),
    share(
        "local_last10_accuracy",
        f"{_LOCAL}, mean of the last 10 rounds",
        "summary.json",
        "Mean over those of the last ten rounds that measured it (`evaluation.local_every`) of the mean accuracy of "
        "the cohort's local models on the whole test set, before aggregation.",
        short="local models, last 10",
        column=3,
    ),
    share(
        "local_gap",
        "accuracy that local models lack",
        "summary.json",
        "`last10_accuracy` minus `local_last10_accuracy`. The share of a method's gap that another one closes is 1 "
        "minus the ratio of the two.",
        short="gap of local models",
        better="min",
    ),
    evaluated("loss", "test loss", 9, "Mean cross entropy on the test set", short="loss", unit="", scale=1.0),
    evaluated(
        "balanced_accuracy",
        "balanced test accuracy",
        10,
        "Mean over the classes with test rows of the accuracy on them",
        short="balanced",
    ),
    evaluated(
        "macro_f1",
        "macro F1 on the test set",
        11,
        "Mean over classes of 2 * right / (rows of the class + rows predicted to be of it)",
        short="macro F1",
    ),
    evaluated(
        "worst_class_accuracy",
        "test accuracy on the worst class",
        12,
        "The lowest accuracy on a class with test rows",
        short="worst class",
    ),
    evaluated(
        "ece",
        "expected calibration error",
        13,
        "Mean over test rows of the distance between confidence and accuracy of their bin, of 15 of equal width "
        "(Guo et al. 2017),",
        short="ECE",
    ),
    evaluated(
        "brier",
        "Brier score",
        14,
        "Mean squared distance, 0 to 2, of the softmax scores from the label as a one-hot vector",
        unit="",
        scale=1.0,
    ),
    Metric(
        "rounds",
        "rounds",
        "trial.json",
        "The last round (global): a stage counts on from the one that it needs.",
        whole=True,
        column=33,
    ),
    Metric("rounds_asked", "rounds asked", "trial.json", "Rounds of all stages together, as asked for.", whole=True),
    Metric(
        "rounds_computed",
        "rounds computed",
        "trial.json",
        "Rounds of all stages that were computed; those taken from a store were not.",
        short="computed",
        whole=True,
        column=34,
    ),
    Metric(
        "rounds_to_target",
        f"rounds to {TARGET}",
        "evaluations.parquet",
        "The first round (global) of the lineage whose accuracy, in the last scope, is at least the sweep's "
        "`target_accuracy`; NaN if it never is.",
        short="rounds to target",
        better="min",
        whole=True,
        column=29,
    ),
    Metric(
        "seconds_to_target",
        f"simulated time to {TARGET}",
        "clients.parquet",
        "`simulated_seconds` until the end of the round of `rounds_to_target`; NaN if the target is never reached.",
        short="simulated time to target",
        unit="s",
        better="min",
        column=30,
    ),
    Metric(
        "bytes_to_target",
        f"traffic to {TARGET}",
        "evaluations.parquet",
        "4 bytes (8 in float64) for each float sent up or down in the lineage's rounds up to that one, and in the "
        "exchanges outside rounds before it was evaluated.",
        short="to target",
        unit="MB",
        scale=1e-6,
        better="min",
        column=31,
    ),
    Metric(
        "client_floats_to_best",
        "floats of one client up to the best round",
        "summary.json",
        "Floats up and down of one client that takes part in every round of the lineage up to the best one, and in the "
        "exchanges outside rounds before that: what CBFL's Table 13 calls communication.",
        short="a client's floats to best",
        unit="M",
        scale=1e-6,
        better="min",
        column=32,
    ),
    share(
        "worst_decile_accuracy",
        "accuracy of the worst tenth of clients",
        "evaluations.parquet",
        "Mean over the worst tenth, ceil(K / 10), of the K clients that hold data of the sum over classes of (the "
        "client's share of the class) * (test accuracy on the class): the accuracy to expect of the final global model "
        "on test data distributed as that client's classes are. It knows nothing of how clients differ within a class. "
        "NaN where the scope is personal.",
        short="worst tenth",
        column=7,
    ),
    *(by_rows(*of) for of in (("many", "more than 100"), ("medium", "20 to 100"), ("few", "fewer than 20"))),
    share(
        "client_std",
        "standard deviation of accuracy over clients",
        "evaluations.parquet",
        "Standard deviation (dividing by K) of the same accuracies over the clients.",
        short="clients, std",
        better="min",
        column=8,
    ),
    Metric(
        "label_entropy",
        "class balance of clients' data",
        "summary.json",
        "Mean over the clients that can train of the entropy of their class shares, divided by its maximum log C.",
        short="class balance of data",
    ),
    Metric(
        "step_label_entropy",
        "class balance of what a local step sees",
        "summary.json",
        "The same of the rows that one local step is expected to see, as generated rows change it.",
        short="class balance of a step",
    ),
    skew("label_hellinger", "Hellinger distance"),
    skew("label_jensen_shannon", "Jensen-Shannon distance", " of base 2, the root of the divergence"),
    skew("label_total_variation", "total variation", ", half of the earth mover's distance of Zhao et al. (2018)"),
    Metric(
        "effective_classes",
        "effective classes of a client",
        "summary.json",
        "Mean over the clients that can train of exp of the entropy of their class shares: k of k classes alike.",
        short="effective classes",
    ),
    own_models(
        "personal_accuracy",
        "personal models",
        15,
        ClientCurve(_PERSONAL, "post_server"),
        "Accuracy of what each client would receive next with what it keeps, on its own test rows, by test rows.",
    ),
    own_models(
        "personal_last10_accuracy",
        "personal models, last 10",
        16,
        ClientCurve(_PERSONAL, "post_server", over="mean"),
        "The mean of that over the last ten rounds.",
    ),
    own_models(
        "personal_client_accuracy",
        "personal models, by client",
        17,
        ClientCurve(f"{_PERSONAL}, mean over clients", "post_server", "client_accuracy"),
        "The same as `personal_accuracy`, every client with the same weight.",
    ),
    own_models(
        "personal_worst_decile_accuracy",
        "personal models, worst tenth",
        18,
        ClientCurve("accuracy of the worst tenth of clients, personal models", "post_server", "worst_decile_accuracy"),
        "The mean of that over the worst tenth of clients.",
    ),
    own_models(
        "personal_client_std",
        "personal models, std over clients",
        19,
        ClientCurve("standard deviation over clients of personal models' accuracy", "post_server", "client_std"),
        "The standard deviation (dividing by K) of that over the K clients with test rows.",
        better="min",
    ),
    own_models(
        "personal_balanced_accuracy",
        "personal models, balanced",
        20,
        ClientCurve("balanced accuracy of personal models, mean over clients", "post_server", "balanced_accuracy"),
        "Mean over clients of the balanced accuracy on the client's own test rows.",
    ),
    own_models(
        "personal_macro_f1",
        "personal models, macro F1",
        21,
        ClientCurve("macro F1 of personal models, mean over clients", "post_server", "macro_f1"),
        "Mean over clients of the macro F1 on the client's own test rows.",
    ),
    own_models(
        "participants_accuracy",
        "participants",
        22,
        ClientCurve(_PARTICIPANTS, "post_local", over="mean"),
        "Accuracy of the cohorts' clients after local work and before the server's step, by test rows: mean over the "
        "last ten rounds.",
    ),
    own_models(
        "participants_std",
        "participants, std",
        23,
        ClientCurve(_PARTICIPANTS, "post_local", over="std"),
        "Standard deviation (n - 1) of that over the last ten rounds.",
    ),
    own_models(
        "fine_tuned_accuracy",
        "fine-tuned",
        24,
        ClientCurve(_FINE_TUNED, "fine_tuned"),
        "Accuracy after each client's fine-tuning, by test rows.",
    ),
    own_models(
        "fine_tuned_client_accuracy",
        "fine-tuned, by client",
        25,
        ClientCurve(f"{_FINE_TUNED}, mean over clients", "fine_tuned", "client_accuracy"),
        "The same, every client with the same weight.",
    ),
    own_models(
        "held_out_accuracy",
        "held-out clients",
        26,
        ClientCurve(_HELD_OUT, "held_out"),
        "Accuracy of what clients that never train (`participation.held_out`) would use, on their own test rows, by "
        "test rows; those that train have `personal_accuracy`.",
    ),
    own_models(
        "held_out_client_accuracy",
        "held-out clients, by client",
        27,
        ClientCurve(f"{_HELD_OUT}, mean over clients", "held_out", "client_accuracy"),
        "The same, every client with the same weight; those that train have `personal_client_accuracy`.",
    ),
    own_models(
        "held_out_tuned_client_accuracy",
        "held-out clients, fine-tuned",
        28,
        ClientCurve(f"{_HELD_OUT} after fine-tuning, mean over clients", "held_out_tuned", "client_accuracy"),
        "The same after each client's fine-tuning; those that train have `fine_tuned_client_accuracy`.",
    ),
    Metric(
        "seconds",
        "seconds",
        "summary.json",
        "Time of the rounds and evaluations of all stages.",
        unit="s",
        better="min",
        column=35,
    ),
    Metric(
        "epsilon",
        "epsilon of differential privacy",
        "summary.json",
        "Of clients' differential privacy after all rounds asked for, at `privacy.delta`: the lower, the stronger the "
        "guarantee. NaN without `privacy.noise`.",
        short="epsilon",
        better="min",
        column=36,
    ),
    Metric(
        "floats_up",
        "floats up",
        "summary.json",
        "Floats that clients sent in all stages, those of exchanges outside rounds included.",
        better="min",
    ),
    Metric(
        "floats_down",
        "floats down",
        "summary.json",
        "Floats that clients received in all stages, those of exchanges outside rounds included.",
        better="min",
    ),
    Metric(
        "cka_logits", "cka logits", "fedskew diagnose", "Mean CKA between pairs of clients' local models at the logits."
    ),
    Metric(
        "cka_lowest_other",
        "cka lowest other",
        "fedskew diagnose",
        "The lowest mean CKA between pairs of clients of the layers below the logits.",
    ),
    Metric("cka_logits_margin", "cka logits margin", "fedskew diagnose", "`cka_lowest_other` minus `cka_logits`."),
    Metric("cka_mean", "cka mean", "fedskew diagnose", "Mean over layers of the mean CKA between pairs of clients."),
    Metric(
        "norm_correlation",
        "norm correlation",
        "fedskew diagnose",
        "Mean over clients of the correlation between a class's rows and the norm of its weights in the local head.",
    ),
    share(
        "generated_agreement",
        "generated images taken for the class asked for",
        "fedskew images",
        "Share of the generated images that the model they are made for takes for the class that was asked for.",
    ),
    Metric(
        "nearest_distance",
        "generated images' distance to training",
        "fedskew images",
        "Mean distance of a generated image to the nearest training image.",
    ),
    Metric(
        "nearest_distance_test",
        "test images' distance to training",
        "fedskew images",
        "Mean distance of a test image to the nearest training image.",
    ),
    Metric(
        "nearest_ratio",
        "generated by test images' distance to training",
        "fedskew images",
        "`nearest_distance` by `nearest_distance_test`.",
    ),
    share(
        "cost_row_minimum",
        "rows of the cost matrix that are least on the diagonal",
        "matrices.parquet",
        "Share of the rows whose strict minimum is on the diagonal, of a server that ends with a matrix `cost`.",
        short="least cost on the diagonal",
    ),
    Metric(
        "simulated_seconds",
        "simulated time",
        "clients.parquet",
        "Time that the lineage's rounds and exchanges would take on the devices that are supposed, each as long as its "
        "slowest client takes.",
        unit="s",
        better="min",
        column=37,
    ),
    share(
        "local_accuracy",
        _LOCAL,
        "rounds.parquet",
        "Mean accuracy of the cohort's local models on the whole test set, before aggregation, of one round.",
    ),
)
METRICS = {metric.name: metric for metric in ALL}


def names(*sources: Source) -> tuple[str, ...]:
    """Name the metrics from these sources, in the order of the table."""
    return tuple(metric.name for metric in ALL if metric.source in sources)


def by_column(metrics: Iterable[Metric] = ALL) -> tuple[str, ...]:
    """Name the metrics that a report's table of trials has, in the order of its columns."""
    placed = [(metric.column, metric.name) for metric in metrics if metric.column is not None]
    return tuple(name for _, name in sorted(placed))


OF_RUN = names("summary.json", "trial.json", "evaluations.parquet")  # that every run may have
SIMULATED = names("clients.parquet")  # if devices are supposed
ON_REQUEST = (*names("fedskew diagnose", "fedskew images", "matrices.parquet"), *SIMULATED)  # if there is their source
REPORTED = by_column(metric for metric in ALL if metric.reported)  # by a sweep's trial while it runs
EVALUATED = tuple(BETTER)  # columns of evaluations.parquet; the metric is of the last one
PERSONAL = {metric.name: metric.curve for metric in ALL if metric.curve is not None}  # of clients' own models


def markdown() -> str:
    """Write the table of ``docs/metrics.md``."""
    lines = ["| metric | label | short | unit | better | live | from | meaning |", "|" + 8 * "---|"]
    for metric in ALL:
        words = (f"`{metric.name}`", metric.label, metric.short or metric.label, metric.unit, metric.better or "")
        lines.append(f"| {' | '.join((*words, 'yes' if metric.reported else '', metric.source, metric.meaning))} |")
    return "\n".join(lines) + "\n"
