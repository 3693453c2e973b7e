"""The pretended card itself: what it refuses, counts and finds, each beside what it lets pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.base.imports import uncollected
from tests.support.pretended_card import Card, Race, card, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
CUDA = torch.device("cuda")


@pytest.fixture
def present() -> Iterator[Card]:
    with card() as found:
        yield found


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, device=CUDA)


# --- devices ------------------------------------------------------------------------------------------


def test_it_comes_and_goes() -> None:
    """Kills: a card that stays, or one that code under test does not see."""
    before = torch.cuda.is_available(), torch.Generator, torch.cuda.Stream
    assert not before[0]
    with card():
        x = torch.zeros(2, device="cuda:0")
        assert torch.cuda.is_available() and (x.device, x.is_cuda) == (torch.device("cuda:0"), True)
        assert x.to("cuda") is x and x.to(x.device) is x and x.cuda() is x and x.cpu().device.type == "cpu"
    assert (torch.cuda.is_available(), torch.Generator, torch.cuda.Stream) == before
    with pytest.raises(RuntimeError, match="which is gone"):
        x.add_(1)


@pytest.mark.parametrize(
    "mixes",
    [
        lambda x, cpu: x + cpu,
        lambda x, cpu: cpu + x,
        lambda x, cpu: x.copy_(cpu).mul_(cpu),
        lambda x, cpu: cpu.add_(x.sum()),
        lambda x, cpu: torch.cat([x, cpu]),
        lambda x, cpu: torch.stack([x, cpu]),
        lambda x, cpu: torch.nn.functional.linear(x, cpu),
        lambda x, cpu: cpu[torch.zeros(2, dtype=torch.int64, device=CUDA)],
        lambda x, cpu: x.index_select(0, torch.zeros(2, dtype=torch.int64)),
        lambda x, cpu: torch.nn.functional.cross_entropy(x, torch.zeros(2, dtype=torch.int64)),
    ],
)
def test_two_devices_in_one_operation(present: Card, mixes: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Kills: a card that computes with the CPU's tensors."""
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
        mixes(ones(2, 2), torch.ones(2, 2))


def test_what_is_made_like_a_tensor_lies_where_it_is_told(present: Card) -> None:
    """Kills: a tensor of the CPU's that is on the card since another one is, or that the host waits for."""
    x = ones(2)
    cpu = [torch.zeros_like(x, device="cpu"), x.new_full((2,), 3.0, device="cpu"), torch.empty_like(x, device="cpu")]
    assert {one.device.type for one in cpu} == {"cpu"} and not present.counts.totals["waits"]
    assert {one.device.type for one in (torch.zeros_like(x), x.new_ones(2), torch.rand_like(x))} == {"cuda"}


def test_a_number_of_the_cpu_goes_along(present: Card) -> None:
    """Kills: a card that refuses what CUDA takes."""
    x = ones(2, 2) * torch.tensor(3.0) + 1
    x[torch.tensor([0])] = 7.0
    assert torch.where(x > 5, x, torch.tensor(0.0)).tolist() == [[7.0, 7.0], [0.0, 0.0]]


def test_generators_are_of_one_device(present: Card) -> None:
    """Kills: draws of the CPU's generator on the card; a global generator that the CPU's draws move, or the reverse."""
    for draw in (torch.randn, torch.rand):
        with pytest.raises(RuntimeError, match="'cuda' device type for generator but found 'cpu'"):
            draw(2, device=CUDA, generator=torch.Generator())
    with pytest.raises(RuntimeError, match="found 'cpu'"):
        ones(3).normal_(generator=torch.Generator().manual_seed(1))
    one, other = (torch.randn(3, device=CUDA, generator=torch.Generator(CUDA).manual_seed(5)) for _ in range(2))
    assert torch.equal(one.cpu(), other.cpu())
    states = torch.get_rng_state(), torch.cuda.get_rng_state()
    torch.rand(3, device=CUDA)
    torch.nn.functional.dropout(ones(8), 0.5, training=True)
    assert torch.equal(torch.get_rng_state(), states[0]) and not torch.equal(torch.cuda.get_rng_state(), states[1])


def test_memory_is_shared_as_on_a_card(present: Card) -> None:
    """Kills: a view, a parameter's data or an out= that has numbers of its own."""
    vector = torch.zeros(6, device=CUDA)
    parameter = torch.nn.Parameter(ones(2, 2))
    parameter.data = vector[:4].view(2, 2)
    with torch.no_grad():
        parameter.add_(2)
        torch.cat([parameter.flatten().clone(), ones(2)], out=vector)
    (parameter.sum() * vector.sum()).backward()
    assert vector.tolist() == [2, 2, 2, 2, 1, 1] and parameter.grad is not None
    assert parameter.grad.tolist() == [[10, 10], [10, 10]]


