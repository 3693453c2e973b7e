"""CINIC-10, Omniglot, Tiny-ImageNet and ImageNet-200 from small copies of their exact layouts; crops and memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.base.errors import ConfigError, DataError
from engine.data import (
    Assignment,
    Cinic10,
    Dataset,
    ImageNet200,
    Natural,
    Omniglot,
    TinyImageNet,
)
from engine.data.samples.dataset import channel_statistics, stratified
from engine.data.sources import formats, image_folders
from engine.data.sources.cifar import CIFAR10_CLASSES
from engine.models import MODELS
from tests.support.small_images import colours, encode, flat, write


# ----------------------------------------------------------------------------------------- CINIC-10
def write_cinic10(root: Path) -> None:
    """Two images of each class for training, one each for validation and test; red tells split and class."""
    for place, (split, names) in enumerate((("train", "ab"), ("valid", "c"), ("test", "d"))):
        for label, folder in enumerate(image_folders.CINIC10_CLASSES):
            for name in names:
                write(root / split / folder / f"{name}.png", flat((60 * place + label, 0, 0), (32, 32), "png"))


def cinic10(root: Path, **fields: Any) -> tuple[list[int], list[int], Dataset]:
    data = Cinic10(root=str(root), **fields).load()
    return colours(data.train.images), colours(data.test.images), data


def test_cinic10_and_what_validation_is_for(tmp_path):
    """Kills: validation images in training by default; classes by order of the file system; their own constants."""
    write_cinic10(tmp_path)
    trained, tested, data = cinic10(tmp_path)
    assert trained == np.repeat(np.arange(10), 2).tolist() and tested == list(range(120, 130))
    assert data.train.labels.tolist() == trained and data.test.labels.tolist() == list(range(10))
    assert data.classes == CIFAR10_CLASSES and data.mean == (0.4789, 0.4723, 0.4305)
    joined, tested, data = cinic10(tmp_path, valid="train")
    assert joined == trained + list(range(60, 70)) and tested == list(range(120, 130))
    assert data.train.labels.tolist() == [*trained, *range(10)]
    trained, tested, _ = cinic10(tmp_path, valid="test")
    assert len(trained) == 20 and tested == list(range(60, 70))


def test_cinic10_is_coloured_throughout(tmp_path):
    """Kills: refusing the set for a grey file in it."""
    write_cinic10(tmp_path)
    write(tmp_path / "train" / "cat" / "a.png", flat(3, (32, 32), "png"))
    assert Cinic10(root=str(tmp_path)).load().train.images[6].tolist() == np.full((3, 32, 32), 3).tolist()


def test_a_cinic10_without_a_class_is_refused(tmp_path):
    """Kills: a class without images, numbered past."""
    write_cinic10(tmp_path)
    for file in (tmp_path / "test" / "deer").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"test: has no images of 1 of the 10 classes, .* 'deer'; unpack"):
        Cinic10(root=str(tmp_path)).load()


def test_only_what_a_subset_keeps_is_decoded(tmp_path, monkeypatch):
    """Kills: decoding 90,000 images for 12; another subset than that of the whole."""
    write_cinic10(tmp_path)
    whole = Cinic10(root=str(tmp_path)).load().train
    read: list[str] = []
    original = image_folders.read_files
    monkeypatch.setattr(image_folders, "read_files", lambda paths: (read.append(p[0]) or p for p in original(paths)))
    part = Cinic10(root=str(tmp_path), train_samples=12, test_samples=10).load().train
    rows = stratified(whole.labels, 12, "subset/train")
    assert len(read) == 22
    assert np.array_equal(part.images, whole.images[rows]) and np.array_equal(part.labels, whole.labels[rows])


# ----------------------------------------------------------------------------------------- Omniglot
ALPHABETS = {"images_background": {"Greek": 2, "Anglo-Saxon": 3}, "images_evaluation": {"Bengali": 1}}


def write_omniglot(root: Path, half: str = "", skip: int | None = None) -> None:
    """White paper (1) with a black square whose height is the drawer, and left of the middle; 1-bit PNG."""
    number = 0
    for folder, alphabets in ALPHABETS.items():
        for alphabet, characters in alphabets.items():
            for character in range(1, characters + 1):
                number += 1
                for drawer in range(1, 21):
                    if drawer == skip:
                        continue
                    ink = np.ones((105, 105), bool)
                    ink[: 5 * drawer, : 10 + 10 * character] = False
                    name = f"{number:04}_{drawer:02}.png"
                    write(root / half / folder / alphabet / f"character{character:02}" / name, encode(ink))


def ink(images: np.ndarray) -> np.ndarray:
    return (images > 127).mean(axis=(1, 2, 3))


@pytest.mark.parametrize("half", ["", "omniglot-py", "python"])
def test_omniglot_has_a_client_for_each_alphabet(tmp_path, half):
    """Kills: alphabets by half instead of name, characters numbered anew in each alphabet, black on white, 105 px."""
    write_omniglot(tmp_path, half)
    data = Omniglot(root=str(tmp_path), rotations=False).load()
    assert data.shape == (1, 28, 28)
    assert data.classes == (
        *(f"Anglo-Saxon/character{number:02}" for number in (1, 2, 3)),
        "Bengali/character01",
        *(f"Greek/character{number:02}" for number in (1, 2)),
    )
    assert (len(data.train), len(data.test)) == (6 * 15, 6 * 5)
    for split in (data.train, data.test):
        assert split.owners is not None
        assert split.owners.tolist() == np.array([0, 0, 0, 1, 2, 2])[split.labels].tolist()
    paper = data.train.images[:, 0, 27, 27]
    assert (paper == 0).all() and (data.train.images[:, 0, 0, 0] > 250).all()
    assignment = Natural().assign(data.train.labels, len(data.classes), data.train.owners)
    assert assignment.sizes().tolist() == [45, 15, 30]
    assert (data.mean, data.std) == channel_statistics(data.train.images)


def check_no_twin_in_training(data: Dataset) -> None:
    """No test image is a training image turned: the split is by drawers."""
    seen = {(label, image.tobytes()) for image, label in zip(data.train.images, data.train.labels, strict=True)}
    for image, label in zip(data.test.images[:, 0], data.test.labels, strict=True):
        for turns in range(4):
            turned = np.ascontiguousarray(np.rot90(image, turns))
            assert (label, turned.tobytes()) not in seen


def test_omniglot_splits_by_drawers_before_it_rotates(tmp_path):
    """Kills: PFLEGO's order (rotations, then the split), which ``split=images`` keeps as the paper's protocol."""
    write_omniglot(tmp_path)
    data = Omniglot(root=str(tmp_path)).load()
    assert (len(data.train), len(data.test)) == (6 * 60, 6 * 20)
    assert np.bincount(data.test.labels).tolist() == [20] * 6
    first = data.train.images[data.train.labels == 0]
    assert np.array_equal(first[1, 0], np.rot90(first[0, 0]))
    # the last five drawers drew the highest squares
    for label in range(6):
        most = ink(data.train.images[data.train.labels == label]).max()
        assert ink(data.test.images[data.test.labels == label]).min() > most
    check_no_twin_in_training(data)
    paper = Omniglot(root=str(tmp_path), split="images").load()
    assert np.bincount(paper.train.labels).tolist() == [60] * 6
    assert np.bincount(paper.test.labels).tolist() == [20] * 6
    with pytest.raises(AssertionError):
        check_no_twin_in_training(paper)


@pytest.mark.parametrize("split", ["drawers", "images"])
def test_omniglot_clients_are_tested_on_their_own_alphabet(tmp_path, split):
    """PFLEGO's setting: 60 and 20 images of each character. Kills: test images without owners, or of other clients."""
    write_omniglot(tmp_path)
    data = Omniglot(root=str(tmp_path), split=split, normalise=False).load()
    partition = Natural()
    assignment = partition.assign(data.train.labels, len(data.classes), data.train.owners)
    shared = partition.share_tests(assignment, data)
    counts = shared.class_counts(data.train.labels, 6)
    assert counts.tolist() == [[60, 60, 60, 0, 0, 0], [0, 0, 0, 60, 0, 0], [0, 0, 0, 0, 60, 60]]
    tested = Assignment(shared.tests).class_counts(data.test.labels, 6)
    assert np.array_equal(3 * tested, counts)
    model = MODELS.build({"name": "pflego_omniglot"}).build(data.shape, len(data.classes))
    assert model.head.in_features == 64


