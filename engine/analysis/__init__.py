"""What a run or a sweep says: tables of trials, statistics over seeds, claims of papers, figures and the report.

results = load(Path("runs/drift.fedprox_mu-laptop-0123456789ab"))
results.settings()                  # mean, spread and interval of every setting
comparisons(results, "mu")          # paired differences with intervals and p-values
for verdict in judge(results):      # held, not held, undecided
    print(verdict.claim.text, verdict.verdict, verdict.why)
"""

from engine.analysis.claims import Claim, Verdict, judge
from engine.analysis.layouts import Layout, Published, comparisons, layout_frame
from engine.analysis.settings import label, setting_label
from engine.analysis.tables import Axis, Results, load, write_trials

__all__ = [
    "Axis",
    "Claim",
    "Layout",
    "Published",
    "Results",
    "Verdict",
    "comparisons",
    "judge",
    "label",
    "layout_frame",
    "load",
    "setting_label",
    "write_trials",
]
