"""Rounds per second and their phases over actors; a model of a round fitted to them, a page, and plans on paper.

It offers a ``Study``, which is measured and kept on disk, and the page that it writes. Read ``study.py`` (what is
measured, and how), then ``model.py`` (what it says), ``page.py`` and ``plan.py``.
"""
