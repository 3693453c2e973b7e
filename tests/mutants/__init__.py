"""Wrong code that named tests must notice: ``make mutants``, or ``python -m tests.mutants --help``.

``table.py`` says what is changed and which tests fail by it, ``__main__.py`` runs them on a copy of the tree. A mutant
is added by a line of the table: the code that is wrong, word for word as it stands in one place of the sources (which
file is found by it, so that a module can move), what stands there instead, and the tests.
"""
