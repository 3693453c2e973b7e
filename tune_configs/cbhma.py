"""CBHMA, class-balanced aggregation of heterogeneous models (Pang et al., TDSC 2022): its figures, what it leaves open.

Five devices train classifiers of five architectures, each on its own classes, and answer a public set; one student is
distilled from the answers. The stages "teachers" and "answers" are the same for all methods and students of a seed.

Profiles. ``paper``: C1 is Fashion-MNIST with ResNet20 and 20 epochs of distillation, C2 is CIFAR-10 with ResNet56 and
50. Epochs and students are the paper's; of its data sets it says only that they are two, so these are ours, and so are
the teachers (900 images of each class, 20 epochs), the public set (100 images of each class), alpha and tau. Devices
have 3 to 6 classes, drawn once for each configuration. ``laptop``: the whole of Fashion-MNIST for both; teachers have
600 images of each class and 5 epochs; students are ResNet8 (C1) and LeNet (C2, with class sets of its own). A trial
takes a minute and a half of one core there, a quarter of that where the teachers are there already.

Two differences from the source are in every sweep. Its teachers have as many outputs as classes of their own; ours have
one for each class of the data, and only those of their own are asked for: it changes the signs of raw logits, and so
``r_mode=raw``. And ratios of raw logits are floored at 0.01 and capped at 0.999, since most of them have no logarithm.

The source prints curves and no numbers: there are statements to check, and nothing to stand beside ours. Its baselines
SKD1 and SKD2 are named only, and defined by us. CFL (``cfl_amalgam``), which sees the teachers' features, is in tables
and in no claim: the source does not say that CBHMA is ahead of it.

Costs act through correlations of classes and through weights of samples. The loss as printed has no such weights, since
the imbalance level cancels there: both readings are in every sweep of methods. "Consistently above" is not to be had
from the printed loss: G cancels, and what is left is a margin between classes that look alike. Weights of samples span
0.88 to 1.22 where one class has one teacher and one has five, so that ours is close to UHC too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from ray import tune

from engine.experiment import Experiment
from engine.results.claims import Claim, PaperTable
from engine.sweeps.definition import Sweep
from engine.sweeps.tuned import Tuned
from tune_configs import fair
from tune_configs.quickstart import small_cbhma

Choice = dict[str, Any]  # a name with fields

FIGURE = "CBHMA, figure {}"
CURVES = "CBHMA, curves over {}"
OURS = "ours"
METHOD = "stages.distil.algorithm"
EPOCHS = f"{METHOD}.epochs"
SETS = "partition.sets"
ACCURACY = "accuracy"
SPREAD = "class_std"

UHC: Choice = {"name": "uhc"}
SKD1: Choice = {"name": "skd1"}
SKD2: Choice = {"name": "skd2"}
CFL: Choice = {"name": "cfl_amalgam"}
CBHMA: Choice = {"name": "cbhma"}
CBHMA_E: Choice = {"name": "cbhma_e"}
PRINTED: Choice = {**CBHMA, "row_weight": False}  # the loss in which the imbalance level cancels
AS_PRINTED: Choice = {**PRINTED, "r_mode": "raw"}  # and correlations of raw logits
METHODS = [SKD1, SKD2, UHC, CFL, CBHMA, AS_PRINTED, CBHMA_E]
BASELINES = {"SKD1": SKD1, "SKD2": SKD2, "UHC": UHC}
OWN = {"CBHMA": CBHMA, "CBHMA as printed": AS_PRINTED, "CBHMA-E": CBHMA_E}


def on(*classes: int) -> str:
    """The figure of a trial: accuracy on these classes, each with the same weight."""
    return f"class_accuracy[{','.join(map(str, classes))}]"


# --- the experiment that all of these vary ----------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """One of the two that figures and curves are of."""

    data: str
    student: str
    epochs: int  # of distillation
    seed: int  # of the partition: who has which classes
    weak: tuple[int, ...]  # classes on which UHC is weak


ALIKE = (2, 4, 6)  # pullover, coat and shirt of Fashion-MNIST: the source's for C1
ANIMALS = (2, 3, 4, 5)  # bird, cat, deer and dog of CIFAR-10: for C2 the source names none
CONFIGS = {
    "paper": {
        "C1": Config("fashion_mnist", "resnet20", 20, 0, ALIKE),
        "C2": Config("cifar10", "resnet56", 50, 1, ANIMALS),
    },
    "laptop": {
        "C1": Config("fashion_mnist", "resnet8", 20, 0, ALIKE),
        "C2": Config("fashion_mnist", "lenet", 50, 1, ALIKE),
    },
}


def base(profile: str, changes: Mapping[str, Any] = {}) -> Experiment:
    """C1 with CBHMA, and dotted keys changed."""
    paper, own = profile == "paper", CONFIGS[profile]["C1"]
    partition = {"sets": "random", "seed": own.seed, "per_class": 600, "public_per_class": 200}
    larger = {"per_class": 900, "public_per_class": 500} if paper else {}
    return small_cbhma().replace(
        {
            "data.name": own.data,
            **{f"partition.{field}": value for field, value in {**partition, **larger}.items()},
            "model.name": own.student,
            "stages.teachers.local.epochs": 20 if paper else 5,
            **changes,
        }
    )


@dataclass(frozen=True)
class _Of:
    """A field of the configuration that the axis ``name`` says, for ``sample_from``."""

    configs: Mapping[str, Config]
    field: str

    def __call__(self, spec: Any) -> Any:
        return getattr(self.configs[spec.config["name"]], self.field)


def configs(profile: str) -> dict[str, Any]:
    """A part of a search space, to come after the methods: C1 and C2, and what they stand for."""
    keys = {"data": "data.name", "student": "model.name", "epochs": EPOCHS, "seed": "partition.seed"}
    found = CONFIGS[profile]
    return {
        "name": tune.grid_search(list(found)),
        **{key: tune.sample_from(_Of(found, field)) for field, key in keys.items()},
    }


def methods(profile: str, chosen: Iterable[Choice]) -> dict[str, Any]:
    """A part of a search space: methods, all with as many epochs."""
    return {METHOD: tune.grid_search(list(chosen)), EPOCHS: CONFIGS[profile]["C1"].epochs}


def sweep(
    experiment: Experiment,
    space: dict[str, Any],
    tables: tuple[PaperTable, ...],
    claims: tuple[Claim, ...],
    seeds: Iterable[int] = range(5),
    **more: Any,
) -> Sweep:
    # C1 and C2 are one split each: who has which classes is part of what a configuration is.
    one = any(experiment.key_of(name) == "partition.seed" for name in space)
    partitions = "one" if one else "anew"
    common = {"partitions": partitions, "metric": ACCURACY, "tables": tables, "claims": claims}
    return Sweep(experiment, space, tuple(seeds), **common, **more)


def tables(
    title: str, rows: tuple[str, ...], columns: tuple[str, ...], metrics: Mapping[str, str]
) -> tuple[PaperTable, ...]:
    """Return one table for each of ``metrics``: figure -> what the title says of it."""
    return tuple(PaperTable(f"{told} {title}", rows, columns, metric) for metric, told in metrics.items())


def ahead(
    text: str,
    source: str,
    axis: str,
    better: Any,
    worse: Any,
    metric: str = ACCURACY,
    where: Mapping[str, Any] = {},
    **more: Any,
) -> Claim:
    """Return the claim that one value of an axis is ahead of another."""
    return Claim(text, source, {axis: better}, {axis: worse}, dict(where), metric, **more)


def over_baselines(source: str, where: Mapping[str, Any] = {}) -> tuple[Claim, ...]:
    """The curves' statement: both of CBHMA's forms above all three, everywhere; and the two close to each other. It is
    claimed of the printed loss as well as of our reading."""
    return (
        *(
            ahead(
                f"{mine} is better than {other} everywhere.", source, METHOD, OWN[mine], BASELINES[other], where=where
            )
            for mine, other in product(OWN, BASELINES)
        ),
        ahead(
            "CBHMA and CBHMA-E are within one point of each other.",
            source,
            METHOD,
            CBHMA,
            CBHMA_E,
            where=where,
            kind="equal",
            margin=0.01,
        ),
    )


# --- the headline -----------------------------------------------------------------------------------------

# Five devices of six classes each, as in IS-1, with shirts (6) for its class 1, which one device knows, and coats (4)
# for its class 9, which all know: these two are confused, and neither sits at its ceiling as trousers (1) and boots do.
SHIRTS_WEAK = [[0, 2, 3, 9, 5, 4], [2, 3, 9, 1, 7, 4], [9, 5, 1, 7, 8, 4], [0, 6, 1, 7, 8, 4], [0, 2, 3, 5, 8, 4]]
STEPS = 400  # of the student's training, whatever the size of the public set
STUDENT_LRS = (0.01, 0.02, 0.05, 0.1, 0.2)  # around the default of all distillation here; the source gives none
G_POWERS = (1.0, 4.0, 8.0)


def headline(profile: str) -> Sweep:
    """Accuracy over all classes where public images are few: CBHMA against UHC, SKD2 and labels alone.

    With 100 public images of each class the labels say as much as all teachers together, and nothing can be distilled;
    with 5 and 20 answers are worth points. On a laptop an ``mlp`` student with 400 steps, half an hour on two cores for
    ten seeds, each with a tenth of the test rows. SKD2 at alpha = 1 has no labels: it is what the teachers' merged
    answers can teach. Each method's rate for the student is searched on rows and three seeds held out; alpha and the
    number of public images are axes. A first run had twenty other seeds, and claims on the class that one device knows:
    of these, on which each side's own rate bears, is ``weak_class``.
    """
    alphas = (0.5, 0.9)
    chosen = {"UHC": UHC, "SKD2": SKD2, **OWN}
    at = {(name, a): {**method, "alpha": a} for name, method in chosen.items() for a in alphas}
    labels, answers = {**UHC, "alpha": 0.0}, {**SKD2, "alpha": 1.0}
    everything = [labels, answers, *at.values()]
    rates = {f"{METHOD}.lr": tune.grid_search(list(STUDENT_LRS))}

    return sweep(
        base(profile, {SETS: SHIRTS_WEAK, "model.name": "mlp", **fair.OWN_TEST_ROWS, "data.test_samples": 1_000}),
        {
            METHOD: tune.grid_search(everything),
            "n_c": tune.grid_search([5, 20]),
            EPOCHS: tune.sample_from(_epochs),
        },
        tables(
            "by method",
            (METHOD,),
            ("n_c",),
            {
                ACCURACY: "Accuracy",
                on(6): "Accuracy on shirts",
                on(4): "Accuracy on coats",
                SPREAD: "Spread over classes",
            },
        ),
        (
            *(
                ahead(
                    f"At alpha {a}, {name} is better than {other}.",
                    CURVES.format("alpha"),
                    METHOD,
                    at[name, a],
                    at[other, a],
                )
                for name in OWN
                for other in ("UHC", "SKD2")
                for a in alphas
            ),
            *(
                ahead(f"At alpha {a}, UHC is better than labels alone.", OURS, METHOD, at["UHC", a], labels)
                for a in alphas
            ),
        ),
        seeds=range(200, 210),
        tuned=tuple(Tuned({METHOD: method}, rates) for method in everything),
        tuning_seeds=(1000, 1001, 1002),
        tuning_rows=fair.TUNING_ROWS,
    )


def weak_class(profile: str) -> Sweep:
    """The class that one device knows, by the number of public images: CBHMA with g^1, g^4 and g^8 against UHC.

    At alpha 0.9 and one rate for all, 0.05, the default's: recall of one class depends on the rate, so that sides with
    rates of their own would be compared by these, too. Each number of images has its own verdicts, and each seed tests
    on a tenth of the test rows. Seeds are fresh, and all else was fixed before any of it ran: twenty seeds of an
    earlier headline had given the weak class 5 to 14 points at 20 images, and less than none at 5, and seeds 100 to
    109, which all tested on the same rows, held all nine claims on it. Half an hour on two cores.
    """
    own = {f"CBHMA^{power:g}" if power != 1 else "CBHMA": reading(g_power=power) for power in G_POWERS}
    at = {name: {**method, "alpha": 0.9, "lr": 0.05} for name, method in {"UHC": UHC, **own}.items()}
    sizes, weak = [20, 50, 100], on(6)

    def against(name: str, n_c: int, said: str, metric: str, source: str, **more: Any) -> Claim:
        text = f"With {n_c} public images of each class, {name} {said}."
        return ahead(text, source, METHOD, at[name], at["UHC"], metric, where={"n_c": n_c}, **more)

    cells = [*product(own, sizes)]
    return sweep(
        base(profile, {SETS: SHIRTS_WEAK, "model.name": "mlp", **fair.OWN_TEST_ROWS, "data.test_samples": 1_000}),
        {METHOD: tune.grid_search([*at.values()]), "n_c": tune.grid_search(sizes), EPOCHS: tune.sample_from(_epochs)},
        tables("by method", (METHOD,), ("n_c",), {weak: "Accuracy on shirts", ACCURACY: "Accuracy"}),
        (
            *(
                against(*cell, "is better than UHC on the class that one device knows", weak, FIGURE.format(5))
                for cell in cells
            ),
            *(
                against(*cell, "is within a point of UHC over all classes", ACCURACY, OURS, kind="equal", margin=0.01)
                for cell in cells
            ),
        ),
        seeds=range(300, 310),
    )


def _epochs(spec: Any) -> int:
    """Return the epochs of ``STEPS`` steps on batches of 64, or of the whole where it is smaller."""
    return STEPS // -(-10 * spec.config["n_c"] // 64)


# --- figure 2: why balance matters ------------------------------------------------------------------------


def motivation(profile: str) -> Sweep:
    """UHC by setting: each class has three teachers (BS), class 1 has one and class 9 five (IS-1), the reverse (IS-2).

    Of five seeds seven of ten claims were undecided, by 0.1 to 2 points. On a laptop 36 minutes on two cores.
    """
    source = FIGURE.format(2)
    rest = on(0, 2, 3, 4, 5, 6, 7, 8)

    def of(text: str, better: str, worse: str, metric: str, **more: Any) -> Claim:
        return ahead(text, source, SETS, better, worse, metric, **more)

    return sweep(
        base(profile, {METHOD: UHC}),
        {SETS: tune.grid_search(["BS", "IS-1", "IS-2"])},
        tables(
            "by setting",
            (SETS,),
            (),
            {
                ACCURACY: "Accuracy",
                on(1): "Accuracy on class 1",
                on(9): "Accuracy on class 9",
                rest: "Accuracy on the other classes",
                SPREAD: "Spread over classes",
            },
        ),
        (
            of("Class 1 is learned worse from one teacher (IS-1) than from five (IS-2).", "IS-2", "IS-1", on(1)),
            of("Class 9 is learned better from five teachers (IS-1) than from one (IS-2).", "IS-1", "IS-2", on(9)),
            of("Class 1 is learned worse from one teacher (IS-1) than from three.", "BS", "IS-1", on(1)),
            of("Class 1 is learned better from five teachers (IS-2) than from three.", "IS-2", "BS", on(1)),
            of("Class 9 is learned better from five teachers (IS-1) than from three.", "IS-1", "BS", on(9)),
            of("Class 9 is learned worse from one teacher (IS-2) than from three.", "BS", "IS-2", on(9)),
            *(
                of(
                    f"In {setting} the other classes stay within two points.",
                    "BS",
                    setting,
                    rest,
                    kind="equal",
                    margin=0.02,
                )
                for setting in ("IS-1", "IS-2")
            ),
            *(
                of(f"All in all, {setting} is learned worse than BS.", "BS", setting, ACCURACY)
                for setting in ("IS-1", "IS-2")
            ),
        ),
        seeds=range(15),
    )


# --- figures 4 and 5: costs, and what they do for weak classes --------------------------------------------


def cost(profile: str) -> Sweep:
    """Cost matrices by configuration and by what of the logits makes a correlation; each trial draws its own.

    The paper's claim holds here by construction: ratios of two classes are capped below 1 in every mode.
    """
    return sweep(
        base(profile, {METHOD: CBHMA}),
        {"r_mode": tune.grid_search(["minshift", "raw", "softmax"]), **configs(profile)},
        tables(
            "by correlation",
            ("r_mode",),
            ("name",),
            {"cost_row_minimum": "Least cost on the diagonal", ACCURACY: "Accuracy"},
        ),
        (
            Claim(
                text="In every row of the cost matrix the diagonal is the least.",
                source=FIGURE.format(4),
                better={"r_mode": "minshift"},
                metric="cost_row_minimum",
                kind="above",
                margin=0.99,
            ),
        ),
        seeds=range(6),  # shares are the same for all of them, and fewer equal figures decide nothing
    )


def per_class(profile: str) -> Sweep:
    """Accuracy by class of UHC and CBHMA.

    The source says on which classes UHC is weak in C1 (2, 4, 6), and of C2 only that most of them gain. C2's are our
    guess by what looks alike, so claims of them are ours, and tables have all ten classes.
    """
    sources = {"C1": FIGURE.format(5), "C2": OURS}
    weak = {name: one.weak for name, one in CONFIGS[profile].items()}
    alone = {on(number): f"Accuracy on class {number}" for number in range(10)}
    both = {on(*classes): f"Accuracy on classes {', '.join(map(str, classes))}" for classes in weak.values()}

    def of(text: str, metric: str, source: str, better: Choice = CBHMA, **more: Any) -> Claim:
        return ahead(text, source, METHOD, better, UHC, metric, **more)

    return sweep(
        base(profile),
        {**methods(profile, [UHC, CBHMA, AS_PRINTED]), **configs(profile)},
        tables(
            "by method",
            (METHOD,),
            ("name",),
            {ACCURACY: "Accuracy", **both, **alone, SPREAD: "Spread over classes"},
        ),
        (
            *(
                of(
                    f"{name}: {told} is better than UHC on the classes on which UHC is weak.",
                    on(*classes),
                    sources[name],
                    OWN[told],
                    where={"name": name},
                )
                for name, classes in weak.items()
                for told in ("CBHMA", "CBHMA as printed")
            ),
            *(
                of(
                    f"{name}: CBHMA is better than UHC on class {number}.",
                    on(number),
                    sources[name],
                    where={"name": name},
                )
                for name, classes in weak.items()
                for number in classes
            ),
            of("With CBHMA classes are less far apart than with UHC.", SPREAD, OURS, larger_is_better=False),
            of("CBHMA's overall accuracy is no more than half a point below UHC's.", ACCURACY, OURS, margin=-0.005),
        ),
    )


# --- curves -----------------------------------------------------------------------------------------------


def _curve(
    profile: str, space: dict[str, Any], source: str, claims: tuple[Claim, ...], where: Mapping[str, Any] = {}
) -> Sweep:
    """Return the sweep of all methods along the axis of ``space``; by the paper's profile in both configurations."""
    (axis,), paper = space, profile == "paper"
    of_both, across = (configs(profile), (axis, "name")) if paper else ({}, (axis,))
    weak = {} if paper else {on(*ALIKE): "Accuracy on classes 2, 4, 6"}
    metrics = {ACCURACY: "Accuracy", **weak, SPREAD: "Spread over classes"}
    return sweep(
        base(profile),
        {**methods(profile, METHODS), **of_both, **space},
        tables("by method", (METHOD,), across, metrics),
        (*over_baselines(source, where), *claims),
    )