# --- counts -------------------------------------------------------------------------------------------


def test_what_makes_the_host_wait(present: Card) -> None:
    """Kills: a wait or an upload that is not counted, one that is though nobody waits; a line of somebody else."""
    x, mask = ones(3), torch.tensor([True, False, True]).to(CUDA)
    waits = [x.sum().item, lambda: bool(x.sum() > 1), lambda: x[mask], lambda: x.nonzero(), x.cpu, x.tolist]
    waits += [torch.cuda.synchronize, lambda: torch.bincount(mask.long()), lambda: x.to("cpu", torch.float64)]
    for number, wait in enumerate(waits):
        before = present.counts.copy()
        wait()
        now = present.counts - before
        assert (now.totals["waits"], now.totals["uploads"]) == (1, 0), number
    free = [lambda: x * 2, lambda: x.sum(), lambda: x[:2], lambda: torch.zeros(2, device=CUDA), lambda: x.topk(2)]
    for number, call in enumerate(free):
        before = present.counts.copy()
        call()
        assert (present.counts - before).totals["waits"] == 0, number
    assert all(place.startswith("tests/card/test_pretended_card.py:") for _, place in present.counts.waits)


def test_uploads_wait_unless_they_are_pinned_and_told_not_to(present: Card) -> None:
    """Kills: an upload of pageable memory that passes for one that runs on."""
    host = torch.ones(4)
    uploads = [
        (lambda: host.to(CUDA), 1),
        (lambda: host.to(CUDA, non_blocking=True), 1),
        (lambda: host.pin_memory().to(CUDA), 1),
        (lambda: ones(4).copy_(host), 1),
        (lambda: torch.tensor([1.0, 2.0], device=CUDA), 1),
        (lambda: ones(4)[torch.tensor([1])], 1),
        (lambda: host.pin_memory().to(CUDA, non_blocking=True), 0),
        (lambda: torch.full((2,), 3.0, device=CUDA), None),
    ]
    for number, (upload, waits) in enumerate(uploads):
        before = present.counts.copy()
        upload()
        now = (present.counts - before).totals
        assert (now["waits"], now["uploads"]) == ((0, 0) if waits is None else (waits, 1)), number


def test_launches_are_what_the_host_starts(present: Card) -> None:
    """Kills: views and allocations that count, operations in a replay that count."""
    x = torch.empty(4, 4, device=CUDA)
    x.view(16)[:3].detach()
    assert present.counts.launches == 0
    (x.zero_() + 1).t().contiguous()
    assert present.counts.launches == 3


def test_an_optimizer_does_many_tensors_in_one_operation(present: Card) -> None:
    """Kills: launches of Adam that grow with the parameters, as on the CPU; other numbers by it."""
    found = []
    for device, count in (("cpu", 3), ("cuda", 3), ("cuda", 6)):
        leaves = [torch.full((2,), float(number), device=device).requires_grad_() for number in range(count)]
        adam = torch.optim.Adam(leaves, lr=0.1)
        before = present.counts.launches
        for leaf in leaves:
            leaf.grad = leaf.detach() + 1
        setting = present.counts.launches - before
        adam.step()
        adam.step()
        found.append((present.counts.launches - before - setting, [leaf.tolist() for leaf in leaves[:3]]))
    # Moments are made one by one, at the first step.
    assert found[2][0] - found[1][0] == 2 * 3 and found[0][1] == found[1][1]


# --- copies that run on -------------------------------------------------------------------------------


def test_pinned_memory_that_is_written_too_soon(present: Card) -> None:
    """Kills: a buffer that is filled anew while its last copy may be underway; a wait that does not help."""
    host = torch.zeros(4).pin_memory()
    on_card = host.to(CUDA, non_blocking=True)
    torch.cuda.synchronize()
    host.numpy()[:] = 1  # by whatever way
    on_card.copy_(host, non_blocking=True)
    host.fill_(2)
    with pytest.raises(Race, match="pinned memory was written before"):
        torch.cuda.current_stream().synchronize()


def test_a_download_that_nobody_waits_for(present: Card) -> None:
    """Kills: numbers that are read before they have come."""
    host = ones(4).to("cpu", non_blocking=True)
    assert host.isnan().all()
    torch.cuda.synchronize()
    assert host.tolist() == [1, 1, 1, 1]