def test_an_omniglot_character_without_a_drawing_is_named(tmp_path):
    """Kills: drawers that shift by one."""
    write_omniglot(tmp_path, skip=7)
    with pytest.raises(DataError, match=r"character01: must hold .*, but has 19 of them; unpack"):
        Omniglot(root=str(tmp_path)).load()


def test_an_empty_omniglot_folder_is_named(tmp_path):
    """Kills: 30 alphabets for 50."""
    write_omniglot(tmp_path)
    (tmp_path / "images_evaluation").rename(tmp_path / "elsewhere")
    (tmp_path / "images_evaluation").mkdir()
    with pytest.raises(DataError, match=r"images_evaluation: has no folders; unpack images_evaluation\.zip again"):
        Omniglot(root=str(tmp_path)).load()


# ----------------------------------------------------------------------------------- Tiny-ImageNet
WNIDS = ("n02124075", "n01443537", "n04067472")  # as wnids.txt lists them: not sorted


def write_tiny_imagenet(root: Path) -> None:
    write(root / "wnids.txt", "\n".join(WNIDS) + "\n")
    write(root / "words.txt", "n01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\nn99999999\tother\n")
    for place, wnid in enumerate(WNIDS):
        write(root / "train" / wnid / f"{wnid}_boxes.txt", f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
        for number in range(2):
            write(root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", flat((40 * place + 10 * number, 0, 0)))
    rows = []
    for number, wnid in enumerate((WNIDS[1], WNIDS[0], WNIDS[2], WNIDS[1])):
        write(root / "val" / "images" / f"val_{number}.JPEG", flat((200 + 10 * number, 0, 0)))
        rows.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    write(root / "val" / "val_annotations.txt", "".join(rows))
    write(root / "test" / "images" / "test_0.JPEG", flat((255, 0, 0)))


@pytest.mark.parametrize("below", ["", "tiny-imagenet-200"])
def test_tiny_imagenet(tmp_path, below):
    """Kills: classes in the order of wnids.txt, validation labels by file order, unlabelled test images."""
    write_tiny_imagenet(tmp_path / below)
    data = TinyImageNet(root=str(tmp_path)).load()
    assert data.classes == ("goldfish", "Egyptian cat", "n04067472")
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert np.allclose(colours(data.train.images), [40, 50, 0, 10, 80, 90], atol=2)
    assert data.test.labels.tolist() == [0, 1, 2, 0]
    assert np.allclose(colours(data.test.images), [200, 210, 220, 230], atol=2)
    assert data.shape == (3, 64, 64) and data.mean == (0.4802, 0.4481, 0.3975)


def test_grey_images_among_imagenets_become_coloured(tmp_path):
    """The set has hundreds of them. Kills: refusing the set; one channel of three."""
    write_tiny_imagenet(tmp_path)
    write(tmp_path / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_0.JPEG", flat(77))
    data = TinyImageNet(root=str(tmp_path)).load()
    assert np.allclose(data.train.images[0], 77, atol=2)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: write(root / "val/val_annotations.txt", "val_0.JPEG\tn0\n"), "'val_0.JPEG n0' has no class of"),
        (lambda root: write(root / "val/val_annotations.txt", "\n"), "val_annotations.txt: is empty; get it again"),
        (lambda root: write(root / "wnids.txt", "\n".join([*WNIDS, "n5"])), "train: has no images of 1 .* 'n5'"),
        (lambda root: (root / "val/images/val_2.JPEG").unlink(), "val_2.JPEG: cannot be read"),
        (lambda root: write(root / "val/images/val_2.JPEG", flat((1, 2, 3))[:300]), "val_2.JPEG: not a readable image"),
    ],
)
def test_what_is_wrong_with_tiny_imagenet_is_named(tmp_path, spoil: Callable[[Path], None], message):
    """Kills: a KeyError, a truncated image filled with grey."""
    write_tiny_imagenet(tmp_path)
    spoil(tmp_path)
    with pytest.raises(DataError, match=message):
        TinyImageNet(root=str(tmp_path)).load()


