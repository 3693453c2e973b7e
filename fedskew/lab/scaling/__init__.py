"""Rounds per second over actors; a law fitted to them, and a page.

It offers a ``Study``, which is measured and kept on disk, and the page that it writes. Read ``study.py`` (what is
measured, and how), then ``law.py`` (what it says) and ``page.py``.
"""
