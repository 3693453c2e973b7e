"""What to run: functions that return experiments, by the name that ``fedskew run`` knows them by."""

from tune_configs.quickstart import cifar10, fashion_mnist, quickstart

EXPERIMENTS = {
    "quickstart": quickstart,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
}
