"""Networks, each a body and a linear head."""

from engine.models.model import Model, ModelSpec, build_model, initialise
from engine.models.narrow import narrowed
from engine.models.networks import CNN, MLP, Logistic, MoonCNN
from engine.models.resnet import ResNet20, ResNet56
from engine.registry import Registry

MODELS = Registry(
    "model",
    {
        "logistic": Logistic,
        "mlp": MLP,
        "cnn": CNN,
        "moon_cnn": MoonCNN,
        "resnet20": ResNet20,
        "resnet56": ResNet56,
    },
)

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "Logistic",
    "Model",
    "ModelSpec",
    "MoonCNN",
    "ResNet20",
    "ResNet56",
    "build_model",
    "initialise",
    "narrowed",
]
