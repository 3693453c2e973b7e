"""Rounds per second over actors, cohort, blocks and models; a law fitted to them, and a page.

Read ``plan.py`` (what is measured), ``measure.py`` (how), ``law.py`` (what it says), ``page.py``.
"""