def alpha(profile: str) -> Sweep:
    """Six methods, CBHMA in two readings, by alpha, the weight of the teachers' answers; 0 is labels alone."""
    alphas = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0] if profile == "paper" else [0.0, 0.5, 0.9]
    taught = {"alpha": alphas[1:]}
    return _curve(
        profile,
        {"alpha": tune.grid_search(alphas)},
        CURVES.format("alpha"),
        (
            ahead(
                "UHC's student learns more from answers and labels than from labels.",
                OURS,
                "alpha",
                0.5,
                0.0,
                where={METHOD: UHC},
            ),
            ahead(
                "Where answers weigh most, padding them is worse than restricting the student: SKD1 is below UHC.",
                OURS,
                METHOD,
                UHC,
                SKD1,
                where={"alpha": 0.9},
            ),
        ),
        taught,
    )


def samples(profile: str) -> Sweep:
    """Six methods, CBHMA in two readings, by n_c, the public images of each class."""
    sizes = [10, 20, 50, 100, 200, 500] if profile == "paper" else [20, 100, 200]
    return _curve(
        profile,
        {"n_c": tune.grid_search(sizes)},
        CURVES.format("samples of a class"),
        tuple(
            ahead(f"{name} gains from a larger public set.", OURS, "n_c", sizes[-1], sizes[0], where={METHOD: method})
            for name, method in (("UHC", UHC), ("CBHMA", CBHMA))
        ),
    )


