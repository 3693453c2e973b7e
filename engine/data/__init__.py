"""Data sets (``data.name``) and their division among clients (``partition.name``)."""

from engine.data.dataset import Dataset, Source, Split
from engine.data.partition import (
    Assignment,
    CbflCode,
    ClassesPerClient,
    Dirichlet,
    DirichletCapped,
    DirichletClient,
    Iid,
    Natural,
    Partition,
    Quantity,
    Shards,
)
from engine.data.sources import Cifar10, FashionMnist, FashionMnistSample, ImageFolder, Parquet, Synthetic
from engine.registry import Registry

SOURCES = Registry(
    "data",
    {
        "fashion_mnist_sample": FashionMnistSample,
        "fashion_mnist": FashionMnist,
        "cifar10": Cifar10,
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
        "shards": Shards,
        "quantity": Quantity,
        "natural": Natural,
        "cbfl_code": CbflCode,
    },
)

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Assignment",
    "CbflCode",
    "Cifar10",
    "ClassesPerClient",
    "Dataset",
    "Dirichlet",
    "DirichletCapped",
    "DirichletClient",
    "FashionMnist",
    "FashionMnistSample",
    "Iid",
    "ImageFolder",
    "Natural",
    "Parquet",
    "Partition",
    "Quantity",
    "Shards",
    "Source",
    "Split",
    "Synthetic",
]