# ------------------------------------------------------------------------------------- ImageNet-200
def write_imagenet(root: Path, wnids: list[str], images: int = 3) -> None:
    for label, wnid in enumerate(wnids):
        for split, count in (("train", images), ("val", 1)):
            for number in range(count):
                colour = (label % 25 * 10, 100 if split == "val" else 0, 20 * number)
                write(root / split / wnid / f"{wnid}_{number:02}.JPEG", flat(colour, (40, 20)))


def test_fedaligns_classes_are_the_published_ones():
    """The first eight of its list are n01729322, n01514668, ...: numbers 54, 7, ... of the sorted 1,000.

    Kills: numpy's new generator, another seed, a permutation of the sorted list's tail.
    """
    chosen = image_folders.fedalign_classes(tuple(f"n{number:08}" for number in range(1000)))
    assert len(set(chosen)) == 200 and list(chosen) == sorted(chosen)
    published = [54, 7, 894, 512, 126, 337, 988, 11]
    assert {f"n{number:08}" for number in published} <= set(chosen)
    assert "n00000000" not in chosen  # tench is not on the list


def test_imagenet200_takes_the_classes_of_a_list(tmp_path):
    """Kills: all classes of the folder, the order of the list, training images for validation, stretching."""
    write_imagenet(tmp_path, ["n01", "n02", "n03"])
    write(tmp_path / "list.txt", "n03\n\nn01\n")
    source = ImageNet200(root=str(tmp_path), class_list=str(tmp_path / "list.txt"), images_per_class=2, size=16)
    data = source.load()
    assert data.classes == ("n01", "n03") and data.shape == (3, 16, 16)
    assert data.train.labels.tolist() == [0, 0, 1, 1] and data.test.labels.tolist() == [0, 1]
    assert np.allclose(colours(data.train.images), [0, 0, 20, 20], atol=2)
    assert np.allclose(data.test.images[:, 1], 100, atol=2)
    assert data.mean == (0.485, 0.456, 0.406)


