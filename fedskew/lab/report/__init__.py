"""The report of a sweep or of a run: one HTML page that needs nothing else, and its figures and tables as files.

    write(Path("runs/drift.fedprox_mu-laptop-0123456789ab"))    -> .../report/report.html

    report/report.html    style, script and figures inside; no request leaves it, which its content policy enforces
    report/report.json    what of the plan is there, and the verdicts, for a program
    report/*.png, *.csv   each figure and each table
    report/*.pdf, *.tex   each figure in lines and letters, and tables in LaTeX, for a paper
    trials.parquet        one row per trial

It offers ``write``. Everything is made from the folder alone, so the same folder gives the same bytes; the folder
``report`` is the report's own, and pictures and tables in it that it does not make any more are deleted. Read
``folder.py`` first: it says what a report has.
"""

from fedskew.lab.report.folder import write

__all__ = ["write"]
