"""What is kept: the run folder and its tables, checkpoints, clients' states, the store of stages, and the hashes of
it all.

It offers writers that leave whole files or none, and readers that refuse what is damaged in one sentence. Read
``run_folder.py`` first, for what lies where; ``hashing.py`` says when two stages have equal results.
"""
