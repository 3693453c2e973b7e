"""CBFL: class-balanced local training on generated images, by which the global model is distilled into local ones.

Class-Balanced Federated Learning by Data Generation (Chinese Journal of Computers, 2023). After a warm-up of FedAvg,
which is a stage of its own:

1. Every ``refresh`` rounds a generator is trained anew, against the global model, without data (eq. 9, generators.py).
2. In each local step a client draws ``fake_batch`` classes, those it has few rows of more often (eqs. 3 to 5,
   class_samplers.py), and generates images of them.
3. Loss = CE(own rows) + lambda (KD + beta AT), the latter on generated images alone (eqs. 10 to 13): soft labels and
   attention maps of the frozen global model. Both halves go through the network in one batch, so that BatchNorm sees
   both. Which class an image was asked for is not used.

Where the paper's text and the authors' code differ, defaults are the code's, by which the constants were tuned: KD is
T^2 KL(teacher || student), AT compares squared maps of norm 1, the gap of statistics is a mean over layers, the teacher
is the model of the last refresh. Options give the text's version; ``text_vs_code`` in tune_configs/cbfl.py compares the
two. One thing follows neither: an attention map that is almost zero keeps norm 1, see :func:`attention`.

The generator's defaults are of no one setting: gamma = 10 is the text's and the code's for CIFAR-100, 1000 steps and a
new generator every 3 rounds are the code's for CIFAR-10, whose gamma is 3. For CIFAR-100 the code has 10, 2000 and 7,
and the text has 10, 2000 and 1. The sweeps of tune_configs/cbfl.py name the fields of each data set. The laptop's
gamma = 1 and 400 steps (``SMALL_CBFL``) are ours: with gamma = 10 so few steps give images that show no class.

The first refresh is before the stage's first round, later ones in its rounds ``refresh``, 2 ``refresh``, ..., which are
the authors' R_w + k q_G. (Their first one is a round earlier, and unused in that round.)

Traffic is counted as the paper counts it, which is as for FedAvg: a client could train the generator itself from the
model it has received, with the same random numbers. This holds with ``refresh=1`` or ``teacher="current"``; else a
client that was not in the cohort of the last refresh would have to be sent that round's model too. The exception is
``generator="dcgan"``, where clients train generators on their own rows when the stage begins and share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.class_samplers import Sampler, probabilities
from algorithms.fedavg import FedAvg
from algorithms.generators import GeneratorSpec, generator_outline, images, train_against, train_on
from engine.algorithm import (
    Algorithm,
    Batch,
    Client,
    Clients,
    ClientTools,
    ClientView,
    Cohort,
    Compute,
    Context,
    Entries,
    Entry,
    Generative,
    Kind,
    Net,
    ParamLayout,
    Requires,
    Setting,
    Tensors,
    idle_when,
)
from engine.base.declared import Doc, Ge, Gt, Neutral
from engine.base.errors import ConfigError, nearest, require
from engine.models.outline import outline

SOURCES = {"cbfl": "generator", "dcgan": "lent"}  # kind of generator -> the entry in which a client finds it


@dataclass(frozen=True)
class Cbfl(Generative, FedAvg):
    lam: Annotated[float, Ge(0), Doc("lambda, weight of distillation"), Neutral(0, "is FedAvg without BatchNorm")] = 1.0
    beta: Annotated[
        float, Ge(0), Doc("weight of attention maps within the distillation"), Neutral(0, "is soft labels alone")
    ] = 400.0
    gamma: Annotated[
        float,
        Ge(0),
        Doc("weight of BatchNorm's statistics in the generator's loss"),
        Neutral(0, "is class decisions alone"),
    ] = 10.0
    refresh: Annotated[int, Ge(1), Doc("q_G, rounds between new generators; 1 is every round, as in the text")] = 3
    fake_batch: Annotated[int, Ge(1), Doc("B_f, generated rows of a step")] = 70
    sampler: Annotated[
        Sampler,
        Doc(
            "which classes generator=cbfl makes: rarer ones more often, all alike, the rarest alone, or what makes a "
            "step as balanced as can be"
        ),
    ] = "balanced"
    fewest: Annotated[int, Ge(0), Doc("how many classes sampler=fewest draws from, at most the data's")] = 0
    fake_loss: Annotated[
        Literal["distill", "ce"],
        Doc(
            "on generated rows: the global model's answers and maps; or cross entropy of the class asked for, an "
            "ablation that ignores beta, temperature, teacher and the like"
        ),
    ] = "distill"
    temperature: Annotated[float, Gt(0), Doc("T_kd, of soft labels")] = 5.0
    kd_direction: Annotated[
        Literal["teacher_student", "student_teacher"],
        Doc("of the divergence of soft labels; the paper's text has KL(student to teacher), the second"),
    ] = "teacher_student"
    teacher: Annotated[
        Literal["at_refresh", "current"],
        Doc(
            "the global model of the last refresh, or of the round as in the paper's text; with refresh=1 they are "
            "the same"
        ),
    ] = "at_refresh"
    forward: Annotated[Literal["concat", "separate"], Doc("own and generated rows in one pass, or one each")] = "concat"
    attention_layers: Annotated[
        tuple[str, ...], Doc("blocks whose maps are compared; none: all that the model names")
    ] = ()
    generator: Annotated[
        Literal["cbfl", "gaussian_noise", "dcgan"],
        Doc(
            "what makes images: the paper's, noise itself, or GANs that clients train on their rows and share; noise "
            "has no use for the fields of a generator, nor GANs for gamma"
        ),
    ] = "cbfl"
    gen_scope: Annotated[
        Literal["shared", "client"],
        Doc(
            "one generator of the server; or each client its own whenever it takes part, whatever refresh says, "
            "which needs teacher=current"
        ),
    ] = "shared"
    gen_steps: Annotated[int, Ge(1), Doc("I_G, steps of a generator's training, by Adam")] = 1000
    gen_batch: Annotated[int, Ge(2), Doc("B_G, images of each of them; one image has no moments")] = 256
    gen_lr: Annotated[float, Gt(0), Doc("learning rate of a generator")] = 0.003
    gen_width: Annotated[int, Ge(2), Doc("channels of a generator's first layers")] = 128
    gen_bn_eps: Annotated[float, Ge(0), Doc("eps of a generator's inner BatchNorm layers")] = 0.8
    bns_reduction: Annotated[Literal["mean", "sum"], Doc("over BatchNorm layers; the paper's text has the sum")] = (
        "mean"
    )
    noise: Annotated[int, Ge(1), Doc("numbers that an image is made from")] = 100

    entries: ClassVar[Entries] = {
        **Algorithm.entries,
        "generator": Entry(Kind.TENSOR, "derivable"),  # [G]
        "generators": Kind.TENSOR,  # [K, G] of all clients, with generator=dcgan
        "lent": Kind.TENSOR,  # [G] one of these
        "teacher": Entry(Kind.VECTOR, "derivable"),
        "teacher_buffers": Entry(Kind.BUFFERS, "derivable"),
        "own_counts": Kind.TENSOR,  # [C] the client's own, on the CPU, where each step draws by them
    }
    requires: ClassVar[Requires] = Requires(no_tokens="trains on generated images")
    symbols: ClassVar[Mapping[str, str]] = {
        **FedAvg.symbols,
        "lambda": "lam",
        "q_G": "refresh",
        "B_f": "fake_batch",
        "T_kd": "temperature",
        "I_G": "gen_steps",
        "B_G": "gen_batch",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen = self.sampler == "fewest"
        require(
            (self.fewest >= 1) == chosen,
            "fewest",
            self.fewest,
            "must be at least 1 with sampler=fewest, and 0 with any other",
            "for example sampler=fewest fewest=4",
        )
        if self.generator != "cbfl":  # which has no classes, and is not trained against the model
            for name in ("fake_loss", "sampler", "gen_scope"):
                value, default = getattr(self, name), getattr(type(self), name)
                require(value == default, name, value, f"is not for generator={self.generator}", f"set it to {default}")
        layers, rule = self.attention_layers, "names maps that nothing compares, with beta=0 or fake_loss=ce"
        require(not layers or self.compares_maps, "attention_layers", layers, rule, "leave it empty")
        require(
            self.gen_scope == "shared" or self.teacher == "current",
            "gen_scope",
            self.gen_scope,
            "trains against the model just received, which is then the teacher",
            "set teacher=current",
        )

    def check(self, setting: Setting) -> None:
        stage, batch_size = setting.stage, setting.local.batch_size
        rule = "leaves no round for cbfl after the warm-up"
        require(stage.rounds > 0, f"stages.{stage.name}.rounds", stage.rounds, rule, "lower R_w below R")
        rule, repair = "has no size that generated rows could be beside", "for example local.batch_size=50"
        require(batch_size != "full", "local.batch_size", batch_size, rule, repair)
        model = outline(setting.model)
        if self.gamma > 0 and self.generator == "cbfl" and not model.has_batchnorm:
            rule = f"weighs BatchNorm's statistics, and model.name={setting.model_name} has no BatchNorm"
            repair = "set algorithm.gamma=0, or for example model.name=resnet20"
            raise ConfigError("algorithm.gamma", self.gamma, rule, repair)
        if self.compares_maps and not model.tap_names:
            rule = f"weighs attention maps, and model.name={setting.model_name} has no block with one"
            repair = "set algorithm.beta=0, or for example model.name=resnet20"
            raise ConfigError("algorithm.beta", self.beta, rule, repair)
        for layer in self.attention_layers:
            if layer not in model.tap_names:
                rule = f"is no block of model.name={setting.model_name}"
                raise ConfigError("algorithm.attention_layers", layer, rule, nearest(layer, model.tap_names))

    def check_change(self, later: Algorithm) -> None:
        assert isinstance(later, Cbfl)
        for name in ("generator", "gen_scope", "gen_width", "gen_bn_eps", "noise", "teacher"):
            value, rule = getattr(later, name), "cannot change within a stage: what is in use would not fit"
            require(value == getattr(self, name), f"algorithm.{name}", value, rule, "make it a stage of its own")

    # --- on the server --------------------------------------------------------------------------------

    def prepare(self, server: Tensors, clients: Clients, context: Context) -> Tensors:
        classes, rule = context.layout.classes, "balances classes, and the data have one"
        require(classes > 1, "algorithm.name", "cbfl", rule, "train with fedavg")
        rule = f"must be at most {classes}, the data's classes"
        require(self.fewest <= classes, "algorithm.fewest", self.fewest, rule, "set algorithm.sampler=balanced")
        if self.generator != "dcgan":
            return server
        train = partial(
            own_generator, spec=self.spec(context.layout), steps=self.gen_steps, batch=self.gen_batch, lr=self.gen_lr
        )
        return {**server, **clients.map(train, {}, reduce="stack")}

    def before_round(self, server: Tensors, compute: Compute, context: Context) -> Tensors:
        if context.stage_round > 1 and context.stage_round % self.refresh:
            return server
        model = {name: server[name] for name in ("weights", "buffers")}
        if self.teacher == "at_refresh":
            server = {**server, "teacher": model["weights"], "teacher_buffers": model["buffers"]}
        if self.generator == "cbfl" and self.gen_scope == "shared":
            server = {**server, **compute(self._training(context.layout), model)}
        return server

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        sent = {"weights"} | self.with_traffic("derivable")
        return {name: tensor for name, tensor in server.items() if name in sent}

    def broadcast_to(self, server: Tensors, cohort: Cohort, context: Context) -> Tensors:
        """Return, with ``dcgan``, one client's generator for each member of the cohort, another's each round."""
        if self.generator != "dcgan":
            return {}
        everybody = server["generators"]
        return {"lent": everybody[[(client + context.round) % len(everybody) for client in cohort.ids]]}

    # --- on a client ----------------------------------------------------------------------------------

    def client_setup(self, tools: ClientTools, received: Tensors, state: Tensors, client: Client) -> Tensors:
        made: Tensors = {"own_counts": client.class_counts.cpu()}
        if self.generator != "gaussian_noise":
            generator_outline(self.spec(client.context.layout))  # draws, which must not be left to a mapped loss
        if self.teacher == "current":
            made |= {"teacher": received["weights"], "teacher_buffers": received["buffers"]}
        if self.generator == "cbfl" and self.gen_scope == "client":
            made |= self._training(client.context.layout)(tools, received)
        return made

    @idle_when(lambda self, context: idle(self, context.layout))
    def step_randomness(self, client: Client, rows: int, received: Tensors) -> dict[str, Any]:
        layout, rng = client.context.layout, client.rng("generated rows")
        if idle(self, layout):
            return {}
        if self.generator == "gaussian_noise":
            return {"images": torch.randn(self.fake_batch, *layout.image, generator=rng)}
        counts = received.get("own_counts", client.class_counts)
        chances = probabilities(self.sampler, counts, self.fewest, rows, self.fake_batch)
        return {
            "labels": torch.multinomial(chances, self.fake_batch, replacement=True, generator=rng),
            "noise": torch.randn(self.fake_batch, self.noise, generator=rng),
        }

    def step_constants(self, net: Net, drawn: Mapping[str, Any], received: Tensors, context: Context) -> Tensors:
        """Return the generated images, and what the teacher makes of them: its scores, and where it looks."""
        needed = {"teacher", "teacher_buffers"} if self.fake_loss == "distill" else set[str]()
        if self.generator in SOURCES:
            needed |= {SOURCES[self.generator]}
        if not needed <= received.keys():  # each client's own
            return {}
        made = {"fake": self._generated(drawn, received, context.layout)}
        if self.fake_loss == "ce":
            return made
        teacher, names = net.at(received["teacher"], received["teacher_buffers"]), self._compared(net)
        scores, shown = teacher.taps(made["fake"], names)
        return {**made, "scores": scores, **{f"map {name}": attention(shown[name]) for name in names}}

    @idle_when(lambda self, context: idle(self, context.layout))
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        if not batch.drawn:
            return super().loss(net, batch, received, state)
        drawn, names = batch.drawn, self._compared(net)
        if "fake" not in drawn:
            drawn = {**drawn, **self.step_constants(net, drawn, received, batch.client.context)}
        fake = drawn["fake"]
        if self.forward == "concat":
            logits, maps = net.taps(torch.cat((batch.x, fake)), names)
            own, logits = logits.tensor_split([len(batch.y)])
            maps = {name: maps[name][len(batch.y) :] for name in names}
        else:
            own = net(batch.x)
            logits, maps = net.taps(fake, names)
        supervised = F.cross_entropy(own, batch.y)
        if self.fake_loss == "ce":
            return supervised + self.lam * F.cross_entropy(logits, drawn["labels"])
        distilled = soft_labels(logits, drawn["scores"], self.temperature, self.kd_direction)
        if self.compares_maps:
            distilled = distilled + self.beta * attention_gap(maps, {name: drawn[f"map {name}"] for name in names})
        return supervised + self.lam * distilled

    def step_classes(self, counts: Tensor, rows: int) -> Tensor:
        own = super().step_classes(counts, rows)
        if self.generator != "cbfl" or self.lam == 0:  # others' images have no class; without weight none counts
            return own
        return own + self.fake_batch * probabilities(self.sampler, counts, self.fewest, rows, self.fake_batch)

    def generate(self, server: Tensors, labels: Tensor, layout: ParamLayout, rng: torch.Generator) -> Tensors:
        """Return images; with ``dcgan`` each by the generator of a client drawn at random."""
        repair = "set gen_scope=shared"
        shared = self.generator != "cbfl" or self.gen_scope == "shared"
        require(shared, "algorithm.gen_scope", self.gen_scope, "leaves no generator on the server", repair)
        like = server["weights"]
        if self.generator == "gaussian_noise":
            return {"images": torch.randn(len(labels), *layout.image, generator=rng).to(like)}
        spec, noise = self.spec(layout), torch.randn(len(labels), self.noise, generator=rng).to(like)
        if self.generator == "cbfl":
            return {"images": images(spec, server["generator"], noise, labels), "labels": labels}
        everybody = server["generators"]
        lenders = torch.randint(len(everybody), (len(labels),), generator=rng)
        made = like.new_empty(len(labels), *layout.image)
        for lender in lenders.unique().tolist():
            of = lenders == lender
            made[of] = images(spec, everybody[lender], noise[of], labels[of])
        return {"images": made}

    def judge(self, server: Tensors) -> Tensors:
        """Return eq. 7's teacher, against which the generator was trained, if the server keeps it: at_refresh."""
        if "teacher" not in server:
            return super().judge(server)
        return {"weights": server["teacher"], "buffers": server["teacher_buffers"]}

    # --- pieces -----------------------------------------------------------------------------------------

    @property
    def compares_maps(self) -> bool:
        """True if attention maps are part of the loss."""
        return self.beta > 0 and self.fake_loss == "distill"

    def spec(self, layout: ParamLayout) -> GeneratorSpec:
        """Return the recipe for the generators that this algorithm trains."""
        classes = layout.classes if self.generator == "cbfl" else 0
        return GeneratorSpec(layout.image, classes, self.noise, self.gen_width, self.gen_bn_eps)

    def _training(self, layout: ParamLayout) -> partial[Tensors]:
        """Return the training of a generator, to be given tools that hold the model."""
        return partial(
            train_against,
            spec=self.spec(layout),
            steps=self.gen_steps,
            batch=self.gen_batch,
            lr=self.gen_lr,
            gamma=self.gamma,
            mean=self.bns_reduction == "mean",
        )

    def _compared(self, net: Net) -> tuple[str, ...]:
        """Return the layers whose attention maps are compared."""
        return (self.attention_layers or net.tap_names) if self.compares_maps else ()

    def _generated(self, drawn: Mapping[str, Any], received: Tensors, layout: ParamLayout) -> Tensor:
        like = received["weights"]
        if self.generator == "gaussian_noise":
            return drawn["images"].to(like)
        return images(self.spec(layout), received[SOURCES[self.generator]], drawn["noise"].to(like), drawn["labels"])