# --- graphs -------------------------------------------------------------------------------------------


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, **more: Any) -> Iterator[None]:
    """Capture as the engine does: a collection of garbage may destroy another test's graph, which ends a capture."""
    with uncollected(), torch.cuda.graph(graph, stream=stream, **more):
        yield


def captured(work: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    with capturing(graph, torch.cuda.Stream()):
        found = work()
    return graph, found


def test_a_replay_computes_anew_into_the_same_memory(present: Card) -> None:
    """Kills: a capture that computes, a replay that does not, results or inputs of the capture's moment."""
    x, total, factor = ones(3), torch.zeros(1, device=CUDA), 2.0

    def work() -> Tensor:
        y = (x * factor).requires_grad_()
        (gradient,) = torch.autograd.grad((y * y).sum(), y)
        total.add_(gradient.sum())
        return gradient

    graph, gradient = captured(work)
    assert gradient is not None and gradient.isnan().all() and total.tolist() == [0.0]
    launches, factor = present.counts.launches, 5.0
    for value in (1.0, 10.0):
        x.fill_(value)
        graph.replay()
        assert gradient.tolist() == [4 * value] * 3
    assert total.tolist() == [12.0 + 120.0]
    assert present.counts.replays == 2 and present.counts.launches - launches < 8 < present.counts.nodes


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x + torch.tensor([1.0], device=CUDA),
        lambda x: x.copy_(torch.zeros(3)),
        lambda x: x[torch.tensor([0])],
        lambda x: x.normal_(generator=torch.Generator()),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.current_stream().wait_stream(torch.cuda.default_stream()),
    ],
)
def test_what_a_capture_refuses(present: Card, work: Callable[[Tensor], object]) -> None:
    """Kills: a wait, an upload, a draw of the CPU's, or work of another stream, that a capture lets pass."""
    x = ones(3)
    with pytest.raises(RuntimeError, match=r"capturing|found 'cpu'|uncaptured work"):
        captured(lambda: work(x))
    assert captured(lambda: x + 1)[1] is not None  # and the next one is none the worse


def test_memory_that_is_freed_after_a_capture(present: Card) -> None:
    """Kills: a graph that goes on with memory that nobody holds any more."""
    kept, others = ones(2), [ones(2)]
    graph, _ = captured(lambda: kept.add_(others[0]))
    graph.replay()
    assert kept.tolist() == [2.0, 2.0]
    others.clear()
    with pytest.raises(Race, match="memory that was freed"):
        graph.replay()


def test_statistics_of_a_norm_move_in_replays_alone(present: Card) -> None:
    """Kills: buffers that a capture has moved already."""
    norm, x = torch.nn.BatchNorm1d(2).to(CUDA), torch.arange(8.0).view(4, 2).to(CUDA)
    graph, _ = captured(lambda: norm(x))
    assert norm.running_mean.tolist() == [0, 0]
    graph.replay()
    assert norm.running_mean.tolist() == pytest.approx([0.3, 0.4])


# --- streams ------------------------------------------------------------------------------------------


def on(stream: torch.cuda.Stream, work: Callable[[], object]) -> None:
    with torch.cuda.stream(stream):
        work()


