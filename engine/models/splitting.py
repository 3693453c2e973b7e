"""A body and a head of any network whose last layer is linear."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine.base.errors import ConfigError
from engine.models.model import Model

RULE = "cannot be divided into a body and a head"


class Cut(nn.Identity):
    """What stands in a body where its network had the head: it gives the features on."""


def split_model(network: nn.Module, taps: tuple[str, ...] = ()) -> Model:
    """Return ``network`` as a :class:`Model`: its last linear layer is the head, all before it the body.

    taps: names of submodules of ``network``, see :class:`Model`. Raises :class:`ConfigError` where the network
    does not end with a linear layer: something comes after it, or its bias is added elsewhere.
    """
    if isinstance(network, Model):
        return network
    found = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not found or not found[-1][0]:
        repair = "end the network with nn.Linear, or return fedskew.contract.Model(body, head)"
        raise ConfigError("model", type(network).__name__, f"{RULE}: it has no linear layer within", repair)
    name, head = found[-1]
    parent = network.get_submodule(name.rpartition(".")[0])
    setattr(parent, name.rpartition(".")[2], Cut())
    return Model(network, head, tuple(f"body.{tap}" for tap in taps))


def check_split(model: Model, shape: tuple[int, int, int], num_classes: int) -> None:
    """Refuse a model whose head is not the last thing that is done, or does not give a score for each class.

    Two images of ``shape`` (C, H, W) are passed.
    """
    device = model.head.weight.device
    images = torch.linspace(0, 1, 2 * shape[0] * shape[1] * shape[2], device=device).reshape(2, *shape)
    was_training = model.training
    model.eval()
    seen, cut = list[Tensor](), list[Tensor]()
    handles = [model.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))]
    cuts = [module for module in model.body.modules() if isinstance(module, Cut)]

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        cut.append(output)

    handles += [module.register_forward_hook(keep) for module in cuts]
    try:
        with torch.no_grad():
            logits = model(images)
    except (RuntimeError, ValueError) as error:  # what torch says of sizes that do not fit
        told = f"takes no images [B, {', '.join(map(str, shape))}] ({' '.join(str(error).split())})"
        raise ConfigError(
            "model", type(model.body).__name__, told, "let it follow the shape that it is given"
        ) from None
    finally:
        for handle in handles:
            handle.remove()
        model.train(was_training)
    if cuts and (len(cut) != 1 or cut[0] is not seen[0]):
        told = f"{RULE}: something comes after its last linear layer, or it is used more than once"
        raise ConfigError(
            "model", type(model.body).__name__, told, "end the network with that layer, or return a Model"
        )
    asked = f"must give scores [B, {num_classes}] for images [B, {', '.join(map(str, shape))}]"
    if logits.shape != (2, num_classes):
        told = f"{asked}, and gives {list(logits.shape)}"
        raise ConfigError("model", type(model.body).__name__, told, "end the network with nn.Linear(..., num_classes)")
