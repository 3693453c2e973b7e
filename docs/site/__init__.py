"""What the documentation site makes from the code: pages for algorithms, commands and names, tutorials that have run.

``hooks.py`` is what MkDocs calls (see ``mkdocs.yml``); every other module here makes one kind of page and knows nothing
of MkDocs. None of the pages is kept in the repository: ``make site`` makes them anew.
"""
