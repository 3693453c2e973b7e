"""The source of everything that has a name in a config: keys of ``references.bib``, in the order to cite them.

An empty tuple says that there is nothing to cite. A new part needs a line here and, if it has a paper of its own, an
entry there; of an entry, what is not known for certain is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

_MCMAHAN, _CCVR, _PFLEGO, _CBHMA = (
    ("mcmahan2017communication",),
    ("luo2021no",),
    ("nikoloutsopoulos2022personalized",),
    ("pang2022towards",),
)
_HE = ("he2016deep",)

SOURCES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "algorithm": {
        "fedavg": _MCMAHAN,
        "fedprox": ("li2020federated",),
        "scaffold": ("karimireddy2020scaffold",),
        "fedavgm": ("hsu2019measuring",),
        "fednova": ("wang2020tackling",),
        "moon": ("li2021model",),
        "feddc": ("gao2022feddc",),
        "feddyn": ("acar2021federated",),
        "fedadam": ("reddi2021adaptive",),
        "fedyogi": ("reddi2021adaptive",),
        "fedntd": ("lee2022preservation",),
        "fedlc": ("zhang2022federated",),
        "fedrs": ("li2021fedrs",),
        "fedmix": ("yoon2021fedmix",),
        "naivemix": ("yoon2021fedmix",),
        "mixup_local": ("zhang2018mixup", *_MCMAHAN),
        "cbfl": ("cbfl2023",),
        "fedser": ("yang2020gradaug", "mendieta2022local"),  # what it is made of; its own paper is not recorded here
        "clsprox": (*_CCVR, "li2020federated"),
        "clsnorm": _CCVR,
        "pflego": _PFLEGO,
        "fedper": ("arivazhagan2019federated",),
        "fedrep": ("collins2021exploiting",),
        "fedbabu": ("oh2022fedbabu",),
        "fedrecon": ("singhal2021federated",),
        "fedavg_local": _PFLEGO,
        "local": (),
        "ditto": ("li2021ditto",),
        "pfedme": ("dinh2020personalized",),
        "perfedavg": ("fallah2020personalized",),
        "fedproto": ("tan2022fedproto",),
        "fedrod": ("chen2022on",),
        "fedbn": ("li2021fedbn",),
        "ccvr": _CCVR,
        "iid_calibration": _CCVR,
        "answers": (),
        "skd1": _CBHMA,
        "skd2": _CBHMA,
        "uhc": ("vongkulbhisal2019unifying", *_CBHMA),
        "cfl_amalgam": ("luo2019knowledge",),
        "cbhma": _CBHMA,
        "cbhma_e": _CBHMA,
    },
    "data": {
        "fashion_mnist_sample": ("xiao2017fashion",),
        "fashion_mnist": ("xiao2017fashion",),
        "mnist": ("lecun1998gradient",),
        "emnist": ("cohen2017emnist",),
        "cifar10": ("krizhevsky2009learning",),
        "cifar100": ("krizhevsky2009learning",),
        "cinic10": ("darlow2018cinic",),
        "omniglot": ("lake2015human",),
        "tiny_imagenet": ("le2015tiny", "russakovsky2015imagenet"),
        "imagenet200": ("russakovsky2015imagenet", "mendieta2022local"),
        "inaturalist2019": ("vanhorn2018inaturalist",),
        "inaturalist_user_120k": ("hsu2020federated", "vanhorn2018inaturalist"),
        "synthetic": ("li2020federated",),
        "imagefolder": (),
        "parquet": (),
    },
    "partition": {
        "iid": (),
        "dirichlet": ("yurochkin2019bayesian",),
        "dirichlet_capped": ("li2021model", "li2022federated"),
        "dirichlet_client": ("hsu2019measuring",),
        "classes_per_client": ("li2022federated", "yoon2021fedmix"),
        "personalised": _PFLEGO,
        "shards": _MCMAHAN,
        "quantity": ("li2022federated",),
        "natural": (),
        "cbfl_code": ("cbfl2023",),
        "class_sets": _CBHMA,
        "replacement": (),
        "sizes": (),
        "class_matrix": (),
        "owner_groups": (),
        "table": (),
    },
    "model": {
        "logistic": (),
        "mlp": _MCMAHAN,
        "cnn": _MCMAHAN,
        "cnn3": (),
        "moon_cnn": ("li2021model",),
        "lenet": ("gao2022feddc", "lecun1998gradient"),
        "resnet8": _HE,
        "resnet20": _HE,
        "resnet32": _HE,
        "resnet56": _HE,
        "resnet18": _HE,
        "resnet50": _HE,
        "mobilenetv2": ("sandler2018mobilenetv2",),
        "pflego_mlp": _PFLEGO,
        "pflego_cifar": _PFLEGO,
        "pflego_omniglot": _PFLEGO,
        "fedrep_cifar": ("collins2021exploiting",),
        "dan": ("iyyer2015deep",),
    },
}
SERVER_OPTIMIZERS = ("reddi2021adaptive",)  # of a method whose server_optimizer is adam or yogi
CLAIMS = ("holm1979simple", "agarwal2021deep", "benavoli2017time")  # by which a report tells of claims
RANKS = ("demsar2006statistical",)  # and of ranks


def entries() -> dict[str, str]:
    """Read ``references.bib``: each entry as it stands there, by its key."""
    bibliography = resources.files("fedskew.lab.paper").joinpath("references.bib")
    text = bibliography.read_text(encoding="ascii")
    return {re.split("[{,]", entry)[1]: entry for entry in re.split(r"\n(?=@)", text.rstrip("\n"))}
