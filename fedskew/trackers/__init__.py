"""Results for other tools: MLflow, TensorBoard, Weights & Biases, tables as files, Optuna's storage.

It offers ``exporting.exported``, which brings a folder to its place after the fact, and ``beside.beside``, which lets
trackers follow a folder while it grows, each in a process of its own. Read ``records.py`` first, then ``pushing.py``.

records.py              what a tracker is told, in words that all trackers share
reading.py              folders as such records: what is on disk, and what has come since the last look
pushing.py              one pass over a folder
mlflow_store.py         MLflow; so tensorboard_events.py and wandb_runs.py
targets.py              trackers and places as users name them
following.py            the process that follows a folder
beside.py               its start and its end, in the process of the run
table_files.py          tables as CSV and parquet
optuna_study.py         a sweep as a study for Optuna's dashboard
exporting.py            fedskew export
"""
