"""The algorithms, one file each. To add one: write the file and add its line here."""

from algorithms.ccvr import Ccvr
from algorithms.fedavg import FedAvg
from algorithms.fedmix import FedMix
from algorithms.fedprox import FedProx
from algorithms.iid_calibration import IidCalibration
from algorithms.mixup_local import MixupLocal
from algorithms.naivemix import NaiveMix
from algorithms.scaffold import Scaffold
from engine.registry import Registry

ALGORITHMS = Registry(
    "algorithm",
    {
        "fedavg": FedAvg,
        "fedprox": FedProx,
        "scaffold": Scaffold,
        "fedmix": FedMix,
        "naivemix": NaiveMix,
        "mixup_local": MixupLocal,
        "ccvr": Ccvr,
        "iid_calibration": IidCalibration,
    },
)
