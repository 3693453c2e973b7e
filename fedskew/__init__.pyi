# The face: what users import every day. ``lazy.py`` reads this file, so a name is written here alone.

from algorithms.fedavg import FedAvg as FedAvg
from engine import __version__ as __version__
from engine.algorithm import Algorithm as Algorithm
from engine.algorithm import Phase as Phase
from engine.algorithm import idle_when as idle_when
from engine.base.errors import ConfigError as ConfigError
from engine.base.errors import FedskewError as FedskewError
from engine.base.errors import require as require
from engine.experiment import Experiment as Experiment
from engine.experiment.own_parts import algorithm as algorithm
from engine.experiment.own_parts import dataset as dataset
from engine.experiment.own_parts import metric as metric
from engine.experiment.own_parts import model as model
from engine.experiment.own_parts import partition as partition
from engine.results.claims import Claim as Claim
from engine.results.frames.frames import load_results as load_results
from engine.results.simulated_time import Devices as Devices
from engine.run.run import Run as Run
from engine.sweeps.definition import Asha as Asha
from engine.sweeps.definition import Optuna as Optuna
from engine.sweeps.definition import Pbt as Pbt
from engine.sweeps.definition import Sweep as Sweep
from engine.sweeps.result_grid import tune_results as tune_results
from engine.sweeps.tuned import Tuned as Tuned
from fedskew.running import resume as resume
from fedskew.running import run as run
from fedskew.running import sweep as sweep

from . import contract as contract
from . import results as results
