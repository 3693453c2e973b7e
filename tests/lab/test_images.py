"""What a generator makes: how near it is to training images, whether the model takes it for what was asked for."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from algorithms.cbfl import Cbfl
from algorithms.fedavg import FedAvg
from algorithms.generators import images
from engine.algorithm import Generative, Net, ParamLayout, Tensors, seeds
from engine.base.errors import ConfigError, RunFolderError
from engine.base.owned import owned
from engine.client.steps.flat_net import FlatNet
from engine.data import Dataset
from engine.data.samples.batches import Rows
from engine.experiment import Experiment
from engine.models import MLP
from engine.record.shapes import RUN
from engine.results.claims import Claim
from engine.results.loading import load
from engine.run.run import run
from engine.sweeps.definition import Sweep
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.named import NamedSweep
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.figures import generated as generated_picture
from fedskew.lab.images import nearest
from fedskew.lab.images.generated import look, measure
from fedskew.lab.images.sweep import look_at_sweep
from fedskew.lab.report import write as write_report
from tests.support.bench import CPU, Bench
from tests.support.folders import content
from tests.support.tiny import CLASSES, SUITED, dataset, drive, experiment

pytestmark = pytest.mark.slow

CBFL: dict[str, Any] = {"name": "cbfl", **SUITED["cbfl"]}


def by_hand(x: np.ndarray, data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Rows and distances, one pair of images after the other: x float64 [n, ...] normalised."""
    mean, std = (np.array(values)[:, None, None] for values in (data.mean, data.std))
    train = (data.train.images / 255 - mean) / std
    distances = np.array([[np.sqrt(((one - other) ** 2).mean()) for other in train] for one in x])
    return distances.argmin(1), distances.min(1)


def rows(data: Dataset, split: str = "train", dtype: torch.dtype = torch.float64) -> Rows:
    return Rows(data, getattr(data, split), CPU, dtype)


# --- distances --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [1, 5000, 2**26])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 4, 5)])
def test_distances_by_hand(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, shape: tuple[int, int, int]) -> None:
    """Kills: a row of the chunk for a row of the split, a chunk that is passed over, a norm that is no mean, a mean
    over pixels but not over channels."""
    monkeypatch.setattr(nearest, "CHUNK_BYTES", chunk_bytes)
    data = dataset(50, shape)
    x = torch.randn(7, *shape, generator=seeds.generator(0, "x"), dtype=torch.float64)
    found, apart = nearest.nearest(x, rows(data))
    wanted, distances = by_hand(x.numpy(), data)
    assert found.tolist() == wanted.tolist()
    np.testing.assert_allclose(apart, distances, rtol=1e-12)


def test_a_copy_has_distance_0() -> None:
    """Kills: the rounding of a product of matrices in a distance; a row that is called its own second nearest."""
    data = dataset(60)
    train = rows(data, dtype=torch.float32)
    x = train.batch(torch.tensor([59, 3, 31]))[0]
    found, apart = nearest.nearest(x, train)
    assert found.tolist() == [59, 3, 31]
    assert apart.tolist() == [0, 0, 0]
    np.testing.assert_allclose(nearest.nearest(x + 0.25, train)[1], 0.25, rtol=1e-6)


# --- figures ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copying(Generative, FedAvg):
    """Gives back the first training images of each class, moved by a step; its model sees class 2 in all but those of
    class 1, which it takes for class 1."""

    step: float = 0.0
    asks: bool = True

    def generate(self, server: Tensors, labels: Tensor, layout: ParamLayout, rng: torch.Generator) -> Tensors:
        train = rows(dataset())
        place = [int(torch.nonzero(train.labels == label)[0, 0]) for label in labels]
        made = {"images": train.batch(torch.tensor(place))[0] + self.step}
        return {**made, "labels": labels} if self.asks else made

    def predict(self, net: Net, x: Tensor) -> Tensor:
        ones = self.generate({}, torch.tensor([1]), ParamLayout(0, 0, 0, 0, 0), torch.Generator())["images"]
        return torch.eye(CLASSES)[[1 if torch.equal(one, ones[0]) else 2 for one in x]]


