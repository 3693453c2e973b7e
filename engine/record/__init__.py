"""The records of runs: the run folder with its tables and summary, checkpoints, client states, the store of finished
stages, and the hashes that say when two stages have equal results.

It offers writers that leave whole files or none, readers that refuse what is damaged in one sentence, and the table of
metrics that reports, sweeps and the documentation share. Read ``run_folder.py`` first, for the files of a run;
``metrics.py`` for what its numbers mean, ``stage_hashes.py`` for what its bits depend on, ``store/`` for shared work.
"""
