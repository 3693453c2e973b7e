"""Whom to cite for a folder: the BibTeX of a run or a sweep.

It offers ``citations``. Each entry of ``references.bib`` says which method, data set, partition, architecture or
statistics it is the source of.
"""

from fedskew.lab.paper.citations import citations

__all__ = ["citations"]
