"""Studies of this machine: ``fedskew floor | tune-executor | scale``.

What they measure is in ``fedskew/lab``, and imported when a command asks for it: pandas and matplotlib take a second.
"""

from __future__ import annotations

import math
import shlex
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from engine.base.errors import require
from engine.base.files import write_atomically
from engine.base.writable import check_writable
from engine.experiment import CHOICES, Experiment, parse_assignment
from fedskew.cli.naming import Address, Profile, What, find_experiment, is_name, numbers, overridden
from fedskew.cli.output import console, leave_streams_to_ray, print_json, say, table
from fedskew.lab.shown import progress_bar

if TYPE_CHECKING:
    from engine.models.cost import ModelCost
    from fedskew.lab.floor.measured import MeasuredFloor
    from fedskew.lab.scaling.study import Study

BOUND_BY = {
    "arithmetic": "arithmetic",
    "weights": "moving weights",
    "activations": "moving activations",
    "imbalance": "clients that cannot be split between lanes",
    "broadcast": "the broadcast",
    "aggregation": "the aggregation",
}
PREFIXES = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}  # of thousands
MOST_TURNS = 1000  # of a setting
FEW = 2  # actors, for which the blocks that the engine cuts by itself are always enough


def floor_command(
    what: What = None,
    rounds: Annotated[int, typer.Option(min=2, help="rounds to run; the first one is not counted")] = 5,
    layers: Annotated[bool, typer.Option("--layers", help="show what each layer costs")] = False,
    profile: Profile = "laptop",
) -> None:
    """Hold a round's time against the least that this machine's arithmetic and memory allow."""
    experiment = overridden(what, profile)
    from fedskew.lab.floor.measured import measure_floor

    with console.status(f"{rounds} rounds, then the machine"):
        measured = measure_floor(experiment, rounds)
    if layers:
        console.print(_layers(measured.cost))
    say("\n".join(_facts(measured)))
    console.print(_terms(measured))
    say(conclusion(measured))
    print_json({**measured.to_mapping(), "conclusion": conclusion(measured)})


def conclusion(measured: MeasuredFloor) -> str:
    """Return the conclusion from the share, in one sentence; a second one where it needs one."""
    typical, counted = measured.typical, measured.typical.floor.counted
    text = (
        f"A round took {si(typical.seconds, 's')} and takes at least {si(typical.floor.seconds, 's')}, bound by "
        f"{BOUND_BY[max(counted, key=lambda name: counted[name])]}: the floor is {_percent(typical.share)} of it."
    )
    if typical.share > 1:
        text += " The machine was slower when it was measured than in the rounds: measure again when it is quiet."
    if not measured.is_plain:
        name = CHOICES["algorithm"].name_of(measured.stage.algorithm)
        text += f" The floor is that of plain local training, and what {name} does beside it is in the time alone."
    return text


def _facts(measured: MeasuredFloor) -> list[str]:
    experiment, cost, speed, typical = measured.experiment, measured.cost, measured.speed, measured.typical
    numbers = [timed.number for timed in measured.rounds]
    stages = [stage.name for stage in experiment.chain if stage.name != measured.stage.name]
    after = f", after one round of {', '.join(stages)}" if stages else ""
    lanes = "one lane" if speed.lanes == 1 else f"{speed.lanes} lanes"
    rates = {"matmul": speed.matmul, "convolution": speed.convolution}
    fast = ", ".join(f"{name} {si(rate, 'FLOP/s')}" for name, rate in rates.items())
    work = typical.work
    return [
        f"{experiment.name}, stage {measured.stage.name}{after}: round {typical.number}, "
        f"the median of rounds {numbers[0]} to {numbers[-1]}",
        f"model      {CHOICES['model'].name_of(experiment.model)}, {cost.parameters:,} parameters, "
        f"{cost.buffers:,} buffers",
        f"sample     {cost.macs:,} multiply-adds forward, {cost.first_macs:,} of them in the first layer; "
        f"{cost.activations:,} activations kept",
        f"round      {len(work.clients)} clients, {typical.samples:,} samples, {work.steps:,} steps over "
        f"{work.rows:,} rows",
        f"machine    {experiment.execution.device}, {lanes}, {experiment.execution.precision}: {fast}, "
        f"memory {si(speed.memory, 'B/s')}",
    ]