def test_imagenet200_draws_the_same_images_of_a_class_in_any_list(tmp_path):
    """Kills: the first ones; one stream for all classes; the order of the file system."""
    write_imagenet(tmp_path, ["n01", "n02"], images=12)
    kept = []
    for text in ("n01\nn02", "n02"):
        write(tmp_path / "list.txt", text)
        fields = {"class_list": str(tmp_path / "list.txt"), "images_per_class": 4, "size": 8}
        train = ImageNet200(root=str(tmp_path), **fields).load().train
        kept.append(train.images[-4:])
    assert np.array_equal(*kept)
    numbers = np.round(kept[0][:, 2, 4, 4] / 20).astype(int).tolist()
    assert len(set(numbers)) == 4 and numbers == sorted(numbers) and numbers != [0, 1, 2, 3]
    write(tmp_path / "list.txt", "n02")
    every = ImageNet200(root=str(tmp_path), class_list=str(tmp_path / "list.txt"), images_per_class=None, size=8)
    assert len(every.load().train) == 12


def test_imagenet200_of_a_folder(monkeypatch):
    """Kills: needing a list where there are 200 classes; taking whatever number there is."""
    wnids = [f"n{number:08}" for number in range(1000)]
    chosen = image_folders.fedalign_classes(tuple(wnids))
    for present in (wnids, chosen):
        monkeypatch.setattr(image_folders, "_folders", lambda parent, names=present: [parent / name for name in names])
        assert ImageNet200()._wnids(Path("train")) == chosen
    monkeypatch.setattr(image_folders, "_folders", lambda parent: [parent / name for name in chosen[1:]])
    with pytest.raises(DataError, match=r"train: has 199 classes, but must have 1,000 .* data\.class_list"):
        ImageNet200()._wnids(Path("train"))


