"""Reading of runs and sweeps: tables of trials, statistics over seeds, claims of papers, pictures and the report.

It offers ``load`` (a folder as :class:`Results`), ``judge`` (is a claim held, not held or undecided), what a sweep
declares (``Claim``, ``PaperTable``, ``Published``), ``report.write`` for the folder of a report,
``run_pictures.draw_pictures`` for the pictures of one run and ``ledger`` for what came of all papers' claims.
Read ``trials.py`` first (the figures of a trial), then ``results.py`` and ``comparing/verdicts.py``.

results = load(Path("runs/drift.fedprox_mu-laptop-0123456789ab"))
results.settings()                  # mean, spread and interval of every setting
comparisons(results, "mu")          # paired differences with intervals and p-values
for verdict in judge(results):      # held, not held, undecided
    print(verdict.claim.text, verdict.verdict, verdict.why)
"""

from engine.analysis.claims import Claim, PaperTable, Published
from engine.analysis.comparing.comparisons import comparisons, paper_frame
from engine.analysis.comparing.verdicts import Verdict, judge
from engine.analysis.loading import load, write_trials
from engine.analysis.results import Axis, Results
from engine.analysis.settings import label, setting_label

__all__ = [
    "Axis",
    "Claim",
    "PaperTable",
    "Published",
    "Results",
    "Verdict",
    "comparisons",
    "judge",
    "label",
    "load",
    "paper_frame",
    "setting_label",
    "write_trials",
]