def _terms(measured: MeasuredFloor) -> Table:
    typical, speed = measured.typical, measured.speed
    work, floor = typical.work, typical.floor
    terms = table(("term", "amount", "at", "time"), ())
    for name, amount, rate in (
        ("arithmetic", si(sum(work.flops), "FLOP"), si(speed.flops, "FLOP/s")),
        ("weights", si(sum(work.weight_bytes), "B"), si(speed.weights, "B/s")),
        ("activations", si(sum(work.activation_bytes), "B"), si(speed.activations, "B/s")),
        ("imbalance", "", ""),
        ("broadcast", si(work.broadcast_bytes, "B"), si(speed.weights, "B/s")),
        ("aggregation", si(work.aggregation_bytes, "B"), si(speed.weights, "B/s")),
    ):
        time = si(getattr(floor, name), "s")
        terms.add_row(name, amount, rate, time if name in floor.counted else f"{time}, meanwhile")
    shares = [timed.share for timed in measured.rounds]
    terms.add_section()
    for name, text in (
        ("floor", si(floor.seconds, "s")),
        ("measured", si(typical.seconds, "s")),
        ("share", f"{_percent(typical.share)}, rounds {_percent(min(shares))} to {_percent(max(shares))}"),
    ):
        terms.add_row(name, "", "", text)
    return terms


def _layers(cost: ModelCost) -> Table:
    rows = [
        (layer.name, layer.kind, f"{layer.parameters:,}", f"{layer.macs:,}", f"{layer.kept:,}", not layer.is_first)
        for layer in cost.layers
    ]
    head = ("layer", "kind", "parameters", "multiply-adds", "activations", "input gradient")
    return table(head, [(*cells, "yes" if has_gradient else "no") for *cells, has_gradient in rows])


def si(value: float, unit: str) -> str:
    """Return ``value`` with three digits and a prefix of thousands: 0.0123, s is 12.3 ms."""
    if value <= 0:
        return f"0 {unit}"
    rounded = float(f"{value:.3g}")
    power = min(max(math.floor(math.log10(rounded) / 3 + 1e-9), min(PREFIXES)), max(PREFIXES))
    return f"{rounded / 1000**power:.3g} {PREFIXES[power]}{unit}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def tune_executor_command(
    what: What = None,
    rounds: Annotated[int, typer.Option(help="to time, of each executor")] = 10,
    out: Annotated[Path | None, typer.Option(help="a YAML file; none: the one that was given, or NAME.yaml")] = None,
    profile: Profile = "laptop",
) -> None:
    """Time each way to train clients on this machine, and write the fastest into the experiment's YAML file."""
    experiment = overridden(what, profile)
    given = Path(what[0]) if what and what[0].endswith((".yaml", ".yml")) else None
    tune(experiment, rounds, out or given or Path(f"{experiment.name}.yaml"))


def tune(experiment: Experiment, rounds: int, output: Path) -> None:
    """Time each executor, and write the experiment to ``output`` with the fastest one."""
    require(rounds >= 1, "--rounds", rounds, "must be at least 1", "for example --rounds 10")
    require(not output.is_dir(), "--out", output, "is a folder", "name a file in it")
    check_writable(output.parent, "--out")
    from fedskew.lab.executors import ALONE, WAYS, chosen, default_way, study

    with console.status("") as status:
        timings = study(experiment, rounds, status.update)
    auto = experiment.override(["execution.executor=auto", *ALONE]).resolve()
    default = default_way(auto.execution)
    best = chosen(timings, default)
    medians = {name: statistics.median(rounds) for name, rounds in timings.items()}
    rows = [
        (
            f"{name} (auto)" if name == default else name,
            f"{medians[name]:.4g}",
            f"{min(rounds):.4g} to {max(rounds):.4g}",
            f"{medians[name] / medians[default]:.2f}",
        )
        for name, rounds in timings.items()
    ]
    console.print(table(("executor", "seconds per round", "least to most", "by that of auto"), rows))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, experiment.override(WAYS[best]).to_yaml())
    why = "the fastest" if best != default else "that of auto, and none is clearly faster"
    say(f"{output}: {' '.join(WAYS[best])}, {why} here")
    measured = [{"executor": name, "median": medians[name], "rounds": rounds} for name, rounds in timings.items()]
    print_json({"file": output, "executor": best, "auto": default, "executors": measured})


