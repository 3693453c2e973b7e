"""Images that a run's generator makes, beside the images that it was trained on.

It offers ``look`` for a run and ``look_at_sweep`` for each trial of a sweep; the report shows what they wrote. Read
``generated.py`` first.
"""
