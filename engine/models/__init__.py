"""Networks (``model.name``), each a body and a linear or normalised head.

The room offers the registry ``MODELS``, :class:`Model` and :class:`ModelSpec`, weights drawn from a generator,
sub-networks (``narrow.py``), and what a network is like and costs before it is trained (``outline.py``, ``cost.py``).
Read ``model.py`` first, then ``networks.py``.
"""

from engine.base.registry import Registry
from engine.models.mobilenet import MobileNetV2
from engine.models.model import Model, ModelSpec, build_model, check_inputs, check_size, initialise
from engine.models.narrow import narrowed
from engine.models.networks import CNN, CNN3, MLP, LeNet, Logistic, MoonCNN
from engine.models.personalised import FedRepCifar, PflegoCifar, PflegoMLP, PflegoOmniglot
from engine.models.resnet import ResNet8, ResNet20, ResNet32, ResNet56
from engine.models.resnet_imagenet import ResNet18, ResNet50
from engine.models.text import DAN

MODELS = Registry(
    "model",
    ModelSpec,
    {
        "logistic": Logistic,
        "mlp": MLP,
        "cnn": CNN,
        "cnn3": CNN3,
        "moon_cnn": MoonCNN,
        "lenet": LeNet,
        "resnet8": ResNet8,
        "resnet20": ResNet20,
        "resnet32": ResNet32,
        "resnet56": ResNet56,
        "resnet18": ResNet18,
        "resnet50": ResNet50,
        "mobilenetv2": MobileNetV2,
        "pflego_mlp": PflegoMLP,
        "pflego_cifar": PflegoCifar,
        "pflego_omniglot": PflegoOmniglot,
        "fedrep_cifar": FedRepCifar,
        "dan": DAN,
    },
)

__all__ = [
    "CNN",
    "CNN3",
    "DAN",
    "MLP",
    "MODELS",
    "FedRepCifar",
    "LeNet",
    "Logistic",
    "MobileNetV2",
    "Model",
    "ModelSpec",
    "MoonCNN",
    "PflegoCifar",
    "PflegoMLP",
    "PflegoOmniglot",
    "ResNet8",
    "ResNet18",
    "ResNet20",
    "ResNet32",
    "ResNet50",
    "ResNet56",
    "build_model",
    "check_inputs",
    "check_size",
    "initialise",
    "narrowed",
]
