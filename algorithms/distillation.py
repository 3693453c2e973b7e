"""The base of response-based methods: a student learns from labels and teachers' answers.

M teachers answer N public samples, each with logits over its own classes L_i alone. The server trains one student over
all C classes. Its loss of a sample is

    omega_l [ (1 - alpha) CE(label l, z + log c_l) + alpha t KD(answers, z, log c_l) ]

with the student's logits z, t = 1 or tau^2, and with omega and c only in methods that weigh classes (class_costs.py).
The methods differ in KD, a soft cross entropy at temperature tau:

    restricted  sum over teachers, the student's softmax over L_i      uhc, cbhma
    padded      sum over teachers, over all classes, 0 outside L_i     skd1
    merged      one target over all classes, of averaged logits        skd2, cbhma_e, cfl_amalgam

A softmax over L_i is a log-softmax with the other classes at -inf, never a ratio of probabilities, so neither very
large logits nor a teacher with a single class lead to NaN or infinity.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.answers import Answers
from engine.algorithm import (
    Algorithm,
    Clients,
    Compute,
    Context,
    Entries,
    Kind,
    Net,
    PostTraining,
    Setting,
    Tensors,
    TrainingTools,
)
from engine.base.declared import Doc, Ge, Gt, Le, Lt, Neutral
from engine.base.errors import ConfigError, RunError

log = logging.getLogger("fedskew")

# --- losses of single samples ---------------------------------------------------------------------------------


def soft_cross_entropy(target: Tensor, logits: Tensor, within: Tensor | None = None) -> Tensor:
    """Return [...] -sum_j target_j log q_j, q being the softmax of ``logits`` over all classes or those ``within``.

    target: [..., C] probabilities, 0 outside; logits: [..., C]; within: bool [..., C].
    """
    if within is None:
        return -(target * logits.log_softmax(-1)).sum(-1)
    log_q = torch.where(within, logits, -torch.inf).log_softmax(-1)
    return -(target * log_q.masked_fill(~within, 0.0)).sum(-1)  # 0 times -inf is no number


def class_probabilities(answers: Tensor, known: Tensor, temperature: float) -> Tensor:
    """Return p_i [M, B, C]: softmax of ``answers`` over the classes ``known`` bool [M, C], exactly 0 elsewhere."""
    return torch.where(known[:, None], answers / temperature, -torch.inf).softmax(-1)


def tilted(logits: Tensor, log_cost: Tensor | None) -> Tensor:
    """Return the student's logits as a loss with costs sees them: c e^z = e^(z + log c)."""
    return logits if log_cost is None else logits + log_cost


def restricted_loss(
    logits: Tensor, answers: Tensor, known: Tensor, temperature: float, log_cost: Tensor | None = None
) -> Tensor:
    """Return [M, B] the cross entropy of each teacher's p_i and the student's softmax over that teacher's classes.

    logits: [B, C] of the student; log_cost: [B, C], the row of each sample's label. A teacher of one class has nothing
    to say: its loss and its gradient are 0.
    """
    student = tilted(logits / temperature, log_cost)
    return soft_cross_entropy(class_probabilities(answers, known, temperature), student, known[:, None])


def padded_loss(logits: Tensor, answers: Tensor, known: Tensor, temperature: float) -> Tensor:
    """Return [M, B] the same with the student's softmax over all classes; a teacher gives 0 to those it lacks."""
    return soft_cross_entropy(class_probabilities(answers, known, temperature), logits / temperature)


def merged_logits(answers: Tensor, known: Tensor, centre: bool) -> Tensor:
    """Return [B, C] the mean over the teachers that know a class; -inf where none does.

    ``centre``: of each teacher's logits less their mean over its classes, since their offsets are arbitrary.
    """
    inside = known[:, None]
    answers = torch.where(inside, answers, 0.0)
    if centre:
        answers = answers - answers.sum(-1, keepdim=True) / inside.sum(-1, keepdim=True)
    mean = torch.where(inside, answers, 0.0).sum(0) / inside.sum(0).clamp(min=1)
    return mean.masked_fill(~known.any(0), -torch.inf)


