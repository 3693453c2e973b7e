"""Questions that take runs to answer: scaling, the floor of a round, executors, local models compared, generated
images.

It offers one folder a study, each with what it measures, what it concludes and the page that it writes. Read
``scaling/study.py`` first.
"""
