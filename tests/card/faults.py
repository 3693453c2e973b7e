"""Wrong code that a real card would refuse, or be slow or wrong with, and that the pretended one must notice.

A fault is what the sources have, what stands there instead, a run in which it shows itself, and what is noticed: words
of an error, or "other numbers", or "more" of something that is counted. A fault whose code is gone makes
``test_planted_faults.py`` fail until it is written anew, or dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIXED = "at least two devices"
CPU_DRAW = "found 'cpu'"
IN_CAPTURE = "when stream is capturing"

ADAM = {"local": {"optimizer": "adam", "lr": 0.01}}
CROP_FLIP = {"local": {"augment": "crop_flip"}}
DECAY = {"local": {"lr_decay": 0.5}}


@dataclass(frozen=True)
class Fault:
    """``right`` becomes ``wrong``, in a run of ``method`` by ``executor``."""

    name: str
    right: str
    wrong: str
    noticed: str
    method: str = "fedavg"
    executor: str = "loop"
    changes: dict[str, Any] = field(default_factory=dict)  # of the run


FAULTS = (
    # --- tensors of the CPU ---
    Fault(
        "a client's rows that stay on the CPU",
        "torch.tensor(assignment.clients[number], device=self.device)",
        "torch.tensor(assignment.clients[number])",
        MIXED,
    ),
    Fault(
        "a pass's positions that stay on the CPU",
        "packed(away).pin_memory().to(device, non_blocking=True)",
        "packed(away)",
        MIXED,
    ),
    Fault(
        "a pass's draws that are not sent",
        "moved = iter(in_one_copy(tensors, device))",
        "moved = iter(tensors)",
        MIXED,
        "cbfl",
        "block",
    ),
    Fault(
        "rows of an evaluation that are made on the CPU",
        "torch.arange(start, stop, device=self.device)",
        "torch.arange(start, stop)",
        MIXED,
    ),
    Fault(
        "Adam's steps that are counted on the CPU",
        "weights.new_zeros(len(weights), 1, dtype=torch.float64)",
        "torch.zeros(len(weights), 1, dtype=torch.float64)",
        MIXED,
        executor="block",
        changes=ADAM,
    ),
    Fault(
        "an upload that stays on the card",
        "tensor = tensor.detach().cpu()\n    whole =",
        "tensor = tensor.detach()\n    whole =",
        "same device",
    ),
    Fault(
        "an identity that is made on the CPU",
        "level * torch.eye(features).to(covariance)",
        "level * torch.eye(features, dtype=covariance.dtype)",
        MIXED,
        "ccvr",
        changes={"fields": {"shrink": 0.1}},
    ),
    # --- draws ---
    Fault(
        "flips without a key",
        'torch.where(drawn["flip"].view(-1, 1, 1, 1), x.flip(-1), x)',
        "torch.where(torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5, x.flip(-1), x)",
        "the card's global generator, which has no key",
        changes=CROP_FLIP,
    ),
    Fault(
        "a head that is drawn on the card",
        'torch.rand(layout.head, generator=client.rng("head"))',
        'torch.rand(layout.head, generator=client.rng("head"), device=received["body"].device)',
        CPU_DRAW,
        "fedper",
        changes={"fields": {"head_init": "kaiming"}},
    ),
    Fault(
        "virtual features that are drawn on the card",
        'generator=tools.rng(f"virtual features {number}"), dtype=torch.float64)',
        'generator=tools.rng(f"virtual features {number}"), dtype=torch.float64, device=tools.net.weights.device)',
        CPU_DRAW,
        "ccvr",
    ),
    # --- waits and uploads ---
    Fault(
        "a loss that the host reads in each step",
        "            steps += 1\n            if self.stops_unless_finite",
        "            steps += 1 + 0 * int(self.net.weights[0])\n            if self.stops_unless_finite",
        "more launches, waits",
    ),
    Fault(
        "finite weights that are looked for in each step",
        "if self.stops_unless_finite and not is_finite",
        "if not is_finite",
        "more launches, waits",
    ),
    Fault(
        "rows that go by the host in each step",
        '(x.index_select(0, rows["rows"]), y.index_select(0, rows["rows"]))',
        '(x.index_select(0, rows["rows"].cpu().to(x.device)), y.index_select(0, rows["rows"]))',
        "more launches, waits, uploads",
    ),
    Fault(
        "a pass that is sent from memory that is not pinned",
        "packed(away).pin_memory().to(device, non_blocking=True)",
        "packed(away).to(device, non_blocking=True)",
        "more waits",
        executor="block",
    ),
    Fault(
        "pinned memory that is used anew while its copy is underway",
        "packed(away).pin_memory().to(device, non_blocking=True)",
        "(lambda buffer: (buffer.to(device, non_blocking=True), buffer.zero_())[0])(packed(away).pin_memory())",
        "Race: pinned memory was written",
    ),
    Fault(
        "uploads that are read before they have come",
        "tensor = tensor.detach().cpu()\n    whole =",
        'tensor = tensor.detach().to("cpu", non_blocking=True).clone()\n    whole =',
        "other numbers|finite",
    ),
    # --- captures ---
    Fault(
        "a number that is brought to the card within a capture",
        'grad + (received["control"] - state["control"])',
        'grad + (received["control"] - state["control"]) * weights.new_tensor([1.0])',
        IN_CAPTURE,
        "scaffold",
        "graph",
    ),
    Fault(
        "a number that is made on the CPU within a step",
        'grad + (received["control"] - state["control"])',
        'grad + (received["control"] - state["control"]) * weights.new_ones(1, device="cpu")',
        MIXED,
        "scaffold",
        "block_graph",
    ),
    Fault(
        "a rate that the host reads within a capture",
        "weights.addcmul_(gradient, lr, value=-1)",
        "weights.add_(gradient, alpha=-float(lr))",
        IN_CAPTURE,
        "fedprox",
        "block_graph",
    ),
    Fault(
        "a replay on the inputs of its capture",
        "self.inputs.named()[name].copy_(tensor)",
        "self.inputs.named()[name]",
        "other numbers",
        executor="graph",
    ),
    Fault(
        "a rate that is read when a step is captured and never again",
        "return self._at(name, like, ()).fill_(value)",
        "return self._held[name] if name in self._held else self._at(name, like, ()).fill_(value)",
        "other numbers",
        executor="block_graph",
        changes=DECAY,
    ),
    Fault(
        "rows of a block that are replaced where a graph reads them",
        "return self._at(name, tensor, (self.capacity, *tensor.shape[1:]))[: len(tensor)].copy_(tensor)",
        "return tensor",
        "memory that was freed|other numbers",
        executor="graph",
    ),
    # --- streams ---
    Fault(
        "a first run that does not wait for what it reads",
        "self._stream.wait_stream(present)",
        "self._stream.query()",
        "Race: .* another stream",
        executor="graph",
    ),
    Fault(
        "a first run that nobody waits for",
        "present.wait_stream(self._stream)",
        "present.query()",
        "Race: .* another stream",
        executor="block_graph",
    ),
    # --- lanes ---
    Fault(
        "a lane that does not wait for what its steps read",
        "self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))",
        "self.stream.query()",
        "Race: .* another stream",
        executor="lanes",
    ),
    Fault(
        "a lane that nobody joins",
        "torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)",
        "self.stream.query()",
        "Race: .* another stream",
        executor="lanes",
    ),
    Fault(
        "a step's inputs that may be used anew before a lane has read them",
        "tensor.record_stream(self.stream)",
        "tensor.is_contiguous()",
        "Race: memory is freed while another stream still has work with it",
        executor="lanes",
    ),
    Fault(
        "lanes that share a pool",
        "self._pool = torch.cuda.graph_pool_handle()",
        "self._pool = _capture_stream.__dict__.setdefault('pool', torch.cuda.graph_pool_handle())",
        "Race: a replay writes where another stream writes",
        executor="lanes",
    ),
    Fault(
        "lanes that share programs",
        "lanes = [Programs(partial(CudaRecorder, self.device, lane), lane) for lane in beside]",
        "lanes = [Programs(partial(CudaRecorder, self.device, lane), lane) for lane in beside[:1]] * len(beside)",
        "Race: .* another stream",
        executor="lanes",
    ),
    Fault(
        "a lane's first losses that are read at once",
        "with self._in_lane():\n            return tensor.clone()",
        "with nullcontext():\n            return tensor.clone()",
        "Race: .* another stream",
        executor="lanes",
    ),
    Fault(
        "lanes in which steps come one after the other",
        "self._captured[key].run(inputs)\n",
        "self._captured[key].run(inputs), torch.cuda.synchronize()\n",
        "more waits",
        executor="lanes",
    ),
)