def merged_loss(
    logits: Tensor, answers: Tensor, known: Tensor, temperature: float, centre: bool, log_cost: Tensor | None = None
) -> Tensor:
    """Return [B] the cross entropy of the softmax of the merged logits and the student's, both over all classes."""
    target = (merged_logits(answers, known, centre) / temperature).softmax(-1)
    return soft_cross_entropy(target, tilted(logits / temperature, log_cost))


# --- the student's training -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lesson:
    """The student's targets on B public samples."""

    labels: Tensor  # [B] int64
    answers: Tensor  # [M, B, C]; 0 where the teacher does not know the class
    known: Tensor  # bool [M, C]
    log_cost: Tensor | None = None  # [B, C], the row of the sample's label
    weight: Tensor | None = None  # [B] omega, of the sample's class

    def of(self, rows: Tensor) -> Lesson:
        """Return the targets on these samples alone."""
        return replace(
            self,
            labels=self.labels[rows],
            answers=self.answers[:, rows],
            log_cost=None if self.log_cost is None else self.log_cost[rows],
            weight=None if self.weight is None else self.weight[rows],
        )


@dataclass(frozen=True)
class Distillation(PostTraining):
    """A student's training on the public set, after a stage ``answers``."""

    alpha: Annotated[
        float, Ge(0), Le(1), Doc("weight of the answers against the labels"), Neutral(0, "is labels alone")
    ] = 0.5
    temperature: Annotated[float, Gt(0), Doc("tau, of teachers and student")] = 3.0
    tau_squared: Annotated[
        bool, Doc("multiply the answers' part by tau^2, as some code does"), Neutral(False, "leaves it")
    ] = False
    epochs: Annotated[
        int, Ge(0), Doc("passes of the student over the public images"), Neutral(0, "leaves the student as it is")
    ] = 20
    batch_size: Annotated[int, Ge(1), Doc("public images of a step")] = 64
    lr: Annotated[float, Gt(0), Doc("of the student's training")] = 0.05
    momentum: Annotated[float, Ge(0), Lt(1), Doc("of the student's SGD"), Neutral(0, "is none")] = 0.9
    weight_decay: Annotated[float, Ge(0), Doc("of the student's training"), Neutral(0, "is none")] = 5e-4
    optimizer: Annotated[Literal["sgd", "adam"], Doc("of the student")] = "sgd"
    schedule: Annotated[
        Literal["constant", "cosine"], Doc("of the student's learning rate, by epoch"), Neutral("constant", "keeps it")
    ] = "cosine"

    entries: ClassVar[Entries] = {
        **Algorithm.entries,
        "answers": Kind.LOGITS,  # [M, N, C]
        "known": Kind.TENSOR,  # bool [M, C]
    }
    symbols: ClassVar[Mapping[str, str]] = {"tau": "temperature"}
    mixed_models: ClassVar[bool] = True

    @property
    def keeps_head(self) -> bool:
        return False

    def check(self, setting: Setting) -> None:
        for before in setting.before:
            if isinstance(before.algorithm, Answers):
                continue
            rule = "is not answers, and a student learns from what that stage asks of clients"
            repair = "write three stages: one of algorithm local, one of answers, and this one"
            field = f"stages.{before.name}.algorithm.name"
            raise ConfigError(field, before.algorithm_name, rule, repair)

    # --- of a method ------------------------------------------------------------------------------------

    @abstractmethod
    def answers_loss(self, logits: Tensor, lesson: Lesson) -> Tensor:
        """Return [B] KD, the distance of the student's ``logits`` [B, C] from the teachers' answers."""

    def class_costs(self, answers: Tensor, known: Tensor, labels: Tensor) -> Tensors:
        """Return what the method makes of all answers [M, N, C] before it trains: nothing, or "cost" [C, C],
        "row_weight" [C] and what else the server is to keep beside the student."""
        return {}

    # --- the loop ---------------------------------------------------------------------------------------

    def losses(self, logits: Tensor, lesson: Lesson) -> Tensor:
        """Return the loss [B] of the module's docstring."""
        loss = F.cross_entropy(tilted(logits, lesson.log_cost), lesson.labels, reduction="none")
        if self.alpha > 0:
            scale = self.alpha * (self.temperature**2 if self.tau_squared else 1.0)
            loss = (1 - self.alpha) * loss + scale * self.answers_loss(logits, lesson)
        return loss if lesson.weight is None else lesson.weight * loss

    def lesson(self, answers: Tensor, known: Tensor, labels: Tensor) -> tuple[Lesson, Tensors]:
        """Return the targets on all public samples, and what was made of the answers for it."""
        lesson, made = Lesson(labels, answers, known), self.class_costs(answers, known, labels)
        if made:
            of_class = {"log_cost": made["cost"].log(), "weight": made["row_weight"]}
            lesson = replace(lesson, **{name: values.to(answers.dtype)[labels] for name, values in of_class.items()})
        return lesson, made

    def fit(
        self, tools: TrainingTools, loss: Callable[[Net, Tensor], Tensor], num_rows: int, beside: Sequence[Tensor] = ()
    ) -> Tensors:
        """Call ``tools.fit`` as the fields say; return "weights" and "buffers" of the student."""
        return tools.fit(
            loss,
            num_rows,
            self.epochs,
            self.batch_size,
            self.lr,
            self.momentum,
            self.weight_decay,
            optimizer=self.optimizer,
            schedule=self.schedule,
            beside=beside,
        )

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        return {name: parent[name] for name in ("weights", "answers", "known")}

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        """Return the student, and what :meth:`class_costs` made; the answers stay with their stage."""
        return self.trained(train_student, server, compute)

    def trained(self, job: Callable[..., Tensors], shared: Tensors, compute: Compute) -> Tensors:
        """Run ``job``, such as :func:`train_student`; raise RunError if its weights are not finite."""
        student = compute(partial(job, method=self), shared)
        if not torch.isfinite(student["weights"]).all():
            raise RunError(f"the student diverged with lr={self.lr:g}: lower the stage's algorithm.lr")
        return student


