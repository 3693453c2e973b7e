"""HTML pages that need nothing else: their colours, style and script, and a plain page of facts, tables and pictures.

It offers ``render`` for the page of a study and ``dressing`` for the report, which has a template of its own. Read
``plain_page.py`` first.
"""
