"""The algorithms, one file each. To add one: write the file and add its line here."""

from algorithms.ccvr import Ccvr
from algorithms.fedavg import FedAvg
from algorithms.fedprox import FedProx
from algorithms.iid_calibration import IidCalibration
from algorithms.scaffold import Scaffold
from engine.registry import Registry

ALGORITHMS = Registry(
    "algorithm",
    {
        "fedavg": FedAvg,
        "fedprox": FedProx,
        "scaffold": Scaffold,
        "ccvr": Ccvr,
        "iid_calibration": IidCalibration,
    },
)
