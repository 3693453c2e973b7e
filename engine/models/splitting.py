"""A body and a head of any network whose last layer is linear."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from engine.base.errors import ConfigError, require
from engine.models.model import Model, other_names

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
    seen, cut, in_memory = list[Tensor](), list[Tensor](), ""
    handles = [model.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))]
    cuts = [module for module in model.body.modules() if isinstance(module, Cut)]

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        cut.append(output)

    handles += [module.register_forward_hook(keep) for module in cuts]
    kind, asked = type(model.body).__name__, f"[B, {', '.join(map(str, shape))}]"
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    try:
        with torch.no_grad():
            model(images)  # lazy layers have shapes now
            if any(isinstance(module, nn.Conv2d) for module in model.body.modules()):  # as training lays them out
                in_memory = "write flatten(1) in the place of view, since channels come last in memory"
                model(images.clone(memory_format=torch.channels_last))
                in_memory = ""
        seen.clear()
        cut.clear()
        # As a pass over several clients has them: whoever still has a gradient was reached by another way.
        given = {name: parameter.detach() for name, parameter in model.named_parameters()}
        given |= {other: given[name] for other, name in other_names(model).items()}
        logits = functional_call(model, given, (images,), tie_weights=False)
    except Exception as error:  # what torch says of sizes that do not fit, and a user's own code
        said, repair = " ".join(str(error).split()), in_memory or "let it follow the shape that it is given, in float32"
        told = f"takes no images {asked} ({said})"
        if seen and not isinstance(seen[0], Tensor):
            told = f"gives a {type(seen[0]).__name__} in the place of a tensor of scores"
            repair = "return the scores, and nothing beside them"
        elif seen and cuts and not cut:
            told, repair = f"{RULE}: its last linear layer is not used", "leave it out, or return a Model"
        elif any(
            parameter.is_meta != images.is_meta for parameter in model.parameters()
        ):  # where it was asked for its shapes
            told, repair = "gives modules that it has given before", "build them anew, or give copy.deepcopy of them"
        raise ConfigError("model", kind, told, repair) from None
    finally:
        for handle in handles:
            handle.remove()
        model.train(was_training)
    told = f"{RULE}: something comes after its last linear layer, or it is used more than once"
    is_last = not cuts or (len(cut) == 1 and cut[0] is seen[0])
    with torch.no_grad():
        is_last = is_last and (logits.is_meta or torch.equal(model.head(seen[0]), logits))
    require(is_last, "model", kind, told, "end the network with that layer, or return a Model")
    told = f"must give scores [B, {num_classes}] for images {asked}, and gives {list(logits.shape)}"
    require(logits.shape == (2, num_classes), "model", kind, told, "end the network with nn.Linear(..., num_classes)")
    moved = [name for name, parameter in model.named_parameters() if parameter.requires_grad != trained[name]]
    told = f"changes requires_grad of {', '.join(moved)} in its forward pass"
    require(not moved, "model", kind, told, "set it where the network is built")
    told = "computes with parameters that its modules do not have by their names, as those in a Python list"
    require(not logits.requires_grad, "model", kind, told, "keep them in an nn.ModuleList or nn.ParameterList alone")
