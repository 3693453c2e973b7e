"""A round's local models compared: CKA between clients, norms of the classifier's rows, features in a plane.

Read ``diagnosis.py`` first.
"""
