"""Results for other tools: MLflow, TensorBoard and Weights & Biases as observers of runs and sweeps; tables as files.

It offers ``tracking.tracked``, which lets trackers follow a folder while it grows, and ``exporting.exported``, which
brings a folder to its place after the fact. Read ``records.py`` first, then ``tracking.py``.

records.py              what a tracker is told, and one pass over a folder
tracking.py             trackers and places as users name them; the thread that tells one
mlflow.py               MLflow; so tensorboard.py and wandb.py
exporting.py            fedskew export
"""
