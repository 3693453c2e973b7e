"""The algorithms, one file each. To add one: write the file and add its line here."""

from algorithms.answers import Answers
from algorithms.apfl import APFL
from algorithms.cbfl import Cbfl
from algorithms.cbhma import Cbhma
from algorithms.cbhma_e import CbhmaE
from algorithms.ccvr import Ccvr
from algorithms.cfl_amalgam import CflAmalgam
from algorithms.clsnorm import ClsNorm
from algorithms.clsprox import ClsProx
from algorithms.ditto import Ditto
from algorithms.fedacg import FedACG
from algorithms.fedala import FedAla
from algorithms.fedavg import FedAvg
from algorithms.fedavg_local import FedAvgLocal
from algorithms.fedavgm import FedAvgM
from algorithms.fedbabu import FedBabu
from algorithms.fedbn import FedBN
from algorithms.fedcm import FedCM
from algorithms.feddc import FedDC
from algorithms.feddecorr import FedDecorr
from algorithms.feddyn import FedDyn
from algorithms.fedetf import FedETF
from algorithms.fedexp import FedExP
from algorithms.fedlc import FedLC
from algorithms.fedmix import FedMix
from algorithms.fednova import FedNova
from algorithms.fedntd import FedNTD
from algorithms.fedopt import FedAdam, FedYogi
from algorithms.fedper import FedPer
from algorithms.fedproto import FedProto
from algorithms.fedprox import FedProx
from algorithms.fedrecon import FedRecon
from algorithms.fedrep import FedRep
from algorithms.fedrod import FedROD
from algorithms.fedrs import FedRS
from algorithms.fedsam import FedSam
from algorithms.fedser import FedSer
from algorithms.ifca import Ifca
from algorithms.iid_calibration import IidCalibration
from algorithms.lg_fedavg import LGFedAvg
from algorithms.local import LocalOnly
from algorithms.mixup_local import MixupLocal
from algorithms.moon import Moon
from algorithms.naivemix import NaiveMix
from algorithms.perfedavg import PerFedAvg
from algorithms.pfedme import PFedMe
from algorithms.pflego import Pflego
from algorithms.qfedavg import QFedAvg
from algorithms.scaffold import Scaffold
from algorithms.skd1 import Skd1
from algorithms.skd2 import Skd2
from algorithms.uhc import Uhc
from engine.algorithm import Algorithm
from engine.base.registry import Registry

ALGORITHMS = Registry(
    "algorithm",
    Algorithm,
    {
        "fedavg": FedAvg,
        "fedprox": FedProx,
        "scaffold": Scaffold,
        "fedavgm": FedAvgM,
        "fednova": FedNova,
        "moon": Moon,
        "feddc": FedDC,
        "feddyn": FedDyn,
        "fedadam": FedAdam,
        "fedyogi": FedYogi,
        "fedcm": FedCM,
        "fedacg": FedACG,
        "fedexp": FedExP,
        "qfedavg": QFedAvg,
        "fedntd": FedNTD,
        "feddecorr": FedDecorr,
        "fedetf": FedETF,
        "fedlc": FedLC,
        "fedrs": FedRS,
        "fedmix": FedMix,
        "naivemix": NaiveMix,
        "mixup_local": MixupLocal,
        "cbfl": Cbfl,
        "fedser": FedSer,
        "fedsam": FedSam,
        "clsprox": ClsProx,
        "clsnorm": ClsNorm,
        "pflego": Pflego,
        "fedper": FedPer,
        "lg_fedavg": LGFedAvg,
        "fedrep": FedRep,
        "fedbabu": FedBabu,
        "fedrecon": FedRecon,
        "fedavg_local": FedAvgLocal,
        "local": LocalOnly,
        "ditto": Ditto,
        "apfl": APFL,
        "pfedme": PFedMe,
        "perfedavg": PerFedAvg,
        "fedala": FedAla,
        "ifca": Ifca,
        "fedproto": FedProto,
        "fedrod": FedROD,
        "fedbn": FedBN,
        "ccvr": Ccvr,
        "iid_calibration": IidCalibration,
        "answers": Answers,
        "skd1": Skd1,
        "skd2": Skd2,
        "uhc": Uhc,
        "cfl_amalgam": CflAmalgam,
        "cbhma": Cbhma,
        "cbhma_e": CbhmaE,
    },
    defaults=True,
)