def architecture(profile: str) -> Sweep:
    """Six methods, CBHMA in two readings, by the student's architecture."""
    students = ["resnet8", "resnet20", "resnet32", "resnet56", "lenet"] if profile == "paper" else ["resnet8", "lenet"]
    return _curve(profile, {"model.name": tune.grid_search(students)}, CURVES.format("students"), ())


# --- ours -------------------------------------------------------------------------------------------------


READINGS: dict[str, list[Any]] = {  # beside the defaults
    "row_weight": [False],
    "g_power": [2.0, 4.0],
    "r_mode": ["raw", "softmax"],
    "fill": ["off_diagonal"],
}


def reading(**fields: Any) -> Choice:
    """CBHMA with these fields instead of its own."""
    return {**CBHMA, **fields}


def _together() -> list[dict[str, Any]]:
    """Every combination of readings; without weights their power does not matter."""
    options = [[{}, *({option: value} for value in values)] for option, values in READINGS.items()]
    found = [{name: value for one in parts for name, value in one.items()} for parts in product(*options)]
    return [fields for fields in found if "row_weight" not in fields or "g_power" not in fields]


def errata(profile: str) -> Sweep:
    """CBHMA's readings where class 1 is weak and 9 strong (IS-1), and the reverse (IS-2), beside UHC.

    Weights of samples or none (the loss as printed), their power, correlations, and what fills unseen pairs. On a
    laptop one at a time, and the loss with the correlations as printed; by the paper's profile all of them together.
    """
    single = [
        *({option: value} for option, values in READINGS.items() for value in values),
        {"row_weight": False, "r_mode": "raw"},
    ]
    readings = [reading(**fields) for fields in (_together() if profile == "paper" else [{}, *single])]
    plain, printed, strong = reading(), reading(row_weight=False), reading(g_power=4.0)
    weak_and_strong = {"IS-1": (1, 9), "IS-2": (9, 1)}
    each = {name: {SETS: name} for name in weak_and_strong}
    return sweep(
        base(profile),
        {**methods(profile, [UHC, *readings]), SETS: tune.grid_search(list(weak_and_strong))},
        tables(
            "by reading",
            (METHOD,),
            (SETS,),
            {
                ACCURACY: "Accuracy",
                on(1): "Accuracy on class 1",
                on(9): "Accuracy on class 9",
                SPREAD: "Spread over classes",
            },
        ),
        (
            *(
                ahead(text.format(name), OURS, METHOD, better, worse, on(number), each[name])
                for name, (weak, strong_class) in weak_and_strong.items()
                for text, better, worse, number in (
                    ("{}: weights of samples raise the weak class over the printed loss.", plain, printed, weak),
                    (
                        "{}: weights of samples lower the strong class below the printed loss.",
                        printed,
                        plain,
                        strong_class,
                    ),
                    ("{}: their fourth power raises the weak class further.", strong, plain, weak),
                    ("{}: CBHMA is better than UHC on the weak class.", plain, UHC, weak),
                    ("{}: so is the printed loss, by correlations alone.", printed, UHC, weak),
                )
            ),
            ahead(
                "CBHMA's classes are less far apart than UHC's.",
                OURS,
                METHOD,
                plain,
                UHC,
                SPREAD,
                larger_is_better=False,
            ),
            ahead(
                "CBHMA's accuracy is no more than half a point below UHC's.", OURS, METHOD, plain, UHC, margin=-0.005
            ),
            *(
                ahead(text, OURS, METHOD, reading(**fields), plain, kind="equal", margin=0.01)
                for text, fields in (
                    (
                        "Correlations of raw logits, as printed, give the same accuracy within a point.",
                        {"r_mode": "raw"},
                    ),
                    ("What fills unseen pairs is worth less than a point.", {"fill": "off_diagonal"}),
                )
            ),
        ),
    )


