"""What a paper needs of a folder beside its figures: whom to cite, and what the folder proves of a checklist.

It offers ``citations`` (the BibTeX of a run or a sweep) and ``checklist``. Read ``sources.py`` first: it says which
entry of ``references.bib`` is the source of which method, data set, partition and architecture.
"""

from fedskew.lab.paper.checklist import checklist
from fedskew.lab.paper.citations import citations

__all__ = ["checklist", "citations"]
