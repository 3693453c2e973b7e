"""Networks that make images, and how they are trained: CBFL's conditional generator, and the DCGAN it is compared with.

CBFL's generator sees no data: it is trained against a frozen model (CBFL 2023, eq. 9) so that the model takes what it
makes for the classes asked for, and so that the inputs of the model's BatchNorm layers have the moments that these
layers remember (eqs. 6 to 8). The paper says "AC-GAN based" and no more: layers and constants are of the authors' code.

A trained network travels as one vector: its parameters, then its floating buffers.

Shapes: B images [B, channels, height, width], normalised; z [B, noise]; labels [B].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from threading import get_ident

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from engine.algorithm import Batch, Tensors, TrainingTools
from engine.models.model import fresh

ADAM_BETAS = (0.5, 0.999)
LEAST_VARIANCE = 1e-8  # of a channel, where two are compared


@dataclass(frozen=True)
class GeneratorSpec:
    """The recipe for a generator."""

    image: tuple[int, int, int]  # (channels, height, width)
    classes: int  # 0: labels are not read, as in a DCGAN
    noise: int = 100
    width: int = 128  # channels of the first two layers, twice those of the third
    eps: float = 0.8  # of the two inner BatchNorm layers: in the authors' code, meant as momentum by the look of it

    def build(self) -> Generator:
        return Generator(self)


class Generator(nn.Module):
    """A network from z and labels to images, through a quarter and a half of the resolution."""

    def __init__(self, spec: GeneratorSpec) -> None:
        super().__init__()
        channels, self.height, self.width = spec.image
        self.start = spec.width, -(-self.height // 4), -(-self.width // 4)
        self.embedding = nn.Embedding(spec.classes, spec.noise) if spec.classes else None
        self.linear = nn.Linear(spec.noise, self.start[0] * self.start[1] * self.start[2])
        self.norm0 = nn.BatchNorm2d(spec.width)
        self.conv1 = nn.Conv2d(spec.width, spec.width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(spec.width, spec.eps)
        self.conv2 = nn.Conv2d(spec.width, spec.width // 2, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(spec.width // 2, spec.eps)
        self.conv3 = nn.Conv2d(spec.width // 2, channels, 3, padding=1)
        self.norm3 = nn.BatchNorm2d(channels, affine=False)  # about the moments of normalised images

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        if self.embedding is not None:
            z = z * self.embedding(labels)
        x = self.norm0(self.linear(z).view(-1, *self.start))
        x = F.leaky_relu(self.norm1(self.conv1(_doubled(x))), 0.2)
        x = F.leaky_relu(self.norm2(self.conv2(_doubled(x))), 0.2)
        x = self.norm3(torch.tanh(self.conv3(x)))
        return x[..., : self.height, : self.width]  # of sides that 4 does not divide


class Discriminator(nn.Module):
    """A network from images to one score each: three halvings; without norms, which tell a batch and not an image."""

    def __init__(self, spec: GeneratorSpec) -> None:
        super().__init__()
        channels, layers = spec.image[0], list[nn.Module]()
        for out in (spec.width // 2, spec.width, spec.width):
            layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.LeakyReLU(0.2)]
            channels = out
        height, width = (-(-side // 8) for side in spec.image[1:])
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(1)


def _doubled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="nearest")


# --- as a vector ------------------------------------------------------------------------------------------


def packed(module: nn.Module) -> Tensor:
    """Return [G] the module's parameters and floating buffers, in the order of its state."""
    return torch.cat([tensor.detach().reshape(-1) for _, tensor in _floating(module)])


def images(spec: GeneratorSpec, weights: Tensor, noise: Tensor, labels: Tensor) -> Tensor:
    """Return the images that the generator ``weights`` [G] makes, in eval mode and without a graph."""
    module = generator_outline(spec)
    sizes = [tensor.numel() for _, tensor in _floating(module)]
    tensors = {
        name: piece.view(tensor.shape)
        for (name, tensor), piece in zip(_floating(module), weights.split(sizes), strict=True)
    }
    with torch.no_grad():
        return functional_call(module, tensors, (noise, labels))


def _floating(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, tensor) for name, tensor in module.state_dict(keep_vars=True).items() if tensor.is_floating_point()]


def generator_outline(spec: GeneratorSpec) -> Generator:
    """Return a generator without weights, to be called with some, by this thread alone: a call puts them into the
    module. Built once for a recipe, with draws that nobody sees."""
    return _outline_of_thread(spec, get_ident())


@lru_cache(maxsize=32)
def _outline_of_thread(spec: GeneratorSpec, thread: int) -> Generator:
    with torch.device("meta"):
        return spec.build().eval()


