"""The work of making samples as JSON, for servers on other nodes: where the set lies, the recipe, and a few options."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from feeder.dataset.drawn_fields import CropBox, OriginalSize
from feeder.dataset.extras import Extra, NamedField, fields_of
from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.joined_reader import JoinedReader
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.subset_reader import PartReader
from feeder.decoders.decoder import FIDELITIES
from feeder.decoders.device.fused import DeviceSplit, split_for_device
from feeder.errors import ArgumentError
from feeder.loader.fast.sample_maker import Work
from feeder.shard.cache.mirror import CacheMirror
from feeder.transforms.recipe_json import recipe_from_json, recipe_to_json

if TYPE_CHECKING:
    from feeder.dataset.reader import Reader
    from feeder.transforms import Recipe

__all__ = ["OpenSet", "given_labels", "sent_splits", "work_from_json", "work_to_json"]

_MOST_SETS, _DEEPEST = 64, 8

# Opens a set by its kind, its path or URL, its version, and whether EXIF orientation applies.
OpenSet = Callable[[Literal["shards", "folder"], str, int | None, bool], "ShardReader | FolderReader"]


def work_to_json(work: Work) -> dict[str, Any]:
    """Returns work as JSON.

    Raises:
        ArgumentError: naming what can't be made on another node.
    """
    if type(work) is not Work:
        raise _refused("a collate_fn, which is the script's own code")
    if work.stager is not None:
        raise _refused(f"backend {work.backend!r}, which decodes in this process; set backend='cpu'")
    if work.pad is not None or work.largest is not None or work.recipe.is_variable:
        raise _refused("batches of different sizes, by buckets=, pad= or T.ByEpoch")
    for extra in work.extras:
        if not isinstance(extra, (NamedField, OriginalSize, CropBox)):
            raise _refused(f"{extra.name!r}, a target or a field of a kind of its own")
    try:
        recipe = recipe_to_json(work.recipe)
    except ArgumentError as error:
        raise ArgumentError(
            f"service= is for recipes without functions: {error}; leave the Lambda or the service out"
        ) from None
    return {
        "set": _set_to_json(work.reader),
        "recipe": recipe,
        "uint8": [split is not None for split in sent_splits(work)],
        "fields": [extra.name for extra in work.extras],
        "backend": work.backend,
        "fidelity": work.fidelity,
        "seed": work.seed,
        "skip": work.skip,
        **({"left_out": work.left_out.tolist()} if work.skip and len(work.left_out) else {}),
    }


def work_from_json(value: Mapping[str, Any], open_set: OpenSet) -> Work:
    """Returns the work that :func:`work_to_json` has written, where a set may lie elsewhere.

    Args:
        value: The JSON; trusted in nothing.
        open_set: Opens a set, or refuses it.

    Raises:
        ArgumentError: if it is not such JSON, or a set differs from the client's.
    """
    recipe = recipe_from_json(value.get("recipe"))
    uint8, fields, seed, skip = (value.get(name) for name in ("uint8", "fields", "seed", "skip"))
    names, left_out = (value.get("backend"), value.get("fidelity")), value.get("left_out", [])
    if (
        not isinstance(uint8, list)
        or len(uint8) != len(recipe.views)
        or not isinstance(fields, list)
        or type(seed) is not int
        or not 0 <= seed < 1 << 64
        or type(skip) is not bool
        or not isinstance(left_out, list)
        or any(type(each) is not int or not 0 <= each < 1 << 62 for each in left_out)
        or names[0] not in ("cpu", "pillow")
        or names[1] not in FIDELITIES
    ):
        raise ArgumentError("this is no work of this version of feeder")
    if any(each.output_size is None for each in recipe.views) or recipe.is_variable:
        raise ArgumentError("the recipe makes images of different sizes")
    splits = tuple(split_for_device(each) if wanted else None for each, wanted in zip(recipe.views, uint8, strict=True))
    extras: tuple[Extra, ...] = fields_of(fields)
    reader = _set_from_json(value.get("set"), open_set, 0)
    return Work(
        reader,
        recipe,
        names[0],
        extras,
        seed,
        skip,
        1,
        names[1],
        splits=splits,
        left_out=np.unique(np.array(left_out, np.int64)),
    )


def sent_splits(work: Work) -> tuple[DeviceSplit | None, ...]:
    """Returns the split of each recipe, whose CPU's side is done on servers: uint8 is a quarter of float32 to send.

    With a device that is the split of local workers, too. Without one, it is there where an affine map of the pixels is
    all that is left to do, which :meth:`Recipe.affine` says, and which gives the same bits here and there.
    """
    if work.splits:
        return work.splits
    return tuple(split_for_device(recipe) if _is_affine(recipe) else None for recipe in work.recipes)


def _is_affine(recipe: Recipe) -> bool:
    return recipe.is_base_path and recipe.output_dtype == "float32"


def given_labels(reader: Reader) -> npt.NDArray[Any] | None:
    """Returns the labels of all samples where they are the dataset's own, and not the set's: by target_transform=,
    classes=, labels= or a folder's names; None where the set has them."""
    return reader.labels() if any(_has_given_labels(each) for each, _ in _leaves(reader)) else None


