"""Rounds per second over actors, cohort, blocks and models; a law fitted to them, and a page.

It offers ``make_plan``, a ``Study`` that is kept on disk and the page that it writes. Read ``plan.py`` (what is
measured), then ``measure.py`` (how), ``law.py`` (what it says) and ``page.py``.
"""