# --- training against a frozen model --------------------------------------------------------------------------


def train_against(
    tools: TrainingTools,
    shared: Tensors,
    spec: GeneratorSpec,
    steps: int,
    batch: int,
    lr: float,
    gamma: float,
    mean: bool,
) -> Tensors:
    """Train a new generator for the model in ``tools``, whose buffers are ``shared["buffers"]``: {"generator": [G]}.

    Eq. 9: cross entropy of the model's answers to the labels asked for, plus ``gamma`` times :func:`statistics_gap`.
    """
    rng, like = tools.rng("generator"), shared["weights"]
    module = fresh(spec.build, rng).to(like)

    def drawn() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(steps):
            labels = torch.randint(spec.classes, (batch,), generator=rng)
            yield labels, torch.randn(batch, spec.noise, generator=rng).to(like.dtype)

    def loss(labels: Tensor, noise: Tensor) -> Tensor:
        fake = module(noise, labels)
        if not gamma:
            return F.cross_entropy(tools.net(fake), labels)
        logits, inputs = tools.net.taps(fake, tools.net.norm_names, inputs=True)
        gap = statistics_gap([inputs[name] for name in tools.net.norm_names], shared["buffers"], mean)
        return F.cross_entropy(logits, labels) + gamma * gap

    tools.minimise(loss, list(module.parameters()), drawn(), lr, ADAM_BETAS)
    return {"generator": packed(module)}


def statistics_gap(inputs: list[Tensor], buffers: Tensor, mean: bool = True) -> Tensor:
    """Return [] how far the inputs [B, c, h, w] of BatchNorm layers are from what the layers remember (eqs. 6 to 8).

    buffers: [Q], of each layer the running mean [c], then the variance [c]. Per channel the Kullback-Leibler divergence
    of normal distributions, generated from stored: ln(s / s') + (s'^2 + (m' - m)^2) / (2 s^2) - 1/2 with the batch's
    own (biased) moments m', s'^2. Summed over channels; over layers their mean, or the sum, as printed. 1e-6 is added
    to 2 s^2 as in the authors' code. Both variances are at least 1e-8: that of a dead channel is 0, or near it, and the
    logarithm of 0 would make every weight of the generator NaN.
    """
    sizes = [x.shape[1] for x in inputs]
    layers = (own.view(2, -1) for own in buffers[: 2 * sum(sizes)].split([2 * size for size in sizes]))
    stored, variance = (torch.cat(own) for own in zip(*layers, strict=True))  # of all layers' channels
    in_one_pass = buffers.device.type != "cpu"  # where bits would move
    moments = [moments_of(x, in_one_pass) for x in inputs]
    got_mean, got = (torch.cat(own) for own in zip(*moments, strict=True))
    got, variance = got.clamp_min(LEAST_VARIANCE), variance.clamp_min(LEAST_VARIANCE)
    distance = (got + (got_mean - stored) ** 2) / (2 * variance + 1e-6)
    gaps = [own.sum() for own in ((variance / got).log() / 2 + distance - 0.5).split(sizes)]
    total = torch.stack(gaps).sum()
    return total / len(gaps) if mean else total


def moments_of(x: Tensor, in_one_pass: bool) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance [c] of each channel of x [B, c, h, w]; in one pass no copy of x is made."""
    if in_one_pass:
        variance, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
        return mean, variance
    x = x.transpose(0, 1).flatten(1)  # [c, B h w]
    return x.mean(1), x.var(1, unbiased=False)


# --- training on a client's images ------------------------------------------------------------------------------


def train_on(
    batches: Callable[[], Iterator[Batch]], rng: torch.Generator, spec: GeneratorSpec, steps: int, batch: int, lr: float
) -> Tensor:
    """Train a DCGAN (Radford, Metz and Chintala 2016) on a client's rows; return it as one vector [G]."""
    real = torch.cat([part.x for part in batches()])
    generator, judge = (fresh(build, rng).to(real) for build in (spec.build, lambda: Discriminator(spec)))
    makers, judges = (torch.optim.Adam(m.parameters(), lr=lr, betas=ADAM_BETAS) for m in (generator, judge))
    nobody = torch.zeros(batch, dtype=torch.int64, device=real.device)
    for _ in range(steps):
        rows = torch.randint(len(real), (batch,), generator=rng).to(real.device)
        fake = generator(torch.randn(batch, spec.noise, generator=rng).to(real), nobody)
        _step(judges, F.softplus(-judge(real[rows])).mean() + F.softplus(judge(fake.detach())).mean())
        _step(makers, F.softplus(-judge(fake)).mean())
    return packed(generator)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = grad  # of these alone: the model that is trained against gets none
    optimizer.step()