def test_a_stream_that_does_not_wait(present: Card) -> None:
    """Kills: reads and writes of what another stream has written or still reads, without a word."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x, y = ones(3), ones(3)
    with pytest.raises(Race, match="reads what another stream writes"):
        on(side, lambda: y.add_(x))
    side.wait_stream(main)
    on(side, lambda: y.add_(x))
    with pytest.raises(Race, match="writes what another stream still reads"):
        x.zero_()
    with pytest.raises(Race, match="reads what another stream writes"):
        y.sum()
    main.wait_stream(side)
    x.zero_()
    assert y.tolist() == [2.0] * 3


def test_events_and_the_host_put_in_order(present: Card) -> None:
    """Kills: an event that is taken for all that a stream does later, a wait of the host that helps nobody."""
    side, x = torch.cuda.Stream(), ones(3)
    torch.cuda.synchronize()
    on(side, lambda: x.add_(1))
    event = side.record_event()
    event.wait()
    assert x.sum().item() == 6
    on(side, lambda: x.add_(1)) if event.query() else None
    side.wait_stream(torch.cuda.current_stream())
    on(side, lambda: x.add_(1))
    event.wait()  # of before
    with pytest.raises(Race):
        x.sum()
    side.synchronize()
    assert x.sum().item() >= 9


def test_memory_that_is_freed_while_another_stream_reads_it(present: Card) -> None:
    """Kills: a tensor that goes while another stream has work with it."""
    side, target = torch.cuda.Stream(), ones(3)

    def go(keep: bool, join: bool) -> None:
        side.wait_stream(torch.cuda.current_stream())
        passing = ones(3)
        side.wait_stream(torch.cuda.current_stream())
        on(side, lambda: target.copy_(passing))
        if keep:
            passing.record_stream(side)
        if join:
            torch.cuda.current_stream().wait_stream(side)

    go(keep=True, join=False)
    go(keep=False, join=True)
    go(keep=False, join=False)
    with pytest.raises(Race, match="freed while another stream"):
        ones(3)
    torch.cuda.synchronize()


def test_graphs_of_one_pool_on_two_streams(present: Card) -> None:
    """Kills: lanes whose graphs lay what they make into the same memory at the same time."""
    lanes = [torch.cuda.Stream() for _ in range(2)]
    for shares in (False, True):
        pool, graphs, own_memory = torch.cuda.graph_pool_handle(), [], [ones(3), ones(3)]
        for x in own_memory:
            graphs.append(torch.cuda.CUDAGraph())
            own = pool if shares else torch.cuda.graph_pool_handle()
            with capturing(graphs[-1], lanes[0], pool=own):
                x.add_(x * 2)
        torch.cuda.synchronize()
        on(lanes[0], graphs[0].replay)
        if not shares:
            on(lanes[1], graphs[1].replay)
            torch.cuda.synchronize()
            continue
        with pytest.raises(Race, match="writes where another stream writes"):
            on(lanes[1], graphs[1].replay)
        torch.cuda.synchronize()


def test_lanes_side_by_side(present: Card) -> None:
    """Kills: a step per client slot, captured and replayed on a stream of its own, that is taken for a race or comes to
    other numbers; lanes whose results are read before they have ended."""
    lanes, memory = [torch.cuda.Stream() for _ in range(3)], [(ones(4), torch.zeros(4, device=CUDA)) for _ in range(3)]
    main, graphs = torch.cuda.current_stream(), []
    for lane, (weights, x) in zip(lanes, memory, strict=True):
        graphs.append(torch.cuda.CUDAGraph())
        with capturing(graphs[-1], lane):
            weights.sub_(x * 0.5)
    for step in range(4):
        begun = main.record_event()
        for slot, (lane, graph, (_, x)) in enumerate(zip(lanes, graphs, memory, strict=True)):
            with torch.cuda.stream(lane):
                lane.wait_event(begun)
                x.fill_(slot + step)
                graph.replay()
    with pytest.raises(Race, match="reads what another stream writes"):
        memory[0][0].sum()
    for lane in lanes:
        main.wait_stream(lane)
    assert [weights.tolist()[0] for weights, _ in memory] == [-2, -4, -6]


def test_a_capture_over_several_streams_must_come_together(present: Card) -> None:
    """Kills: a fork of a capture that is not captured, one that is left open."""
    main, side, x = torch.cuda.Stream(), torch.cuda.Stream(), ones(3)

    def forked(joins: bool) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, main):
            side.wait_stream(main)
            on(side, lambda: x.add_(1))
            if joins:
                main.wait_stream(side)
        return graph

    with pytest.raises(RuntimeError, match="unjoined work"):
        forked(joins=False)
    forked(joins=True).replay()
    assert x.tolist() == [2.0] * 3


# --- what a real card was seen to refuse ----------------------------------------------------------------


def test_a_graph_that_is_destroyed_during_a_capture(present: Card) -> None:
    """Kills: a card that lets the garbage collector into a capture."""
    kept = [captured(lambda: ones(2) + 1)]
    captured(lambda: ones(2) + 1)  # destroyed afterwards
    with pytest.raises(RuntimeError, match="previous error during capture"):
        captured(kept.clear)
    captured(lambda: None)


@pytest.mark.parametrize("which", [1, 2, 3, 4])
def test_vectors_of_batchnorm_at_odd_places(present: Card, which: int) -> None:
    """Kills: a card whose kernels read 16 bytes wherever they begin; one that refuses other layouts as well."""
    vectors = [ones(16) for _ in range(4)]
    odd = [*vectors[: which - 1], ones(18)[2:], *vectors[which:]]
    scale, shift, mean, variance = odd
    images = torch.randn(4, 16, 5, 5).to(CUDA)
    last = images.to(memory_format=torch.channels_last)
    norm = torch.nn.functional.batch_norm
    norm(images, mean, variance, scale, shift, True)
    norm(last.double(), *(one.double() for one in (mean, variance, scale, shift)), True)
    refuses = pytest.raises(RuntimeError, match="misaligned address") if which != 4 else nullcontext()  # 4: variances
    with refuses:
        norm(last, mean, variance, scale, shift, True)
