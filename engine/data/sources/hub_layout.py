"""The parquet files of a folder, by configuration and split: the layouts in which Hugging Face's hub keeps data sets.

train.parquet, train-00000-of-00002.parquet       in the folder itself, or in data/
CONFIG/train-00000-of-00001.parquet               a folder for each configuration, with or without data/
CONFIG/train/0000.parquet                         the branch of data that the hub has converted
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from engine.base.errors import DataError, nearest, require
from engine.data.samples.notes import listed, note, warn
from engine.data.sources.formats import visible_files
from engine.data.sources.splits import OURS, OwnSource, snapshot

DEEPEST = 4  # folders below the root in which files are looked for

_SHARD = re.compile(r"(.+?)-(\d+)-of-(\d+)(-[0-9a-f]+)?")


def hub_files(source: OwnSource, folder: Path, config: str | None) -> dict[str, list[Path]]:
    """Find the parquet files of our splits in ``folder``: train and test, or train alone where test rows are held out.

    Raises :class:`DataError` for a split that has no files, and :class:`ConfigError` for a configuration that is not
    there, or is one of several and was not asked for.
    """
    root = snapshot(folder)
    configs = _configs(root, source.names.values())
    found = _chosen(source, root, configs, config)
    source.check_test(source.names["test"] in found)
    wanted = [ours for ours in OURS if source.test_fraction is None or ours == "train"]
    for ours in wanted:
        if source.names[ours] not in found:
            raise _missing(source, root, ours, found)
    files = {ours: found[source.names[ours]] for ours in wanted}
    for ours, paths in files.items():
        _check_shards(source.names[ours], paths)
    there, taken = _parquet_below(root), {path for paths in files.values() for path in paths}
    unread = sorted(str(path.relative_to(root)) for path in there if path not in taken)
    note(f"parquet files left unread, of other splits, configurations or folders: {listed(unread, 3)}", len(unread))
    return files


def _check_shards(split: str, paths: Sequence[Path]) -> None:
    """Refuse a split that lacks one of its shards, or has those of two exports; tell of what may be a copy."""
    shards = [found for path in paths if (found := _SHARD.fullmatch(path.stem))]
    if shards:
        counts, numbers = {int(one[3]) for one in shards}, sorted(int(one[2]) for one in shards)
        whole = [[*range(first, first + min(counts))] for first in (0, 1)]
        if len(counts) > 1 or len(shards) < len(paths) or numbers not in whole:
            names = listed([path.name for path in paths], 6)
            rule = f"the split {split} lacks files, or has those of several exports ({names})"
            raise DataError(f"{paths[0].parent}: {rule}; leave one whole export there")
    elif len(paths) > 1 and any(path.stem == split for path in paths):
        warn(f"{split} is read from {listed([path.name for path in paths], 6)}: are rows in them twice?")
    files = sorted(one.name for one in paths[0].parent.iterdir() if one.is_file() and not one.name.endswith(".parquet"))
    if left := [name for name in files if name.lower().startswith(split)]:
        warn(f"left unread, by their suffix: {listed(left, 5)}")


def _missing(source: OwnSource, root: Path, ours: str, found: Collection[str]) -> DataError:
    """The error for a split without files, which says what there is."""
    missing = f"data.root={source.root}: has no {source.names[ours]}-*.parquet"
    if not found:
        return DataError(f"{missing} (looked in {root.absolute()} and below)")
    repairs = [f"data.splits='{{{ours}: {name}}}'" for name in sorted(found) if name not in source.names.values()][:1]
    repairs += ["data.test_fraction=0.1 to set training rows aside"] if ours == "test" else []
    repair = f"set {', or '.join(repairs) or 'data.root'}"
    return DataError(f"{missing}; its splits are {', '.join(sorted(found))}; {repair}")


def _chosen(
    source: OwnSource, root: Path, configs: Mapping[str, Mapping[str, list[Path]]], config: str | None
) -> Mapping[str, list[Path]]:
    """The splits of the configuration that is meant."""
    if config is not None:
        named = [name for name in configs if name]
        repair = nearest(config, named) if named else "leave it out: there are none"
        require(config in named, "data.config", config, f"is no configuration of data.root={source.root}", repair)
        return configs[config]
    whole = {name: splits for name, splits in configs.items() if source.names["train"] in splits}
    if "" in whole:
        return whole[""]
    rule, repair = f"must be one of data.root={source.root}, which has several", f"known: {', '.join(sorted(whole))}"
    require(len(whole) <= 1, "data.config", None, rule, repair)
    if whole:
        return next(iter(whole.values()))
    return configs.get("") or {split: paths for splits in configs.values() for split, paths in splits.items()}


def _configs(root: Path, names: Collection[str]) -> dict[str, dict[str, list[Path]]]:
    """The files of each split of each configuration; "" is the one without a name."""
    known = {*names, *OURS, "validation", "valid", "val", "dev"}
    found: dict[str, dict[str, dict[Path, list[Path]]]] = {}
    for path in sorted(_parquet_below(root)):
        config, split = _place(path.relative_to(root), known)
        found.setdefault(config, {}).setdefault(split, {}).setdefault(path.parent, []).append(path)
    # The files of a split lie in one folder: the nearest, so that what lies deeper is not taken for more of it.
    return {
        config: {split: folders[min(folders, key=lambda one: len(one.parts))] for split, folders in splits.items()}
        for config, splits in found.items()
    }


def _place(path: Path, known: Collection[str]) -> tuple[str, str]:
    """The configuration and the split of a file by its path; ``known``: names that are splits wherever they stand."""
    shard = _SHARD.fullmatch(path.stem)
    whole = shard[1] if shard else path.stem
    first, folders = path.stem.partition("-")[0], list(path.parts[:-1])
    if whole in known or first in known:
        split = whole if whole in known else first
    elif folders and (folders[-1] in known or path.stem.isdigit()):
        split = folders.pop()
    else:
        split = whole
    return "/".join(folder for folder in folders if folder != "data"), split


def _parquet_below(root: Path) -> Iterator[Path]:
    """Parquet files below ``root``; its folder data/ may be a link."""
    tops = [root] + ([root / "data"] if (root / "data").is_symlink() else [])
    for top in tops:
        yield from (path for path in visible_files(top, DEEPEST - (top != root)) if path.name.endswith(".parquet"))
