"""What a folder proves of two checklists, item by item, with the proof; all else is named as the author's.

Items in our own words, by the numbers of their lists: REFORMS (Kapoor et al. 2024, "REFORMS: Consensus-based
Recommendations for Machine-learning-based Science", 32 items in 8 modules) and the checklist of NeurIPS (16 questions).
Nothing is ticked that the folder does not hold: what is held in part says what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedskew.lab.paper import proofs
from fedskew.lab.paper.evidence import Evidence
from fedskew.lab.paper.proofs import Proof
from fedskew.lab.report.sheets import escaped

Item = tuple[str, str, Callable[[Evidence], Proof | None] | None]  # number, what it asks, proof; None: the author's

REFORMS: Sequence[tuple[str, Sequence[Item]]] = (
    (
        "Study goals",
        (
            ("1a", "which population or distribution the claims are about", None),
            ("1b", "why that one", None),
            ("1c", "why machine learning is used", None),
        ),
    ),
    (
        "Computational reproducibility",
        (
            ("2a", "the data set, identified", proofs.data),
            ("2b", "the code, identified by version", proofs.code),
            ("2c", "the machines and software", proofs.machine),
            ("2d", "a README with instructions", None),
            ("2e", "a script that makes all results", proofs.command),
        ),
    ),
    (
        "Data quality",
        (
            ("3a", "where the data come from, when and how they were labelled", None),
            ("3b", "what they were sampled from", None),
            ("3c", "why they suit the task", None),
            ("3d", "the outcome and its statistics", proofs.outcome),
            ("3e", "sample sizes", proofs.sizes),
            ("3f", "what is missing in the data", None),
            ("3g", "why the data represent the population", None),
        ),
    ),
    (
        "Data preprocessing",
        (
            ("4a", "what was excluded", proofs.dropped),
            ("4b", "impossible or corrupt samples", None),
            ("4c", "transformations", proofs.transforms),
        ),
    ),
    (
        "Modelling",
        (
            ("5a", "the models and how they are trained", proofs.models),
            ("5b", "why these models", None),
            ("5c", "how models are evaluated, on which split", proofs.evaluation),
            ("5d", "how a model was selected", proofs.selection),
            ("5e", "hyper-parameters and how they were chosen", proofs.settings),
            ("5f", "baselines", proofs.baselines),
        ),
    ),
    (
        "Data leakage",
        (
            ("6a", "training and test data are apart", proofs.separation),
            ("6b", "no dependence or doubles between them", None),
            ("6c", "features that may be used", None),
        ),
    ),
    (
        "Metrics and uncertainty",
        (
            ("7a", "metrics and why", proofs.metrics),
            ("7b", "uncertainty and how it is computed", proofs.uncertainty),
            ("7c", "statistical tests and why", proofs.tests),
        ),
    ),
    (
        "Generality and limits",
        (
            ("8a", "evidence beyond the data at hand", proofs.breadth),
            ("8b", "where the findings are not expected to hold", proofs.limits),
        ),
    ),
)
NEURIPS: Sequence[Item] = (
    ("1", "claims match the results", proofs.claims),
    ("2", "limitations", proofs.limits),
    ("3", "assumptions and proofs of theory", None),
    ("4", "what is needed to reproduce the results", proofs.reproducible),
    ("5", "open access to data and code", proofs.code),
    ("6", "details of training and testing", proofs.settings),
    ("7", "statistical significance", proofs.uncertainty),
    ("8", "compute resources", proofs.compute),
    ("9", "code of ethics", None),
    ("10", "broader impact", None),
    ("11", "safeguards of what is released", None),
    ("12", "licenses and credit of what is used", proofs.licenses),
    ("13", "documentation of what is new", None),
    ("14", "crowdsourcing and instructions to people", None),
    ("15", "review board's approval", None),
    ("16", "use of language models in the research", None),
)


def checklist(folder: Path) -> str:
    """Write both checklists for a run or a sweep, in Markdown."""
    evidence = Evidence(folder)
    counts = {"proved": 0, "partly": 0, "yours": 0}
    blocks = []
    for title, items in [*((f"REFORMS, {module}", items) for module, items in REFORMS), ("NeurIPS", NEURIPS)]:
        lines = []
        for number, asks, prove in items:
            state, line = _line(number, asks, prove(evidence) if prove else None)
            counts[state] += 1
            lines.append(line)
        blocks.append(f"## {title}\n\n" + "\n".join(lines))
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    head = [
        f"# Checklist: {escaped(evidence.results.title)}",
        *(f"> {escaped(sentence)}" for sentence in evidence.results.coverage.sentences()),
        f"{told}. A tick means that this folder holds the proof; partly, that something is left to the authors; yours, "
        "that the folder holds nothing of it. Items are in our words: read the lists themselves before you answer.",
    ]
    return "\n\n".join([*head, *blocks]).replace("<", "&lt;") + "\n"


def _line(number: str, asks: str, proof: Proof | None) -> tuple[str, str]:
    if proof is None:
        return "yours", f"- [ ] {number} {asks}: yours"
    if proof.whole:
        return "proved", f"- [x] {number} {asks}: {escaped(proof.text)}"
    return "partly", f"- [ ] {number} {asks}: partly. {escaped(proof.text)} Left: {escaped(proof.left)}."
