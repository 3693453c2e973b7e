"""Python imports this at its start where this folder is on PYTHONPATH: in the command and in each of Ray's workers."""

import runpy

from tests.faults import inject
from tests.support import startup

runpy.run_path(f"{startup.__path__[0]}/sitecustomize.py")  # which this one hides
inject.install()
