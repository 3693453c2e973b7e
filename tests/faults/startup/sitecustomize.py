"""Python imports this at its start where this folder is on PYTHONPATH: in the command and in each of Ray's workers."""

import runpy
import sys

from tests.faults import inject

for folder in sys.path:
    if folder.endswith("tests/support/startup"):  # under pytest, and not under ``make chaos``: this file hides it
        runpy.run_path(f"{folder}/sitecustomize.py")
inject.install()