def test_too_few_images_of_a_class_are_refused(tmp_path):
    """Kills: a class of three among classes of 500."""
    write_imagenet(tmp_path, ["n01"])
    write(tmp_path / "list.txt", "n01")
    with pytest.raises(ConfigError, match=r"data\.images_per_class=500: is more than the 3 .* n01; unpack .*=3"):
        ImageNet200(root=str(tmp_path), class_list=str(tmp_path / "list.txt")).load()
    with pytest.raises(DataError, match=r"other\.txt: cannot be read"):
        ImageNet200(root=str(tmp_path), class_list=str(tmp_path / "other.txt")).load()


# ---------------------------------------------------------------------------------- crops and memory
def test_a_crop_keeps_the_middle_and_the_proportions():
    """At 7 -> 8/7: of 40x16 the middle 14x14 is kept, 1:2. Kills: stretching, a corner, no margin."""
    pixels = np.zeros((16, 40, 3), np.uint8)
    pixels[1:15, 13:27] = 255
    cut = formats.decode_images([("x", encode(pixels))], 1, 7, "RGB", crop=True)
    assert cut.shape == (1, 3, 7, 7)
    assert (cut[:, :, 1:-1, 1:-1] == 255).all() and cut.min() > 150  # bilinear: the rim sees its neighbours
    smaller = np.zeros((16, 40, 3), np.uint8)
    smaller[4:12, 16:24] = 255
    assert formats.decode_images([("x", encode(smaller))], 1, 7, "RGB", crop=True)[..., 0, :].max() == 0


def test_a_crop_equals_resizing_then_cutting():
    """On a smooth picture, within what two roundings and JPEG's coarser scales leave. Kills: a wrong scale."""
    ramp = np.add.outer(np.arange(300) * 0.3, np.arange(400) * 0.4).astype(np.uint8)
    picture = Image.fromarray(np.stack([ramp] * 3, axis=2))
    expected = np.asarray(picture.resize((round(400 * 32 / 300), 32), Image.Resampling.BILINEAR))[2:30, 7:35]
    for kind in ("png", "jpeg"):
        cut = formats.decode_images([("x", encode(np.asarray(picture), kind))], 1, 28, "RGB", crop=True)
        assert np.abs(cut[0].transpose(1, 2, 0).astype(int) - expected).max() <= 5


def test_a_crop_of_a_jpeg_is_not_coarser_than_its_size():
    """Stripes of 4 pixels at the size asked for. Kills: JPEG decoded at 1/8 where 1/4 is enough, then enlarged."""
    stripes = np.tile(np.repeat(np.array([30, 220], np.uint8), 16), (128, 4))
    cut = formats.decode_images([("x", encode(stripes, "jpeg"))], 1, 28, "L", crop=True)
    assert np.allclose(cut[0, 0], stripes[::4, ::4][2:30, 2:30], atol=2)


def test_cropped_images_keep_their_order():
    """More than one block of threads. Kills: images in the order in which threads finish."""
    encoded = [(str(n), flat((n % 250, 0, 0), (9, 9) if n % 2 else (60, 60), "png")) for n in range(600)]
    images = formats.decode_images(iter(encoded), 600, 4, "RGB", crop=True)
    assert colours(images) == [n % 250 for n in range(600)]


def test_a_set_that_does_not_fit_into_memory_is_refused_before_it_is_read(monkeypatch):
    """Kills: an allocation that the system kills later. The size that is offered fits, one more does not."""
    monkeypatch.setattr(formats, "memory_for_images", lambda: 1_000_000)
    read = []
    one = [(str(n), flat((n, 0, 0), (80, 80), "png")) for n in range(100)]

    def content():
        for item in one:
            read.append(item)
            yield item

    with pytest.raises(ConfigError, match=r"data\.size=64: makes 100 images of .*; set data\.size=57 or less, or"):
        formats.decode_images(content(), 100, 64)
    assert len(read) == 1
    assert formats.decode_images(one, 100, 57).shape == (100, 3, 57, 57)
    with pytest.raises(ConfigError):
        formats.decode_images(one, 100, 58)
