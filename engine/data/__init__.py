"""Data sets (``data.name``) and their division among clients (``partition.name``).

The room offers the registries ``SOURCES`` and ``PARTITIONS``, :class:`Dataset`, :class:`Assignment` (who has which
samples) and batches of a client's rows on a device (``samples/batches.py``). Read ``samples/dataset.py`` first, then
``sources/`` and ``partitions/``.
"""

from engine.base.registry import Registry
from engine.data.availability import Availability, read_availability
from engine.data.partitions.cbfl_code import CbflCode
from engine.data.partitions.class_matrix import ClassMatrix
from engine.data.partitions.class_sets import ClassSets
from engine.data.partitions.dirichlet import Dirichlet, DirichletCapped, DirichletClient
from engine.data.partitions.few_classes import ClassesPerClient, Personalised, Shards
from engine.data.partitions.natural import Natural, OwnerGroups
from engine.data.partitions.partition import Partition
from engine.data.partitions.replacement import Replacement
from engine.data.partitions.sizes import GivenSizes, Iid, Quantity
from engine.data.partitions.table import ClientTable
from engine.data.samples.assignment import Assignment
from engine.data.samples.dataset import Dataset, Source, Split
from engine.data.sources.cifar import Cifar10, Cifar100
from engine.data.sources.image_folders import Cinic10, ImageNet200, Omniglot, TinyImageNet
from engine.data.sources.inaturalist import INaturalist2019, INaturalistUser120k
from engine.data.sources.mnist import Emnist, FashionMnist, FashionMnistSample, Mnist
from engine.data.sources.synthetic import Synthetic
from engine.data.sources.user_data import ImageFolder, Parquet

SOURCES = Registry(
    "data",
    Source,
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
    Partition,
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
        "sizes": GivenSizes,
        "class_matrix": ClassMatrix,
        "owner_groups": OwnerGroups,
        "table": ClientTable,
    },
)

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Assignment",
    "Availability",
    "CbflCode",
    "Cifar10",
    "Cifar100",
    "Cinic10",
    "ClassMatrix",
    "ClassSets",
    "ClassesPerClient",
    "ClientTable",
    "Dataset",
    "Dirichlet",
    "DirichletCapped",
    "DirichletClient",
    "Emnist",
    "FashionMnist",
    "FashionMnistSample",
    "GivenSizes",
    "INaturalist2019",
    "INaturalistUser120k",
    "Iid",
    "ImageFolder",
    "ImageNet200",
    "Mnist",
    "Natural",
    "Omniglot",
    "OwnerGroups",
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
    "read_availability",
]
