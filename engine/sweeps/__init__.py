"""Sweeps: Ray Tune over whole federations. The only package that imports ``ray.tune``.

It offers ``Sweep`` and its searchers and schedulers for those who define one, ``load`` to find one by its name, and
``run_sweep`` to run it; ``reopened`` finds it again in its folder. Read ``definition.py`` first, then ``running.py``.

definition.py   what a sweep is: base experiment, search space, seeds, scheduler, claims
space.py        search spaces: what is a grid, what is drawn, an axis as data
named.py        sweeps by their names, or of a user's own file
options.py      what a user chooses of how a sweep runs
folder.py       what is on disk: sweep.yaml, and a record for each trial
planning.py     arithmetic before anything starts: trials, their order, where they run, whether they fit
storage.py      a sweep's folder as nodes reach it that do not see it
away.py         folders that stand for one there: a trial's, a copy
trial.py        one trial: a run behind Tune's Trainable interface
scores.py       the figures that a trial reports while it runs
searching.py    which trial is next: planned ones in an order that shares rounds, or a searcher's
tuner.py        a sweep in Tune's terms: searcher, scheduler, limits
portions.py     one Tune after another, since each keeps all its trials
running.py      all of it together, until the last trial has ended; and again after a crash
tuned.py        which sides are tuned, over what
observers.py    who is told of trials as they begin, report and end
callbacks.py    Tune callbacks of a sweep's author
result_grid.py  Ray Tune's own results, for who knows Tune
"""

from __future__ import annotations

import os

# Read by Ray when it is imported or when a sweep starts.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # an actor without a GPU share sees no GPU
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # Tune's own tables are off: an observer may show one
# Of a Ray that is started here: processes that it starts for tasks at once. Trials take none of them, since Tune gives
# theirs an environment of their own, so they are started, waited for and ended for nothing.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # relative data folders mean the same in every process
os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