def measured(algorithm: Generative, probe: int = 12) -> tuple[pd.DataFrame, pd.DataFrame, Any]:
    bench = Bench(MLP(hidden=(4,)))
    assert isinstance(bench.net, FlatNet)
    return measure(algorithm, bench.start, bench.net, dataset(), probe, seeds.generator(0, "any"))


def test_figures_by_hand() -> None:
    """Kills: decisions compared with the wrong class, distances of other rows, a test set that is compared with itself,
    more images of one class than of another."""
    made, real, panels = measured(Copying())
    assert made["class"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert (made["class"] == made["decided"]).sum() == 6
    assert (made["distance"] == 0).all()
    labels = dataset().train.labels
    assert labels[made["nearest"]].tolist() == made["class"].tolist() == made["nearest_class"].tolist()
    mean, std = 0.5, 0.25
    x = (dataset().test.images[real["row"]] / 255 - mean) / std
    wanted, distances = by_hand(x, dataset())
    assert real["nearest"].tolist() == wanted.tolist() and len(real) == 12
    np.testing.assert_allclose(real["distance"], distances, rtol=1e-6)
    assert dataset().test.labels[real["row"]].tolist() == real["class"].tolist()
    np.testing.assert_array_equal(panels.generated, panels.nearest)
    first = [int(np.flatnonzero(labels == label)[0]) for label in range(CLASSES)]
    np.testing.assert_array_equal(panels.generated[:, 2], dataset().train.images[first])
    assert panels.names == tuple("abcd")


def test_images_of_no_class_agree_with_none() -> None:
    """Kills: an agreement by chance of what was asked for no class."""
    made, _, panels = measured(Copying(asks=False))
    assert "class" not in made and "decided" in made
    assert panels.names == ("",) * CLASSES


def test_the_mosaic_by_hand() -> None:
    """Kills: images in another order, gaps of no width, channels for rows."""
    tiles = np.arange(2 * 3 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 3, 4, 5)
    mosaic = generated_picture._mosaic(tiles)
    gap = generated_picture.GAP
    assert mosaic.shape == (2 * 4 + gap, 3 * 5 + 2 * gap, 4)
    for row in range(2):
        for column in range(3):
            top, left = row * (4 + gap), column * (5 + gap)
            tile = mosaic[top : top + 4, left : left + 5]
            np.testing.assert_array_equal(tile[..., :3], tiles[row, column].transpose(1, 2, 0))
            assert (tile[..., 3] == 255).all()
    assert (mosaic[4 : 4 + gap, :, 3] == 0).all() and (mosaic[:, 5 : 5 + gap, 3] == 0).all()
    np.testing.assert_array_equal(generated_picture._mosaic(tiles[:, :, :1])[:4, :5, 1], tiles[0, 0, 0])


# --- what cbfl generates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", ["cbfl", "dcgan", "gaussian_noise"])
def test_what_the_server_generates(tmp_path: Path, generator: str) -> None:
    """Kills: a generator that is not the one clients use, labels that are not passed on, one client's generator for
    all, classes that are said of images made for none."""
    settings = experiment(algorithm={"name": "cbfl", "generator": generator}, rounds=1, participation={"count": 2})
    server = drive(tmp_path, settings).server
    bench, algorithm = Bench(MLP(hidden=(12,))), settings.chain[0].algorithm
    assert isinstance(algorithm, Cbfl)
    layout, labels = bench.net.layout, torch.arange(CLASSES).repeat(3)
    before = {name: tensor.clone() for name, tensor in server.items()}
    made = algorithm.generate(server, labels, layout, seeds.generator(1, "any"))
    again = algorithm.generate(server, labels, layout, seeds.generator(1, "any"))
    other = algorithm.generate(server, labels, layout, seeds.generator(2, "any"))
    assert made["images"].shape == (12, 1, 8, 8) and made["images"].dtype == torch.float32
    assert torch.equal(made["images"], again["images"]) and not torch.equal(made["images"], other["images"])
    assert ("labels" in made) == (generator == "cbfl")
    assert all(torch.equal(before[name], server[name]) for name in server)
    spec, rng = algorithm.spec(layout), seeds.generator(1, "any")
    noise = torch.randn(12, algorithm.noise, generator=rng)
    if generator == "cbfl":
        wanted = images(spec, server["generator"], noise, labels)
        torch.testing.assert_close(made["images"], wanted, rtol=0, atol=0)
    if generator == "dcgan":
        lenders = torch.randint(len(server["generators"]), (12,), generator=rng).tolist()
        assert len(set(lenders)) > 1
        for place, lender in enumerate(lenders):
            one = images(spec, server["generators"][lender], noise[place, None], labels[place, None])
            torch.testing.assert_close(made["images"][place], one[0], rtol=1e-5, atol=1e-6)


def test_generators_of_clients_alone_are_refused() -> None:
    """Kills: a KeyError where no generator is on the server."""
    algorithm, bench = Cbfl(gen_scope="client", teacher="current"), Bench(MLP(hidden=(4,)))
    with pytest.raises(ConfigError, match=r"^algorithm.gen_scope=client: leaves no generator on the server; set gen_s"):
        algorithm.generate(bench.start, torch.arange(2), bench.net.layout, torch.Generator())
    noise = Cbfl(generator="gaussian_noise")
    assert "images" in noise.generate(bench.start, torch.arange(2), bench.net.layout, torch.Generator())


# --- a run ------------------------------------------------------------------------------------------------------


def config(**changes: Any) -> Experiment:
    values: dict[str, Any] = {
        "name": "small",
        "data": {"name": "fashion_mnist_sample", "train_samples": 60, "test_samples": 40},
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "mlp", "hidden": [6]},
        "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
        "participation": {"count": 2},
        "checkpoint": {"every": 1, "keep": 3},
        "execution": {"actors": 0, "device": "cpu"},
        "algorithm": CBFL,
        "stages": [
            {"name": "warmup", "algorithm": {"name": "fedavg"}, "rounds": 1},
            {"name": "cbfl", "needs": ["warmup"], "rounds": 2},
        ],
    }
    return Experiment.from_mapping(values | changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(config(), folder)
    return folder


def unlooked(folder: Path) -> dict[str, str]:
    return {name: sha for name, sha in content(folder).items() if not name.startswith("images/")}


def test_the_command_writes_everything_twice_the_same(call: Any, finished: Path) -> None:
    """Kills: a file that is promised and not written, draws without a key, a round that is another's, anything written
    elsewhere; a page or a table whose figures are not those of the rows."""
    before = unlooked(finished)
    code, _, err = call("images", str(finished), "--probe", "40")
    assert code == 0, err
    folder = finished / "images" / "round-000003-cbfl"
    tables = {f"{name}.{kind}" for name in ("generated", "test") for kind in ("csv", "parquet")}
    assert {path.name for path in folder.iterdir()} == tables | {"generated.png", "shown.safetensors", "summary.json"}
    assert set(folder.iterdir()) <= set(owned(finished, RUN))  # and go with the run when it is overwritten
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert call("images", str(finished), "--round", "3", "--probe", "40")[0] == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert call("images", str(finished), "--round", "2", "--probe", "40")[0] == 0
    about, earlier = (
        json.loads((finished / "images" / f"round-00000{n}-cbfl" / "summary.json").read_text()) for n in (3, 2)
    )
    assert (about["round"], earlier["round"]) == (3, 2) and about["nearest_distance"] != earlier["nearest_distance"]
    made, real = (pd.read_parquet(folder / f"{name}.parquet") for name in ("generated", "test"))
    assert len(made) == len(real) == about["images"] == about["test_images"] == 40
    assert about["options"] == {"probe": 40}
    assert about["nearest_distance"] == pytest.approx(made["distance"].mean())
    assert about["nearest_distance_test"] == pytest.approx(real["distance"].mean())
    assert about["nearest_ratio"] == pytest.approx(made["distance"].mean() / real["distance"].mean())
    assert about["generated_agreement"] == (made["class"] == made["decided"]).mean()
    assert f"{100 * about['generated_agreement']:.1f} %" in err and "generated.png" in err
    assert unlooked(finished) == before
    assert (load(finished).trials["nearest_ratio"] == about["nearest_ratio"]).all()
    page = write_report(finished).read_text()
    assert (
        "<img " in page.partition('<section id="images">')[2].partition("</section>")[0]
        and (finished / "report" / "images-1.png").exists()
    )


def test_the_teacher_decides(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the global model as judge of images that were made for an older one (CBFL, eq. 7); a judge nobody asks."""
    names = ("weights", "buffers", "teacher", "teacher_buffers")
    server = {name: torch.full((2,), float(place)) for place, name in enumerate(names)}
    assert [own[0].item() for own in Cbfl().judge(server).values()] == [2, 3]
    assert [own[0].item() for own in Cbfl().judge({name: server[name] for name in names[:2]}).values()] == [0, 1]
    own = Cbfl.judge
    monkeypatch.setattr(Cbfl, "judge", lambda self, server: {k: 0 * v for k, v in own(self, server).items()})
    assert (look(finished, 3, 40).generated["decided"] == 0).all()  # a network of zeros finds all classes alike


def test_draws_are_keyed_by_round_and_seed(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the same noise after every round; noise that another command shares."""
    asked = list[tuple[Any, ...]]()
    original = seeds.generator
    monkeypatch.setattr(seeds, "generator", lambda *key: asked.append(key) or original(*key))
    look(finished, 2, 20)
    look(finished, None, 20)
    assert [key for key in asked if "images" in key[1]] == [(0, "generated images", 2), (0, "generated images", 3)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--round", "1"], "--round=1: has no checkpoint of a stage that generates images; rounds that have one: 2, 3"),
        (["--round", "9"], "--round=9: has no checkpoint"),
    ],
)
def test_what_is_refused(call: Any, finished: Path, words: list[str], said: str) -> None:
    """One sentence and exit code 2. Kills: a traceback."""
    code, _, err = call("images", str(finished), *words)
    assert code == 2
    assert said in " ".join(err.split()) and "Traceback" not in err


def test_a_run_that_generates_nothing(call: Any, tmp_path: Path) -> None:
    """Kills: a sentence that does not say what to do; a warm-up that is taken for what comes after it."""
    run(config(algorithm={"name": "fedavg"}), tmp_path / "fedavg")
    code, _, err = call("images", str(tmp_path / "fedavg"))
    assert code == 2
    assert "algorithm.name=fedavg: generates no images; name a run of cbfl" in " ".join(err.split())
    code, _, err = call("images", str(tmp_path / "none"))
    assert code == 2 and "is not a run folder" in err
    (tmp_path / "cbfl.yaml").write_text(config().to_yaml())
    assert call("run", str(tmp_path / "cbfl.yaml"), "--out", str(tmp_path / "begun"), "--until", "1")[0] == 0
    code, _, err = call("images", str(tmp_path / "begun"))
    assert code == 2 and "has no checkpoint of stage cbfl yet; fedskew resume goes on to it" in " ".join(err.split())


def test_a_damaged_checkpoint_is_told(tmp_path: Path) -> None:
    """Kills: a command that repairs what it only reads, or takes another round for the last one without a word."""
    run(config(), tmp_path)
    newest = max((tmp_path / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-3])
    before = content(tmp_path)
    for number in (None, 3):
        with pytest.raises(RunFolderError, match="damaged"):
            look(tmp_path, number, 10)
    assert look(tmp_path, 2, 10).round == 2
    assert content(tmp_path) == before


# --- a sweep ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg and CBFL, two seeds."""
    from ray import tune

    folder = SweepFolder(tmp_path_factory.mktemp("sweep") / "it")
    methods = [{"name": "fedavg"}, CBFL]
    claim = Claim("no copies", "", {"algorithm": CBFL}, metric="nearest_ratio", kind="above", margin=1.0)
    definition = Sweep(
        base=config(stages=[], rounds=1),
        space={"algorithm": tune.grid_search(methods)},
        seeds=(0, 1),
        claims=(claim,),
        images=True,
    )
    folder.create(NamedSweep("mine.it", "laptop", (), "A sweep", definition), {})
    for number, (setting, seed) in enumerate((s, seed) for s in definition.settings() for seed in definition.seeds):
        folder.write(TrialRecord(f"{number:05d}", setting, seed, "finished", None, 1, 1, 1))
        run(definition.experiment(setting, seed), folder.run_folder(f"{number:05d}").path)
    return folder.path


def test_a_sweep_is_looked_at_and_judged(sweep: Path, messages: Any) -> None:
    """Kills: figures of another trial; a sweep that ends at the first trial without images; a claim that cannot be
    made of them, a picture that the report leaves out."""
    assert "nearest_ratio" not in load(sweep).trials
    frame = look_at_sweep(sweep, probe=20)
    assert frame["trial"].tolist() == ["00002", "00003"] and frame["seed"].tolist() == [0, 1]
    trials = load(sweep, "nearest_ratio").trials.set_index("trial")
    for row in frame.to_dict("records"):
        for name in ("generated_agreement", "nearest_distance", "nearest_distance_test", "nearest_ratio"):
            assert trials[name][row["trial"]] == row[name]
    assert trials["nearest_ratio"][["00000", "00001"]].isna().all()
    [verdict] = judge(load(sweep))
    assert verdict.effect == pytest.approx(frame["nearest_ratio"].mean())
    assert (verdict.verdict == "held") == (verdict.low > 1)
    page = write_report(sweep).read_text()
    section = page.partition('<section id="images">')[2].partition("</section>")[0]
    assert section.count("<img ") == 1 and "images generated after round 1" in section


@pytest.mark.parametrize("wanted", [False, True])
def test_a_sweep_that_asks_for_it_is_looked_at_before_its_report(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """Kills: a report without the figures that its claims are about; a flag that makes another sweep of it."""
    from engine.sweeps.options import How
    from engine.sweeps.running import SweepResult
    from fedskew.cli import sweep as cli_sweep
    from fedskew.lab.images import sweep as imaged
    from fedskew.lab.sweeping import measuring

    order = list[str]()

    def look_at_sweep(folder: Path, **words: Any) -> pd.DataFrame:
        assert folder == sweep
        order.append("images")
        return pd.DataFrame({"trial": ["00000"]})

    monkeypatch.setattr(imaged, "look_at_sweep", look_at_sweep)
    monkeypatch.setattr(cli_sweep, "report", lambda *words: order.append("report"))
    plain = NamedSweep("mine.it", "laptop", (), "A sweep", Sweep(base=config(), space={}))
    named = dataclasses.replace(plain, sweep=dataclasses.replace(plain.sweep, images=wanted))
    assert named.digest == plain.digest
    done = SweepResult(sweep, 4, {"finished": 4}, 8, 8, interrupted=False)
    monkeypatch.setattr(measuring, "run_sweep", lambda *_: done)
    assert cli_sweep._run(named, sweep, How(), None, ()) == 0
    assert order == (["images", "report"] if wanted else ["report"])