def idle(algorithm: Cbfl, layout: ParamLayout) -> bool:
    """Return whether generated rows would change nothing: no weight on their loss, no statistics of batches."""
    return algorithm.lam == 0 and not layout.has_batchnorm


def own_generator(view: ClientView, shared: Tensors, spec: GeneratorSpec, steps: int, batch: int, lr: float) -> Tensors:
    """Train a DCGAN on a client's rows, which it shares: {"generators": [1, G]}."""
    return {"generators": train_on(view.rows, view.client.rng("dcgan"), spec, steps, batch, lr)[None]}


def soft_labels(student: Tensor, teacher: Tensor, temperature: float, direction: str = "teacher_student") -> Tensor:
    """Return [] T^2 KL of logits [B, C] over T, mean over rows; T^2 keeps the gradient's size (Hinton et al. 2015)."""
    s, t = (F.log_softmax(logits / temperature, dim=1) for logits in (student, teacher))
    if direction == "student_teacher":
        s, t = t, s
    return temperature**2 * F.kl_div(s, t, reduction="batchmean", log_target=True)


def attention_gap(student: Tensors, teacher: Tensors) -> Tensor:
    """Return [] the sum over layers of the mean squared gap of attention maps (Zagoruyko and Komodakis 2017).

    student: a layer's output by its name. teacher: what :func:`attention` makes of the teacher's.
    """
    gaps = [F.mse_loss(attention(maps), teacher[name]) for name, maps in student.items()]
    return torch.stack(gaps).sum()


def attention(maps: Tensor) -> Tensor:
    """Sum squares over channels, to norm 1 per row: [B, c, h, w] -> [B, h w]; of a hidden layer [B, D] -> [B, D].

    Divided by max(norm, 1e-6); the authors' code divides by norm + 1e-6, so that its maps are a little shorter than 1
    where a layer is all but silent (by 7e-3 of the loss for outputs of about 0.001; not seen in a trained network).
    """
    squares = maps.square()
    if maps.dim() > 2:
        squares = squares.flatten(2).sum(1)
    return F.normalize(squares, dim=1, eps=1e-6)
