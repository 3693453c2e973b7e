"""Python imports this at its start where this folder is on PYTHONPATH: in the command and in each of Ray's workers."""

from tests.faults import inject

inject.install()
