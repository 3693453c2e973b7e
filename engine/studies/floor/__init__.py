"""A round's time beside the least that this machine's arithmetic and memory allow.

Read ``counts.py`` first, for what a round has to do at the least; ``measured.py`` runs rounds beside it.
"""
