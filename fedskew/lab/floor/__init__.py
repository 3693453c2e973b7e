"""The floor of a round, called its roofline in the field: its time beside the least that arithmetic and memory allow.

It offers ``measure_floor``, which runs a few rounds, measures the machine and counts what the rounds had to do. Read
``counts.py`` first, for what a round has to do at the least; ``measured.py`` runs rounds beside it.
"""
