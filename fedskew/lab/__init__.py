"""The laboratory: what is made of results, and studies that take runs to answer.

It offers verdicts on claims, statistics, reports, figures, leaderboards, the ledger of claims, sweeps that are tuned or
go on until their claims are decided, and studies: scaling, the floor of a round (its roofline), executors, client
drift, generated images. Read ``comparing/verdicts.py`` first, then ``report/folder.py``.
"""
