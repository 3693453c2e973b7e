"""A network of each kind."""

from __future__ import annotations

from engine.models import (
    CNN,
    CNN3,
    MLP,
    FedRepCifar,
    LeNet,
    Logistic,
    MobileNetV2,
    ModelSpec,
    MoonCNN,
    PflegoCifar,
    PflegoOmniglot,
    ResNet18,
    ResNet20,
)

VARIANTS: dict[str, ModelSpec] = {
    "logistic": Logistic(),
    "mlp": MLP(hidden=(20, 10)),
    "cnn": CNN(),
    "cnn batch": CNN(norm="batch"),
    "cnn group": CNN(norm="group"),
    "cnn3": CNN3(),
    "moon_cnn": MoonCNN(),
    "moon_cnn plain": MoonCNN(projection=False),
    "resnet20": ResNet20(),
    "resnet20 pad": ResNet20(shortcut="pad"),
    "resnet20 group": ResNet20(norm="group"),
    "resnet20 group pad": ResNet20(shortcut="pad", norm="group", group_size=4),
    "mlp projection": MLP(hidden=(20, 10), projection=True),
    "lenet": LeNet(),
    "pflego_cifar": PflegoCifar(),
    "pflego_omniglot": PflegoOmniglot(),
    "fedrep_cifar": FedRepCifar(),
    "resnet18": ResNet18(),
    "mobilenetv2": MobileNetV2(),
    "mobilenetv2 group": MobileNetV2(norm="group"),
}
