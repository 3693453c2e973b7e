"""The deep averaging network, against a few lines of plain Python; what it takes, and what it is refused for."""

from __future__ import annotations

import math

import pytest
import torch

from engine.algorithm.seeds import generator
from engine.base.errors import ConfigError
from engine.experiment import Experiment
from engine.models import DAN, MLP, build_model, check_inputs
from engine.models.outline import outline
from engine.models.text import MeanEmbedding

SHAPE = (6, 1, 1)


def tokens(*rows: list[int]) -> torch.Tensor:
    """[B, 6, 1, 1], filled with padding."""
    return torch.tensor([row + [0] * (6 - len(row)) for row in rows], dtype=torch.float32)[:, :, None, None]


def test_the_mean_is_over_tokens_that_are_not_padding() -> None:
    """Kills: a mean over all places, padding's embedding in the sum, ids in another order of places, 0 / 0."""
    mean = MeanEmbedding(5, 2)
    with torch.no_grad():
        mean.embedding.weight.copy_(torch.tensor([[100.0, 100.0], [1.0, 2.0], [3.0, 5.0], [-2.0, 0.0], [8.0, 1.0]]))
    found = mean(tokens([1, 2], [4], [], [2, 2, 3, 0, 1]))
    wanted = [[2.0, 3.5], [8.0, 1.0], [0.0, 0.0], [(3 + 3 - 2 + 1) / 4, (5 + 5 + 0 + 2) / 4]]
    assert found.tolist() == wanted


def test_an_id_that_float32_still_holds_has_its_own_embedding() -> None:
    """Kills: ids through half precision or through a rounded mean."""
    mean = MeanEmbedding(2**16 + 2, 1)
    with torch.no_grad():
        mean.embedding.weight.copy_(torch.arange(2**16 + 2, dtype=torch.float32).unsqueeze(1))
    assert mean(tokens([2**16 + 1], [2**16])).tolist() == [[2**16 + 1], [2**16]]


def test_the_whole_network_is_what_the_paper_says() -> None:
    """Kills: a missing or second ReLU, layers of other widths, a head before the hidden layers; taps of others."""
    model = build_model(DAN(vocabulary=7, dimension=3, hidden=(4, 2)), SHAPE, 5, generator(0, "weights"))
    own = dict(model.named_parameters())
    assert [tuple(p.shape) for p in own.values()] == [(7, 3), (4, 3), (4,), (2, 4), (2,), (5, 2), (5,)]
    x = tokens([1, 5, 6], [2])
    layers = [p.tolist() for p in own.values()]
    for row, found in zip(([1, 5, 6], [2]), model(x).tolist(), strict=True):
        values = [sum(layers[0][i][d] for i in row) / len(row) for d in range(3)]
        for weight, bias, is_hidden in ((1, 2, True), (3, 4, True), (5, 6, False)):
            values = [
                math.fsum(w * v for w, v in zip(line, values, strict=True)) + b
                for line, b in zip(layers[weight], layers[bias], strict=True)
            ]
            values = [max(v, 0.0) for v in values] if is_hidden else values
        assert found == pytest.approx(values, abs=1e-6)
    assert model.tap_names == ("body.2", "body.4")
    assert torch.equal(model.head(model.features(x)), model(x))


def test_no_hidden_layer_is_a_bag_of_words() -> None:
    """Kills: a hidden layer that nobody asked for; the same check as an MLP's, which needs one."""
    model = build_model(DAN(vocabulary=7, dimension=3, hidden=()), SHAPE, 5, generator(0, "weights"))
    assert [tuple(p.shape) for p in model.parameters()] == [(7, 3), (5, 3), (5,)]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"vocabulary": 1}, "vocabulary=1: must be at least 2; for example vocabulary=30000"),
        ({"dimension": 0}, "dimension=0: must be at least 1"),
        ({"hidden": (3, 0)}, r"hidden\.1=0: must be at least 1"),
    ],
)
def test_bad_fields(fields: dict[str, object], sentence: str) -> None:
    """Kills: a field that fails where the network is built."""
    with pytest.raises(ConfigError, match=sentence):
        DAN(**fields)  # pyright: ignore[reportArgumentType]


def test_models_take_what_they_are_for() -> None:
    """Kills: ids that are trained on as if they were amounts; pixels that are taken for ids; a limit that is off by
    one; an id without an embedding that is met in the middle of a run."""
    check_inputs(DAN(vocabulary=9), "dan", 9)
    check_inputs(MLP(), "mlp", None)
    with pytest.raises(ConfigError, match=r"model\.vocabulary=9: is not above 9, .*; set model\.vocabulary=10 or more"):
        check_inputs(DAN(vocabulary=9), "dan", 10)
    with pytest.raises(ConfigError, match=r"model\.name=dan: takes token ids, and the data are pixels"):
        check_inputs(DAN(), "dan", None)
    with pytest.raises(ConfigError, match=r"model\.name=mlp: takes pixels .* token ids; set model\.name=dan"):
        check_inputs(MLP(), "mlp", 9)


@pytest.mark.parametrize("name", ["fedmix", "naivemix", "mixup_local", "cbfl"])
def test_algorithms_that_change_rows_are_refused(name: str) -> None:
    """Kills: token ids that are averaged with others, or generated."""
    with pytest.raises(ConfigError, match=rf"algorithm\.name={name}: .* takes token ids, which are no amounts"):
        Experiment.from_mapping({"model": {"name": "dan"}, "algorithm": {"name": name}})
    with pytest.raises(ConfigError, match=r"local\.augment=crop_flip: is for images"):
        Experiment.from_mapping({"model": {"name": "dan"}, "local": {"augment": "crop_flip"}})


def test_there_are_no_sub_networks() -> None:
    """Kills: embeddings cut as if their first axis were channels."""
    assert outline(DAN()).not_narrowed is not None