def scale_command(
    what: What = None,
    actors: Annotated[str | None, typer.Option(help="0,1,2,...; 0: in process; none: up to the cores")] = None,
    predict: Annotated[str | None, typer.Option(help="actors to predict for: 8,64; none: twice, four times")] = None,
    turns: Annotated[int, typer.Option(help="of each setting")] = 3,
    seconds: Annotated[float, typer.Option(help="of a turn, about; at least one round")] = 2.0,
    out: Annotated[Path | None, typer.Option(help="the study's folder; none: runs/scale-<name>-<hash>")] = None,
    address: Address = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="measure nothing: a round on paper, e.g. nodes=64 gpus=8 clients=10000")
    ] = False,
) -> None:
    """Measure rounds per second and their phases over actors; say what binds, and what more actors would give.

    Without a name the experiment is ``scaling``, fitted to the machine.
    """
    if plan:
        _show_plan(what or [])
        return
    overrides = list(what or [])
    has_name = bool(overrides) and is_name(overrides[0])
    experiment, _ = find_experiment(overrides.pop(0) if has_name else "scaling", "laptop", overrides)
    from fedskew.lab.scaling import study as scaling

    require(turns >= 1, "--turns", turns, "must be at least 1", "3 turns give an interval")
    require(turns <= MOST_TURNS, "--turns", turns, f"must be at most {MOST_TURNS}", "lower it")
    require(seconds > 0, "--seconds", seconds, "must be above 0", "for example --seconds 2")
    require(seconds <= 3600, "--seconds", seconds, "must be at most an hour", "for example --seconds 2")
    if out is not None:
        check_writable(out, "--out", locks=True)
    counts, wished = numbers("--actors", actors), numbers("--predict", predict)
    for count in wished or ():
        require(count >= 1, "--predict", count, "must be at least 1", "the model is of actors, not of this process")
    execution = experiment.override(overrides).execution
    with console.status("machine and data"):
        machine = scaling.look_around(execution, address)
        room = scaling.room_for(machine, execution)
        counts = counts or scaling.actors_for(room, execution)
        most = max(counts)
        fits = most <= room or not scaling.on_cluster(address)  # on one machine actors may crowd
        rule = f"must be at most {room}, for which the cluster has room"
        require(fits, "--actors", most, rule, "ask for fewer, or for smaller ones with execution.cpus_per_actor")
        if not has_name:
            overrides = [*sizes_for(most), *overrides]
        experiment = experiment.override(overrides)
        cohort = scaling.cohort_of(experiment)
        study = scaling.Study(experiment, cohort, counts, machine, turns, seconds, out)
    leave_streams_to_ray()
    try:
        _measure(study, address)
    except KeyboardInterrupt:
        say(f"what was measured is kept in {shlex.quote(str(study.folder))}; the same command goes on with it")
        raise
    _show_model(study, wished if wished is not None else (2 * most, 4 * most) if most else ())


def _show_plan(words: list[str]) -> None:
    """Print what a round takes on paper."""
    from fedskew.lab.scaling.plan import on_paper

    paper = on_paper(dict(map(parse_assignment, words)))
    say(
        f"{paper['plan']['clients']:,} clients, {paper['parameters']:,} numbers each, in {paper['blocks']:,} blocks on "
        f"{paper['actors']:,} actors; {si(paper['bytes_down'], 'B')} out of the driver's node, "
        f"{si(paper['bytes_in'], 'B')} in"
    )
    rows = [(f"{one['name']}=", f"{one['value']:,.4g}", one["from"], one["meaning"]) for one in paper["figures"]]
    console.print(table(("figure", "value", "from", "what it is"), rows))
    console.print(table(("part", "seconds"), [(part, f"{took:,.4g}") for part, took in paper["seconds"].items()]))
    say(f"A round takes {paper['least']:,.4g} to {paper['most']:,.4g} s, bound by {paper['binding']}.")
    print_json(paper)


def _show_model(study: Study, predict: tuple[int, ...]) -> None:
    """Fit the model, write the page, and print both with what is predicted for so many actors."""
    from fedskew.lab.scaling import page as scaling_page

    page, fitted, predictions = scaling_page.write(study, predict)
    say(scaling_page.model_text(fitted))
    guesses = scaling_page.predictions_table(predictions)
    if guesses.rows:
        console.print(table(guesses.head, [[cell.text for cell in row] for row in guesses.rows], "predictions"))
    say(f"page    {page}")
    print_json({"folder": study.folder, "page": page, "model": scaling_page.described(fitted, predictions)})


def _measure(study: Study, address: str | None) -> None:
    from fedskew.lab.scaling.study import measure_turn

    total, left = len(study.counts) * study.turns, len(study.left)
    already = f"; {total - left} turns are there already" if left < total else ""
    say(f"{len(study.counts)} settings, {study.turns} turns of about {study.seconds:g} s each{already}")
    if not left:
        return
    if study.most:  # Ray is started, or found, with room for the most actors
        from engine.worker.ray import cluster

        cluster.connect(study.experiment_of(study.most).execution, address)
    with progress_bar("turn", console) as bar:
        task = bar.add_task("turn", total=total, completed=total - left, now="starting")

        def tell(actors: int) -> None:
            bar.update(task, advance=1, now=f"{actors} actors" if actors else "in process")

        study.measure(lambda experiment, seconds: measure_turn(experiment, seconds, address), tell)


def sizes_for(most: int) -> list[str]:
    """Return overrides that fit the default experiment to so many actors: four clients, and two blocks, for each."""
    cohort = max(32, 4 * most)
    block = [f"execution.block={cohort // (2 * most)}"] if most > FEW else []
    return [f"participation.count={cohort}", f"partition.clients={max(200, 2 * cohort)}", *block]
