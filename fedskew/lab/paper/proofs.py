"""What a folder holds that a checklist asks for, each as a sentence with its figures; None: it does not hold it."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import FedskewError, RunFolderError
from engine.data import Assignment
from engine.record import parts
from engine.results import tuning
from engine.results.settings import label, setting_label
from engine.results.trials import of_schema
from fedskew.lab.ledger.rows import command_of, without_seeds
from fedskew.lab.paper.evidence import Evidence, different
from fedskew.lab.paper.sources import SOURCES
from fedskew.lab.report.sheets import seeds_text
from fedskew.lab.wording import counted

LICENSES = {"fashion_mnist": "MIT", "fashion_mnist_sample": "MIT"}  # of data sets, as far as they ship with fedskew


@dataclass(frozen=True)
class Proof:
    """What the folder holds of an item; ``left``: what it does not, which is the author's."""

    text: str
    left: str = ""

    @property
    def whole(self) -> bool:
        return not self.left


# --- data -------------------------------------------------------------------------------------------


def data(evidence: Evidence) -> Proof | None:
    names, hashes = evidence.configured("data", "name"), evidence.recorded("data_sha256")
    if not names or not hashes:
        return None
    told = f"{', '.join(names)}; SHA-256 of the rows that were read: {', '.join(one[:16] for one in hashes)}"
    known = all(SOURCES["data"].get(name) for name in names)
    return Proof(f"{told}. fedskew cite gives the source.", "" if known else "where your data can be had")


def licenses(evidence: Evidence) -> Proof | None:
    names = evidence.configured("data", "name")
    known = [f"{name}: {LICENSES[name]}" for name in names if name in LICENSES]
    others = [name for name in names if name not in LICENSES]
    left = f"the license of {', '.join(others)}" if others else "licenses of whatever else the paper uses"
    return Proof("; ".join(["fedskew: Apache-2.0", *known]) + ". fedskew cite names the authors.", left)


def sizes(evidence: Evidence) -> Proof | None:
    found = set()
    for _, _, folder in evidence.trials:
        with suppress(FedskewError):
            rows = int(Assignment.load(folder / "partition.parquet").sizes().sum())
            tested = of_schema(folder, "evaluations", ["samples"])["samples"]
            found.add((rows, tested[-1].as_py() if len(tested) else 0))
    told = "; ".join(f"{rows:,} training rows of all clients, {tested:,} test rows" for rows, tested in sorted(found))
    return Proof(f"{told}. partition.parquet says which client holds which.") if found else None


def outcome(evidence: Evidence) -> Proof | None:
    if not evidence.trials:
        return None
    told = "The label of a row; each client's counts by class are in partition.parquet and in the report's figures."
    return Proof(told, "what the label means")


def dropped(evidence: Evidence) -> Proof | None:
    counts, held = evidence.recorded("dropped_samples"), evidence.recorded("held_out_clients")
    if not counts or not held:
        return None
    return Proof(
        f"Rows that the partition drops: {', '.join(counts)}; clients held out of training: {', '.join(held)}.",
        "what was left out before the data set was read",
    )


def transforms(evidence: Evidence) -> Proof | None:
    normalised, augmented = evidence.configured("data", "normalise"), evidence.configured("local", "augment")
    if not augmented:
        return None
    told = f"data.normalise={', '.join(normalised) or 'none'}, local.augment={', '.join(augmented)}"
    return Proof(f"{told}, in each trial's experiment.yaml.")


def separation(evidence: Evidence) -> Proof | None:
    if not sizes(evidence):
        return None
    return Proof(
        "Clients hold rows of the training split alone (partition.parquet); the global model is evaluated on the "
        "test split, personal models on each client's own test rows."
    )


# --- code and machines ------------------------------------------------------------------------------


def code(evidence: Evidence) -> Proof | None:
    versions, hashes = evidence.recorded("versions", "fedskew"), evidence.recorded("versions", "code")
    if not versions or not hashes:
        return None
    own = sorted(
        {one["name"] for _, _, folder in evidence.trials for one in _parts(folder) if one.get("origin") != "fedskew"}
    )
    left = "a link or DOI of the version" + (f", and of your own {', '.join(own)}" if own else "")
    told = f"fedskew {', '.join(versions)}; hash of the sources that a trial is computed by: {', '.join(hashes)}."
    return Proof(told, left)


def machine(evidence: Evidence) -> Proof | None:
    names = ("device", "processor", "hardware", "torch", "numpy")
    found = {name: evidence.recorded("versions", name) for name in names}
    if not all(found.values()):
        return None
    return Proof("; ".join(f"{name}: {', '.join(values)}" for name, values in found.items()) + ".")


def compute(evidence: Evidence) -> Proof | None:
    computed_on = machine(evidence)
    if computed_on is None:
        return None
    seconds, rounds = (evidence.results.trials[name].sum() for name in ("seconds", "rounds_computed"))
    told = f"{rounds:,.0f} rounds in {seconds:,.0f} seconds, all trials together, on {computed_on.text}"
    return Proof(told, "memory, and what was computed before this folder")


