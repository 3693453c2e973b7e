"""The two ends of a stage: what a server begins it with, and what an algorithm does after its last round."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from engine.algorithm import Client, Tensors
from engine.base.part_calls import on_the_server
from engine.client.steps.client_round import Streams
from engine.client.trainer import first_state
from engine.record.stage_states import StageStates
from engine.server.broadcast import addressed, broadcast, count_sent_once, validated
from engine.server.client_map import EveryClient, Exchanges, ServerSide
from engine.server.federation import Federation


class StageEnds:
    """Begins and finishes a federation's stages."""

    def __init__(self, federation: Federation, exchanges: Exchanges) -> None:
        self._federation = federation
        self._exchanges = exchanges

    def begin(self, number: int, parent: Tensors | None, states: StageStates) -> Tensors:
        """The server's entries before the first round, from those of the stage before or from fresh weights."""
        federation, round = self._federation, self._federation.starts[number]
        algorithm, context = federation.chain[number].algorithm, federation.context(number, round)
        entries = federation.with_model(number, parent if parent is not None else federation.fresh)
        name = f"stage {federation.chain[number].name}: {type(algorithm).__name__}"
        with on_the_server(f"{name}.init_server", entries):
            entries = {**algorithm.init_server(entries, context), "buffers": entries["buffers"]}
        with on_the_server(f"{name}.prepare", entries):
            entries = algorithm.prepare(entries, self.every_client(number, round, "prepare", states), context)
        server = validated(federation, number, round, algorithm, "prepare", entries)
        if algorithm.with_traffic("once"):
            count = count_sent_once(algorithm, broadcast(algorithm, server, context))
            if count:
                numbers = dict.fromkeys(federation.population.clients, (0, count))
                self._exchanges.record(federation.chain[number].name, round, "start", 1, numbers)
        return server

    def finish(self, number: int, server: Tensors, states: StageStates) -> Tensors:
        """The server's entries after what the algorithm does at the stage's end."""
        federation, round = self._federation, self._federation.ends[number]
        algorithm, context = federation.stage(number, round).algorithm, federation.context(number, round)
        clients, compute = self.every_client(number, round, "finish", states), ServerSide(federation.pool, context)
        with on_the_server(f"stage {federation.chain[number].name}: {type(algorithm).__name__}.finish", server):
            entries = algorithm.finish(server, clients, compute, context)
        return validated(federation, number, round, algorithm, "finish", entries)

    def every_client(
        self, number: int, round: int, when: Literal["prepare", "finish"], states: StageStates
    ) -> EveryClient:
        """``clients`` of the contract, after a round (global)."""
        stage, context = self._federation.chain[number], self._federation.context(number, round)
        read = states.read_own if when == "finish" and stage.rounds else states.read
        return EveryClient(self._exchanges, stage.name, context, when, read, stage.algorithm.kinds)

    def largest_first_state(self, number: int, server: Tensors) -> Tensors:
        """Return what the client with most rows keeps at its first participation, as it is stored."""
        federation, round = self._federation, self._federation.starts[number]
        algorithm, context = federation.chain[number].algorithm, federation.context(number, round)
        population, client = federation.population, federation.population.largest
        received = broadcast(algorithm, server, context)
        rows = addressed(federation, algorithm, server, (client,), context)
        if federation.experiment.client_models:
            layout, zeros = federation.largest_layout, federation.fresh["weights"].new_zeros
            context = replace(context, layout=layout)
            received |= {"weights": zeros(layout.size), "buffers": zeros(layout.buffers)}
        received |= {name: tensor[0] for name, tensor in rows.items()}
        counts = torch.from_numpy(population.class_counts()[client])
        streams = Streams(federation.experiment.seed, 0, client)
        return first_state(algorithm, Client(int(population.sizes[client]), counts, context, streams), received, {})
