"""Whom to cite for a folder: the BibTeX of a run or a sweep.

It offers ``citations``. Read ``sources.py`` first: it says which entry of ``references.bib`` is the source of which
method, data set, partition and architecture.
"""

from fedskew.lab.paper.citations import citations

__all__ = ["citations"]
