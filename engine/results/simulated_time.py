"""Simulated time: how long a run's rounds would take on devices that are given or drawn.

It is computed from a finished run's tables. A round lasts as long as its slowest client takes to receive, to train and
to send, one after the other; an exchange outside rounds as long as its slowest client takes to receive and to send. The
server and evaluations take no time, and neither do clients that failed. A step counts as the mean batch of a pass over
the client's rows (``local.batch_size`` as it is in the round), whatever a method computes in it.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from engine.algorithm.seeds import numpy_generator
from engine.base import parquet
from engine.base.declared import Doc, Ge, Gt, Neutral
from engine.base.errors import ConfigError, RunFolderError, require
from engine.base.opening import read_bytes
from engine.base.registry import Checked, Registry
from engine.data.samples.batches import batch_sizes
from engine.record.communication import BOTH_WAYS, EXCHANGE, in_bytes
from engine.record.run_folder import RunFolder

CLOCK = "simulated_seconds"  # the column of it, and the metric
RATES = ["examples_per_second", "up_bytes_per_second", "down_bytes_per_second"]


@dataclass(frozen=True)
class Devices(Checked):
    """The clients' devices that simulated time supposes: those of a table, or drawn.

    Drawn rates are log-normal and independent, and a client has the same ones in every run and cohort.
    """

    table: Annotated[
        str | None,
        Doc(f"CSV or parquet file with a row for each client: client, {', '.join(RATES)}; in place of draws"),
        Neutral(None, "draws them"),
    ] = None
    examples_per_second: Annotated[float, Gt(0), Doc("median of the training rows of a second")] = 100.0
    up_bytes_per_second: Annotated[float, Gt(0), Doc("median of the bytes that a client sends in a second")] = 1e6
    down_bytes_per_second: Annotated[float, Gt(0), Doc("median of the bytes that it receives in a second")] = 5e6
    sigma: Annotated[
        float, Ge(0), Doc("standard deviation of the rates' logarithms"), Neutral(0, "makes devices equal")
    ] = 1.0
    seed: Annotated[int, Ge(0), Doc("of the draws")] = 0

    def __str__(self) -> str:
        if self.table is not None:
            return f"devices of {Path(self.table).name}"
        rates = f"{self.examples_per_second:g} examples/s, {self.up_bytes_per_second / 1e6:g} MB/s up and "
        rates += f"{self.down_bytes_per_second / 1e6:g} MB/s down"
        return f"log-normal devices (medians {rates}; sigma {self.sigma:g}, seed {self.seed})"

    def rates(self, clients: np.ndarray) -> np.ndarray:
        """Return the :data:`RATES` of ``clients`` [n], float64 [n, 3]; ConfigError for one that the table lacks."""
        if self.table is None:
            draws = numpy_generator(self.seed, "devices").standard_normal((int(clients.max(initial=-1)) + 1, 3))
            return np.array([getattr(self, name) for name in RATES]) * np.exp(self.sigma * draws[clients])
        lacking = sorted({*clients.tolist()} - {*self._read.index})
        require(not lacking, "devices", self.table, f"has no row for client {lacking[:1]}", "give each client one")
        return self._read.loc[clients].to_numpy()

    @cached_property
    def _read(self) -> pd.DataFrame:
        """The table's rates by client; read once, so that all trials have the same."""
        path, columns = Path(str(self.table)), ["client", *RATES]
        try:
            is_parquet = path.suffix == ".parquet"
            frame = parquet.read(path).to_pandas() if is_parquet else pd.read_csv(io.BytesIO(read_bytes(path)))
            frame = frame[columns].set_index("client").astype(float)
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            rule = f"is no table of devices ({error})"
            raise ConfigError("devices", self.table, rule, f"give it the columns {', '.join(columns)}") from None
        whole = frame.index.is_unique and pd.api.types.is_integer_dtype(frame.index.dtype)
        rule = "must name each client once, by its number, with rates above 0"
        require(whole and bool((frame > 0).all(axis=None)), "devices", self.table, rule, "correct the table")
        return frame


DEVICES = Registry("devices", Devices, {"lognormal": Devices})  # as the command line has them


def seconds_until(
    folder: Path,
    experiment: Mapping[str, Any],
    order: Mapping[str, int],
    devices: Devices,
    places: Iterable[tuple[str, int]],
) -> list[float | None]:
    """Return the simulated seconds along the lineage up to the end of each of ``places`` (stage, global round).

    order: each stage of the lineage -> its place; None for a place outside it.
    """
    run = RunFolder(folder)
    clients = run.arrow("clients", ["stage", "round", "client", "samples", "steps", *BOTH_WAYS]).to_pandas()
    exchanges = run.arrow("exchanges", [*EXCHANGE, "client", *BOTH_WAYS]).to_pandas()
    clients = clients.assign(rows=clients["steps"] * _rows_per_step(folder, experiment, clients), when="", exchange=0)
    messages = pd.concat([clients, exchanges.assign(rows=0.0)], ignore_index=True)
    messages = messages.loc[messages["stage"].isin(order)]
    trained, up, down = devices.rates(messages["client"].to_numpy("int64")).T
    sent = in_bytes(messages, experiment["execution"]["precision"])
    seconds = sent["floats_down"] / down + messages["rows"] / trained + sent["floats_up"] / up
    messages = messages.assign(place=messages["stage"].map(order), seconds=seconds)
    slowest = messages.groupby(["place", "round", "when", "exchange"])["seconds"].max()
    total = slowest.groupby(["place", "round"]).sum().cumsum()
    keys, totals = total.index.tolist(), [0.0, *total]
    return [totals[bisect_right(keys, (order[stage], round))] if stage in order else None for stage, round in places]


CUT = ("batch_size", "last_batch")  # fields of ``local`` that say how rows are cut into batches


def _rows_per_step(folder: Path, experiment: Mapping[str, Any], clients: pd.DataFrame) -> list[float]:
    """Return the mean rows of a batch of each row's client."""
    here = list(zip(clients["stage"], clients["round"], clients["samples"], strict=True))
    try:
        own = {stage["name"]: stage.get("local") for stage in experiment["stages"]} or {"train": {}}
        cut = {}
        for stage, round in {place[:2] for place in here}:
            local = {**experiment["local"], **(own[stage] or {})}
            for change in experiment["schedule"]:
                if change["round"] <= round:
                    local |= {name: change["set"].get(f"local.{name}", local[name]) for name in CUT}
            cut[stage, round] = [local[name] for name in CUT]
        mean = {place: fmean(batch_sizes(place[2], *cut[place[:2]]) or [0]) for place in {*here}}
    except (KeyError, TypeError, ValueError) as error:
        path = folder / "experiment.yaml"
        raise RunFolderError(f"{path} cannot be read (its batches are not of this version: {error!r})") from None
    return [mean[place] for place in here]