def samples_per_class(answers: Tensor) -> int:
    """Return the number of public samples of each class that ``answers`` [M, N, C] are about."""
    return answers.shape[1] // answers.shape[2]


def public_lesson(tools: TrainingTools, shared: Tensors, method: Distillation) -> tuple[Tensor, Lesson, Tensors]:
    """Return the public images [N, ...] and what ``method`` is to learn of them, see :meth:`Distillation.lesson`."""
    x, labels = tools.public(samples_per_class(shared["answers"]))
    return x, *method.lesson(shared["answers"], shared["known"], labels)


def train_student(tools: TrainingTools, shared: Tensors, method: Distillation) -> Tensors:
    """Train the tools' net by ``method`` on the public set, with "answers" [M, N, C] and "known" bool [M, C]."""
    x, lesson, made = public_lesson(tools, shared, method)

    def loss(net: Net, rows: Tensor) -> Tensor:
        return method.losses(net(x[rows]), lesson.of(rows)).mean()

    return {**method.fit(tools, loss, len(x)), **made}


@dataclass(frozen=True)
class ByTeacher(Distillation):
    """A method whose KD has a term for each teacher."""

    kd_reduce: Annotated[
        Literal["sum", "mean"], Doc("over teachers; with sum alpha weighs more the more teachers there are")
    ] = "sum"
    only_relevant: Annotated[
        bool, Doc("of an image's teachers only those that know its class"), Neutral(False, "is all of them")
    ] = False

    @abstractmethod
    def teacher_losses(self, logits: Tensor, lesson: Lesson) -> Tensor:
        """Return [M, B] the loss to each teacher."""

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        teachers = len(server["known"])
        if self.tau_squared and self.kd_reduce == "sum" and teachers > 1:
            scale = self.temperature**2 * teachers
            log.warning("tau_squared with kd_reduce=sum multiplies the answers' part by %g: the student may diverge "
                        "with lr=%g; kd_reduce=mean takes the mean over teachers", scale, self.lr)  # fmt: skip
        return super().finish(server, clients, compute, context)

    def answers_loss(self, logits: Tensor, lesson: Lesson) -> Tensor:
        losses = self.teacher_losses(logits, lesson)
        counted = lesson.known[:, lesson.labels] if self.only_relevant else torch.ones_like(losses, dtype=torch.bool)
        total = (counted * losses).sum(0)
        return total if self.kd_reduce == "sum" else total / counted.sum(0)
