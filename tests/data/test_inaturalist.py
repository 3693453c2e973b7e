"""iNaturalist 2019 and User-120k from small copies of their exact layouts: who owns which image."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.base.errors import DataError
from engine.data import INaturalist2019, INaturalistUser120k, Natural
from engine.data.samples.dataset import channel_statistics, stratified
from tests.support.small_images import colours, flat, write

# --------------------------------------------------------------------------------- iNaturalist 2019
CATEGORIES = [{"id": 7, "name": "Quercus alba", "genus": "Quercus"}, {"id": 3, "name": "Rana boylii"}]


def photo(number: int, category: int, holder: str | None, colour: int) -> dict[str, Any]:
    kind = {7: "Plants", 3: "Amphibians"}[category]
    name = f"train_val2019/{kind}/{category}/{number:032x}.jpg"
    fields = {"id": number, "width": 80, "height": 60, "file_name": name, "license": 1, "category": category}
    return {**fields, "colour": colour} if holder is None else {**fields, "colour": colour, "rights_holder": holder}


PHOTOS = {
    "train": [photo(12, 7, "zoe", 20), photo(11, 3, "bob", 10), photo(13, 7, "zoe", 30), photo(14, 3, None, 40)],
    "val": [photo(21, 3, "amy", 100), photo(22, 7, "bob", 110)],
}


def write_inaturalist(root: Path, **changes: Callable[[dict[str, Any]], object]) -> None:
    for split, photos in PHOTOS.items():
        rows = [{"id": n, "image_id": image["id"], "category_id": image["category"]} for n, image in enumerate(photos)]
        content = {"info": {}, "images": photos, "categories": CATEGORIES, "annotations": rows[::-1], "licenses": []}
        for image in photos:
            write(root / image["file_name"], flat((image["colour"], 0, 0), (80, 60)))
        content = json.loads(json.dumps(content))
        changes.get(split, lambda content: None)(content)
        write(root / f"{split}2019.json", json.dumps(content))


def test_inaturalist2019_has_a_client_for_each_rights_holder(tmp_path):
    """Kills: labels by order of annotations, owners by order of images, owners of test images among the clients."""
    write_inaturalist(tmp_path)
    data = INaturalist2019(root=str(tmp_path), size=16).load()
    assert data.classes == ("Rana boylii", "Quercus alba") and data.shape == (3, 16, 16)
    assert np.allclose(colours(data.train.images), [10, 20, 30, 40], atol=2)
    assert data.train.labels.tolist() == [0, 1, 1, 0] and data.test.labels.tolist() == [0, 1]
    assert data.train.owners is not None and data.test.owners is not None
    assert data.train.owners.tolist() == [1, 2, 2, 0]  # nobody, bob, zoe
    assert data.test.owners.tolist() == [3, 1]  # amy has no training image and comes last
    assignment = Natural().assign(data.train.labels, 2, data.train.owners)
    assert [part.tolist() for part in assignment.clients] == [[3], [0], [1, 2]]
    assert (data.mean, data.std) == channel_statistics(data.train.images)


@pytest.mark.parametrize(
    "columns",
    [("user_id", "image_id", "class"), ("client_id", "data_path", "label_name"), ("client_id", "sample_path")],
)
def test_inaturalist2019_with_the_users_of_a_csv_file(tmp_path, columns):
    """FedScale's mapping and others. Kills: rights holders beside it, images that it does not list."""
    write_inaturalist(tmp_path)
    images = {image["id"]: Path(image["file_name"]) for image in PHOTOS["train"]}
    rows = [("5", images[13]), ("40", images[11]), ("40", images[14])]
    named = [(user, path.stem if columns[1] == "image_id" else path, "x")[: len(columns)] for user, path in rows]
    with (tmp_path / "users.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *named])
    data = INaturalist2019(root=str(tmp_path), user_file=str(tmp_path / "users.csv"), size=8).load()
    assert np.allclose(colours(data.train.images), [10, 30, 40], atol=2)
    assert data.train.owners is not None
    assert data.train.owners.tolist() == [0, 1, 0]  # "40" and "5", by name
    assert data.test.owners is None and len(data.test) == 2


def test_a_subset_of_inaturalist_keeps_owners(tmp_path):
    """Kills: owners of all images beside the kept ones."""
    write_inaturalist(tmp_path)
    whole = INaturalist2019(root=str(tmp_path), size=8).load().train
    part = INaturalist2019(root=str(tmp_path), size=8, train_samples=2).load().train
    rows = stratified(whole.labels, 2, "subset/train")
    assert whole.owners is not None and part.owners is not None
    assert part.owners.tolist() == whole.owners[rows].tolist()
    assert np.array_equal(part.images, whole.images[rows])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("images"), r"train2019\.json: not a readable annotation file .*images.*download"),
        (lambda content: content["images"][0].pop("file_name"), r"not a readable annotation file .*file_name"),
        (lambda content: content["annotations"].pop(), "must have one annotation for each image, but has 3 for 4"),
        (lambda content: content["annotations"].append(content["annotations"][0]), "but has 5 for 4 images"),
        (lambda content: content["categories"].pop(), "has the category_id 3, which is no category"),
    ],
)
def test_what_is_wrong_with_an_annotation_file_is_named(tmp_path, change, message):
    """Kills: a KeyError; an image with the label of another."""
    write_inaturalist(tmp_path, train=change)
    with pytest.raises(DataError, match=message):
        INaturalist2019(root=str(tmp_path), size=8).load()


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff{"])
def test_a_broken_annotation_file_is_named(tmp_path, content):
    """Kills: a JSONDecodeError, a TypeError, a UnicodeDecodeError."""
    write_inaturalist(tmp_path)
    write(tmp_path / "val2019.json", content)
    with pytest.raises(DataError, match=r"val2019\.json: not a readable annotation file \(.*\); download it again"):
        INaturalist2019(root=str(tmp_path), size=8).load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,image_id\n1,a\n", "has no column user_id or client_id, but user, image_id; get"),
        ("user_id,image_id\n", "has no rows"),
        ("", "has no column user_id or client_id, but nothing"),
        ("user_id,image_id\n1,a\n,b\n", "row 3 has empty values"),
        ("user_id,image_id\n1,a\n2\n", "row 3 has empty values"),
        ("user_id,image_id\n1,a\n", "lists no training image of train2019.json; give data.user_file"),
    ],
)
def test_a_users_file_that_does_not_fit_is_named(tmp_path, text, message):
    """Kills: a KeyError, all images without an owner."""
    write_inaturalist(tmp_path)
    write(tmp_path / "users.csv", text)
    with pytest.raises(DataError, match=rf"users\.csv: {message}"):
        INaturalist2019(root=str(tmp_path), user_file=str(tmp_path / "users.csv"), size=8).load()