def _has_given_labels(reader: Reader) -> bool:
    return not isinstance(reader, ShardReader) or reader.given_labels is not None


def _leaves(reader: Reader) -> list[tuple[Reader, None]]:
    if isinstance(reader, PartReader):
        return _leaves(reader.whole)
    if isinstance(reader, JoinedReader):
        return [leaf for each in reader.readers for leaf in _leaves(each)]
    return [(reader, None)]


def _set_to_json(reader: Reader) -> dict[str, Any]:
    if isinstance(reader, PartReader):
        ids = base64.b64encode(np.ascontiguousarray(reader.ids, np.int64).tobytes()).decode()
        return {"kind": "subset", "of": _set_to_json(reader.whole), "ids": ids}
    if isinstance(reader, JoinedReader):
        return {"kind": "sets", "of": [_set_to_json(each) for each in reader.readers], "own_index": reader.own_index}
    if type(reader) is FolderReader:
        return {"kind": "folder", "path": reader.root, "exif": reader.exif, "fingerprint": _fingerprint(reader)}
    if type(reader) is not ShardReader or reader.index.image_of is not None:
        raise _refused("a dataset with image_field= or of a class of its own")
    path = reader.mirror.options.url if isinstance(reader.mirror, CacheMirror) else reader.index.path
    options = {"version": reader.index.version, "exif": reader.exif}
    return {"kind": "shards", "path": path, **options, "fingerprint": _fingerprint(reader)}


def _set_from_json(value: Any, open_set: OpenSet, depth: int) -> Reader:
    if not isinstance(value, dict) or depth > _DEEPEST:
        raise ArgumentError("this is no set")
    kind, of = value.get("kind"), value.get("of")
    if kind == "subset":
        whole = _set_from_json(of, open_set, depth + 1)
        try:
            ids = np.frombuffer(base64.b64decode(value.get("ids", ""), validate=True), np.int64)
        except (binascii.Error, TypeError, ValueError):
            raise ArgumentError("this is no subset") from None
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(whole)):
            raise ArgumentError("a subset has samples that the set has not")
        return PartReader(whole, ids)
    if kind == "sets":
        if not isinstance(of, list) or not 0 < len(of) <= _MOST_SETS:
            raise ArgumentError("these are no sets")
        readers = [_set_from_json(each, open_set, depth + 1) for each in of]
        return JoinedReader(readers, own_index=value.get("own_index") is True)
    path, version, exif = value.get("path"), value.get("version"), value.get("exif")
    if kind not in ("shards", "folder") or not isinstance(path, str) or type(exif) is not bool or "\0" in path:
        raise ArgumentError("this is no set")
    if version is not None and (type(version) is not int or version < 1):
        raise ArgumentError("this is no version of a set")
    reader = open_set(kind, path, version, exif)
    if _fingerprint(reader) != value.get("fingerprint"):
        raise ArgumentError(f"{path}: the set here is not the client's: its samples or their order differ")
    return reader


def _fingerprint(reader: ShardReader | FolderReader) -> str:
    """Returns a hash of the samples and their order, whatever labels they were given."""
    if isinstance(reader, ShardReader):
        return reader.index.fingerprint()
    digest = hashlib.blake2b(digest_size=16)
    for i in range(len(reader)):
        digest.update(reader.path(i).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def _refused(what: str) -> ArgumentError:
    return ArgumentError(f"service= makes images and labels by a recipe, and not {what}: leave one of them out")
