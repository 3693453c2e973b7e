"""Comparison of settings: which differ, which claims hold, which hyper-parameters matter.

It offers ``judge`` (verdicts on claims), ``comparisons`` and ``paper_frame`` (paired differences, tables of papers),
``importance`` (of hyper-parameters), settings by rank with their places along an axis, and, beside the verdicts, how
large an effect is (``effects.py``) and average ranks (``ranks.py``). Read ``verdicts.py`` first: its beginning is the
rule by which a claim holds.
"""
