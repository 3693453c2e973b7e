"""Studies that take runs to answer: scaling, the floor of a round (its roofline), executors, client drift, images, and
whether a part keeps the rules (its conformance).

It offers one folder a study, each with what it measures, what it concludes and the page that it writes.
Read ``scaling/study.py`` first.
"""
