"""What is done around a sweep: tuning of its sides, seeds until claims are decided, parts merged, entries confirmed.

It drives ``engine.sweeps`` from above. Read ``tuning.py`` first.
"""