def command(evidence: Evidence) -> Proof | None:
    if not evidence.trials:
        return None
    left = "the same for all else that the paper reports"
    needs = parts.needs(folder for _, _, folder in evidence.trials)
    for_own = f" ({'; '.join(needs.others)})" if needs.others else ""
    if isinstance(reference := evidence.sweep.get("reference"), str):
        overrides, added = list(map(str, evidence.sweep.get("overrides") or ())), evidence.sweep.get("until_decided")
        again = command_of(
            reference,
            str(evidence.sweep.get("profile")),
            overrides,
            evidence.sweep["seeds"] if not added and without_seeds(overrides) != overrides else (),
            added["most"] if added else None,
            "FOLDER" if evidence.sweep.get("tuned_rank") else "",
        )
        given = f" {shlex.join(needs.words)}" if needs.words else ""
        return Proof(f"{again}{given} makes it again{for_own}.", left)
    where = "trials/*/experiment.yaml" if evidence.sweep else "experiment.yaml"
    given = f" and {shlex.join(needs.words)}" if needs.words else ""
    return Proof(
        f"fedskew run with {where}{given} makes each run again, to the same SHA-256 of its weights{for_own}.", left
    )


# --- models and choices -----------------------------------------------------------------------------


def models(evidence: Evidence) -> Proof | None:
    names, parameters = evidence.configured("model", "name"), evidence.recorded("parameters")
    if not names:
        return None
    methods = different(
        stage.get("algorithm", {}).get("name")
        for experiment, _, _ in evidence.trials
        for stage in experiment["stages"] or [experiment]
    )
    return Proof(f"{', '.join(names)} ({', '.join(parameters)} parameters), trained by {', '.join(methods)}.")


def evaluation(evidence: Evidence) -> Proof | None:
    every = evidence.configured("evaluation", "every")
    if not every:
        return None
    return Proof(
        f"On the test split, evaluation.every={', '.join(every)}; the figure is {evidence.results.metric}. No training "
        "row is held back for validation.",
        "why this split",
    )


def settings(evidence: Evidence) -> Proof | None:
    if not evidence.trials:
        return None
    axes = [
        f"{axis.key} in {label(axis.values)}" if axis.values else f"{axis.key} (drawn)"
        for axis in evidence.results.axes
    ]
    told = "All values are in each trial's experiment.yaml"
    if sides := tuning.read(evidence.results.path):
        return Proof(f"{told}. Tuned: {'; '.join(side.sentence for side in sides)}.")
    searched = f"; varied: {'; '.join(axes)}" if axes else ""
    return Proof(f"{told}{searched}.", "how those that do not vary were chosen")


def selection(evidence: Evidence) -> Proof | None:
    if sides := tuning.read(evidence.results.path):
        seeds = sorted({seed for side in sides for seed in side.seeds})
        return Proof(f"By {sides[0].metric} on seeds {seeds_text(seeds)}, apart from those that are reported.")
    if not evidence.results.axes:
        return None
    return Proof("No setting was selected: tables show all of them.", "whether the paper picks one, and by what")


def baselines(evidence: Evidence) -> Proof | None:
    claims = evidence.results.claims
    pairs = dict.fromkeys(f"{setting_label(one.better)} with {setting_label(one.worse)}" for one in claims if one.worse)
    return Proof(f"Compared are {'; '.join(pairs)}.", "whether these are the right ones") if pairs else None


# --- figures ----------------------------------------------------------------------------------------


def metrics(evidence: Evidence) -> Proof | None:
    if not evidence.trials:
        return None
    return Proof(f"{evidence.results.metric}, and the columns of report/trials.csv.", "why it suits the question")


def uncertainty(evidence: Evidence) -> Proof | None:
    if len(evidence.seeds) < 2:
        return None
    looks = "Student's t" if evidence.results.looks == "once" else "one that holds at every look at them"
    partitions = evidence.configured("partition", "seed")
    same = f"all on one draw of the partition, partition.seed={partitions[0]}" if len(partitions) == 1 else ""
    same = "each on a draw of its own of the partition" if len(partitions) == len(evidence.seeds) else same
    return Proof(
        f"Seeds {seeds_text(evidence.seeds)}{f', {same}' if same else ''}; 95 % intervals over seeds: of paired "
        f"differences {looks}, of means a bootstrap."
    )


def tests(evidence: Evidence) -> Proof | None:
    if len(evidence.seeds) < 2 or not (evidence.results.claims or evidence.results.tables):
        return None
    told = "Verdicts by the interval of paired differences against a margin stated beforehand"
    if evidence.results.looks != "once":
        return Proof(f"{told}, valid at every look at the seeds; no p, which would be of one look.")
    return Proof(
        f"{told}; beside them exact sign-flip p, one-sided, Holm-corrected (report/claims.csv), and in tables "
        "two-sided."
    )


def claims(evidence: Evidence) -> Proof | None:
    verdicts = [one.verdict for one in evidence.verdicts]
    told = [f"{verdicts.count(word)} {word}" for word in ("held", "not held", "undecided") if word in verdicts]
    if not verdicts:
        return None
    return Proof(
        f"{counted(len(verdicts), 'claim')}: {', '.join(told)} (report/claims.csv).", "that the text says no more"
    )


def limits(evidence: Evidence) -> Proof | None:
    against = [one.claim.text.rstrip(".") for one in evidence.verdicts if one.verdict != "held"]
    return Proof(f"Not held or undecided here: {'; '.join(against)}.", "the discussion") if against else None


def breadth(evidence: Evidence) -> Proof | None:
    axes = [axis.name for axis in evidence.results.axes if axis.key.partition(".")[0] in ("data", "partition")]
    return Proof(f"Varied: {', '.join(axes)}.", "other data, other people") if axes else None


def reproducible(evidence: Evidence) -> Proof | None:
    if not evidence.trials or not evidence.recorded("weights_sha256"):
        return None
    return Proof(
        f"{counted(len(evidence.trials), 'trial')} with the whole config, seed, hashes of code, data and final weights."
    )


def _parts(folder: Path) -> list[dict[str, Any]]:
    with suppress(RunFolderError):
        return list(parts.read(folder).values())
    return []
