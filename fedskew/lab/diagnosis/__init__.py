"""A round's local models compared: CKA between clients, norms of the classifier's rows, features in a plane.

It offers ``diagnose`` for a round of a run and ``diagnose_sweep`` for each trial of a sweep; the report shows what they
wrote. Read ``diagnosis.py`` first.
"""
