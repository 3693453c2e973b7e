"""Data sets (``data.name``) and their division among clients (``partition.name``).

It offers the sources and the partitions by name, a data set's arrays, and the batches of a client's rows. Read
``dataset.py`` first, then ``partition.py``.
"""

from engine.base.registry import Registry
from engine.data.annotations import INaturalist2019, INaturalistUser120k
from engine.data.assignment import Assignment
from engine.data.class_sets import ClassSets
from engine.data.dataset import Dataset, Source, Split
from engine.data.folders import Cinic10, ImageNet200, Omniglot, TinyImageNet
from engine.data.partition import (
    CbflCode,
    ClassesPerClient,
    Dirichlet,
    DirichletCapped,
    DirichletClient,
    Iid,
    Natural,
    Partition,
    Personalised,
    Quantity,
    Shards,
)
from engine.data.replacement import Replacement
from engine.data.sources import Cifar10, Cifar100, Emnist, FashionMnist, FashionMnistSample, Mnist
from engine.data.synthetic import Synthetic
from engine.data.user_data import ImageFolder, Parquet

SOURCES = Registry(
    "data",
    {
        "fashion_mnist_sample": FashionMnistSample,
        "fashion_mnist": FashionMnist,
        "mnist": Mnist,
        "emnist": Emnist,
        "cifar10": Cifar10,
        "cifar100": Cifar100,
        "cinic10": Cinic10,
        "omniglot": Omniglot,
        "tiny_imagenet": TinyImageNet,
        "imagenet200": ImageNet200,
        "inaturalist2019": INaturalist2019,
        "inaturalist_user_120k": INaturalistUser120k,
        "synthetic": Synthetic,
        "imagefolder": ImageFolder,
        "parquet": Parquet,
    },
)

PARTITIONS = Registry(
    "partition",
    {
        "iid": Iid,
        "dirichlet": Dirichlet,
        "dirichlet_capped": DirichletCapped,
        "dirichlet_client": DirichletClient,
        "classes_per_client": ClassesPerClient,
        "personalised": Personalised,
        "shards": Shards,
        "quantity": Quantity,
        "natural": Natural,
        "cbfl_code": CbflCode,
        "class_sets": ClassSets,
        "replacement": Replacement,
    },
)

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Assignment",
    "CbflCode",
    "Cifar10",
    "Cifar100",
    "Cinic10",
    "ClassSets",
    "ClassesPerClient",
    "Dataset",
    "Dirichlet",
    "DirichletCapped",
    "DirichletClient",
    "Emnist",
    "FashionMnist",
    "FashionMnistSample",
    "INaturalist2019",
    "INaturalistUser120k",
    "Iid",
    "ImageFolder",
    "ImageNet200",
    "Mnist",
    "Natural",
    "Omniglot",
    "Parquet",
    "Partition",
    "Personalised",
    "Quantity",
    "Replacement",
    "Shards",
    "Source",
    "Split",
    "Synthetic",
    "TinyImageNet",
]