def quality(profile: str) -> Sweep:
    """One poor teacher: device 0 of BS has all, a part or nearly none of its images. Does the quality P_l matter?"""
    shares = [1.0, 0.3, 0.1, 0.03] if profile == "paper" else [1.0, 0.05]
    axis, own, others = "partition.poor_share", on(0, 1, 2, 3, 4, 5), on(6, 7, 8, 9)
    poor = {axis: shares[-1]}
    return sweep(
        base(profile, {SETS: "BS"}),
        {**methods(profile, [UHC, PRINTED, CBHMA]), axis: tune.grid_search(shares)},
        tables(
            "by method",
            (METHOD,),
            (axis,),
            {
                ACCURACY: "Accuracy",
                own: "Accuracy on the poor device's classes",
                others: "Accuracy on the other classes",
                SPREAD: "Spread over classes",
            },
        ),
        (
            ahead(
                "A poor teacher costs UHC's student accuracy on its classes.",
                OURS,
                axis,
                1.0,
                shares[-1],
                own,
                {METHOD: UHC},
            ),
            ahead("With a poor teacher CBHMA is better than UHC on its classes.", OURS, METHOD, CBHMA, UHC, own, poor),
            ahead(
                "With a poor teacher weights of samples are better than none on its classes.",
                OURS,
                METHOD,
                CBHMA,
                PRINTED,
                own,
                poor,
            ),
        ),
    )