# ----------------------------------------------------------------------------- iNaturalist-User-120k
def write_user_120k(root: Path, below: str = "inaturalist-user-120k", test: str = "test.csv") -> None:
    """Users are numbers; ``class`` is the benchmark's label and ``label`` that of iNaturalist 2017."""
    places = {"a1": "Aves/Ara macao", "b2": "Aves/Ara macao", "c3": "Plantae/Acer rubrum", "d4": "Plantae/Acer rubrum"}
    for number, (stem, place) in enumerate(places.items()):
        write(root / "train_val_images" / place / f"{stem}.jpg", flat((50 * number, 0, 0), (50, 80)))
    train = "user_id,image_id,class,label\n901,c3,1,4000\n17,a1,0,12\n901,b2,0,12\n"
    write(root / below / "federated_train_user_120k.csv", train)
    write(root / below / test, "image_id,class,label\nd4,1,4000\n")


@pytest.mark.parametrize(("below", "test"), [("inaturalist-user-120k", "test.csv"), ("", "federated_test.csv")])
def test_inaturalist_user_120k(tmp_path, below, test):
    """Kills: the labels of 2017, users numbered as they come, an owner of test images."""
    write_user_120k(tmp_path, below, test)
    data = INaturalistUser120k(root=str(tmp_path), size=8).load()
    assert data.train.owners is not None
    assert data.train.labels.tolist() == [1, 0, 0] and data.train.owners.tolist() == [1, 0, 1]
    assert np.allclose(colours(data.train.images), [100, 0, 50], atol=2)
    assert data.test.labels.tolist() == [1] and data.test.owners is None
    assert np.allclose(colours(data.test.images), [150], atol=2)
    assert Natural().assign(data.train.labels, 2, data.train.owners).sizes().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda root: (root / "train_val_images/Aves/Ara macao/a1.jpg").unlink(),
            "has not 1 of the 3 .* a1.jpg; unpack",
        ),
        (
            lambda root: (root / "inaturalist-user-120k/test.csv").unlink(),
            "test.csv or federated_test.csv was not found .* download inaturalist-user-120k.zip",
        ),
        (
            lambda root: write(root / "inaturalist-user-120k/test.csv", "image_id,class\nd4,oak\n"),
            "test.csv: has the class 'oak', which is not a whole number from 0 on",
        ),
    ],
)
def test_what_is_wrong_with_user_120k_is_named(tmp_path, spoil, message):
    """Kills: a training set without some of its images, in silence."""
    write_user_120k(tmp_path)
    spoil(tmp_path)
    with pytest.raises(DataError, match=message):
        INaturalistUser120k(root=str(tmp_path), size=8).load()
