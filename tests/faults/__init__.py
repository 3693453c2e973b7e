"""Runs under faults: ``python -m tests.faults.chaos`` draws them, :mod:`tests.faults.harness` lets them happen."""