def amalgam(profile: str) -> Sweep:
    """CFL by the weights w2 and w3 of features and decoders, which stand over a sum of five teachers.

    With its authors' 10 and 10, meant for two teachers, both terms come to about 25 at the start, beside a loss of 2.3.
    A weight of 2 is 10 over the mean of the five.
    """
    weights = [10.0, 2.0, 1.0, 0.1]
    weighed = {weight: {**CFL, "feature_weight": weight, "decoder_weight": weight} for weight in weights}
    return sweep(
        base(profile),
        methods(profile, [UHC, SKD2, *weighed.values()]),
        tables("by method", (METHOD,), (), {ACCURACY: "Accuracy", SPREAD: "Spread over classes"}),
        (
            ahead(
                "Over the mean of teachers CFL is better than over their sum.",
                OURS,
                METHOD,
                weighed[2.0],
                weighed[10.0],
            ),
        ),
    )


def leakage(profile: str) -> Sweep:
    """Numbers that leave the devices: answers, or answers and features.

    Once each: by methods that send models, the weights of these five teachers would be 1.22 million numbers, each time.
    The student's training is cut to one epoch, and its accuracy does not matter. The claims are arithmetic: they check
    the accounting.
    """
    sizes = [10, 100, 500] if profile == "paper" else [20, 200]
    return sweep(
        base(profile),
        {METHOD: tune.grid_search([UHC, CFL]), EPOCHS: 1, "n_c": tune.grid_search(sizes)},
        tables("by method", (METHOD,), ("n_c",), {"floats_up": "Numbers sent"}),
        (
            ahead(
                "Methods that see answers alone are sent less than CFL.",
                OURS,
                METHOD,
                UHC,
                CFL,
                "floats_up",
                larger_is_better=False,
            ),
            ahead(
                "A smaller public set is less to send.",
                OURS,
                "n_c",
                sizes[0],
                sizes[-1],
                "floats_up",
                larger_is_better=False,
            ),
        ),
        seeds=range(6),  # traffic is nearly the same for all; fewer differences of one sign decide nothing
    )
