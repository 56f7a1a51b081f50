"""The work of making samples as JSON, for servers on other nodes: the set, the recipe, targets, fields and options."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feeder.dataset.extras import SourceNumber
from feeder.dataset.extras_json import extras_from_json, extras_to_json
from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.joined_reader import JoinedReader
from feeder.dataset.reader import Reader
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.subset_reader import SubsetReader, leaves
from feeder.dataset.target_values import targets_in
from feeder.decoders.decoder import FIDELITIES
from feeder.decoders.device.fused import DividedRecipe, divide_recipe
from feeder.errors import ArgumentError
from feeder.loader.fast.mixed_work import MixedWork
from feeder.loader.fast.sample_maker import Work
from feeder.order.buckets import Buckets
from feeder.service.frames import MOST_WORK_BYTES
from feeder.shard.cache.cache_mirror import CacheMirror
from feeder.system.arrays import AnyArray, Int64s, Size
from feeder.system.named_functions import AllowedFunctions, function_name, module_digest
from feeder.transforms import Recipe
from feeder.transforms.pad_to_batch import PadToBatch
from feeder.transforms.recipe_json import check_bounds, recipe_from_json, recipe_to_json

_MOST = 1 << 16  # pixels of a side
_MOST_VALUES = 1 << 16  # the most in the JSON of work: more take long to read
MOST_SETS, _DEEPEST = 1 << 12, 8
_MOST_REPEATED = 1 << 22  # ids of a subset of fewer samples
MOST_IDS = 1 << 27  # the most in all subsets together
# The most files whose sizes are compared. A file server answers 1,000 requests in less than a second; for all files of
# a large set it takes longer than to list them.
SIZED_FILES = 1024
_PAD = ("multiple", "value", "group_by_aspect")


def work_to_json(work: Work) -> dict[str, Any]:
    """Returns work as JSON.

    Raises:
        ArgumentError: naming what can't be made on another node.
    """
    if type(work) not in (Work, MixedWork):
        raise _refused("a collate_fn, which is the script's own code")
    if work.stager is not None:
        raise _refused(f"backend {work.backend!r}, which decodes in this process; set backend='cpu'")
    modules: dict[str, str] = {}
    first = work.by_source[0]

    def name_of(function: Callable[..., Any]) -> str:
        name = function_name(function)
        module = name.partition(":")[0]
        modules[module] = module_digest(module)
        return name

    exif = all(getattr(leaf, "exif", False) for leaf in leaves(work.reader))
    try:
        recipes = [recipe_to_json(each.recipe, name_of) for each in work.by_source]
        extras = extras_to_json(first.extras, name_of)
        _check_extras(first, extras, exif, modules)
        where = set_to_json(work.reader)
    except ArgumentError as error:
        raise _refused(str(error)) from None
    sources = None
    if isinstance(work, MixedWork):  # most have the recipe of the first
        own = [None if each == recipes[0] else each for each in recipes]
        sources = [*map(list, zip(work.names, own, strict=True))]
    return {
        "set": where,
        "recipe": recipes[0],
        "sources": sources,
        "uint8": [each is not None for each in sent_divided(work)],
        "extras": extras,
        "exif": exif,
        "modules": modules,
        "backend": work.backend,
        "fidelity": work.fidelity,
        "seed": work.seed,
        "skip": work.skip,
        "left_out": base64.b64encode(work.left_out.tobytes() if work.skip else b"").decode(),
        "largest": None if work.largest is None else list(work.largest),
        "groups": None if work.groups is None else [list(size) for size in work.groups.sizes],
        "pad": None if work.pad is None else {name: getattr(work.pad, name) for name in _PAD},
    }


def work_data(work: Work) -> bytes:
    """Returns the JSON of :func:`work_to_json`, the same bytes for the same work.

    Raises:
        ArgumentError: naming what can't be made on another node, or if it takes too much.
    """
    data = json.dumps(work_to_json(work), sort_keys=True, separators=(",", ":")).encode()
    if len(data) > MOST_WORK_BYTES:
        raise _refused(
            f"work whose description takes {len(data) >> 20} MiB, {MOST_WORK_BYTES >> 20} are allowed: for one, a "
            "subset of many millions of samples in no order"
        )
    try:
        check_work(data)
    except ArgumentError as error:
        raise _refused(str(error)) from None
    return data


def _check_extras(work: Work, extras: dict[str, Any], exif: bool, modules: dict[str, str]) -> None:
    """Refuses targets and fields that come out of JSON in another way than they went in."""
    function_of = functools.partial(AllowedFunctions(modules).find, digests=modules)
    again = extras_from_json(json.loads(json.dumps(extras)), work.recipe, exif, function_of, str)
    if again != work.extras and repr(again) != repr(work.extras):  # a NaN equals none
        raise ArgumentError("targets or fields with values that JSON can't hold")


def check_work(data: bytes) -> None:
    """Refuses work that is none, or takes too much, before any of it is opened or made.

    Args:
        data: Its JSON; trusted in nothing.

    Raises:
        ArgumentError: naming what is wrong.
    """
    if sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ArgumentError(f"recipe, fields and sources have more than {_MOST_VALUES:,} values; make them smaller")
    try:
        value = json.loads(data)
        check_bounds(value["recipe"], *value["extras"]["targets"])
        if len(value["sources"] or ()) > MOST_SETS:
            raise ArgumentError(f"a mixture of {len(value['sources']):,} sources, {MOST_SETS:,} are allowed")
        for _, own in value["sources"] or ():
            check_bounds(own)
    except ArgumentError:
        raise
    except (ValueError, RecursionError, LookupError, TypeError):
        raise ArgumentError("this is no work of this version of feeder") from None


def work_from_json(value: Mapping[str, Any], here: Any) -> Work:
    """Returns the work that :func:`work_to_json` has written, where a set may lie elsewhere.

    Args:
        value: The JSON; trusted in nothing.
        here: Opens sets and finds functions, or refuses them: a :class:`feeder.service.roots.Roots`.

    Raises:
        ArgumentError: if it is not such JSON, or a set differs from the client's.
    """
    modules = value.get("modules")

    def function_of(name: object) -> Callable[..., Any]:
        return here.functions.find(name, modules)  # type: ignore[no-any-return]

    recipe = recipe_from_json(value.get("recipe"), function_of)
    names = ("uint8", "extras", "exif", "seed", "skip", "backend", "fidelity")
    uint8, extras, exif, seed, skip, backend, fidelity = (value.get(name) for name in names)
    try:
        left_out = np.frombuffer(base64.b64decode(value.get("left_out", ""), validate=True), np.int64)
    except (TypeError, ValueError):
        left_out = np.full(1, -1)
    if (
        not isinstance(uint8, list)
        or type(exif) is not bool
        or type(seed) is not int
        or not 0 <= seed < 1 << 64
        or type(skip) is not bool
        or (np.diff(left_out, prepend=-1) <= 0).any()
        or backend not in ("cpu", "pillow")
        or fidelity not in FIDELITIES
    ):
        raise ArgumentError("this is no work of this version of feeder")
    found = extras_from_json(extras, recipe, exif, function_of, here.file)
    groups, pad = _groups(value.get("groups")), _pad(value.get("pad"))
    largest = None if value.get("largest") is None else size_from_json(value["largest"])
    members = tuple(extra.name for extra in targets_in(found))
    sources = value.get("sources")
    reader = set_from_json(value.get("set"), here, members, opened=None if sources is None else {})
    work = Work(reader, recipe, backend, found, seed, skip, 1, fidelity, groups=groups, pad=pad, largest=largest)
    recipes = work.recipes_at(largest, 0)
    if len(uint8) != len(recipes) or (
        pad is None and any(each.output_size is None and not each.has_bucket for each in work.recipes)
    ):
        raise ArgumentError("the recipe makes images of different sizes")
    work.left_out = left_out
    work.divided = _divided(recipes, uint8)
    return work if sources is None else _mixed(work, sources, function_of)


def _divided(recipes: tuple[Recipe, ...], uint8: list[Any]) -> tuple[DividedRecipe | None, ...]:
    both = zip(recipes, uint8, strict=True)
    return tuple(divide_recipe(each) if wanted else None for each, wanted in both) if any(uint8) else ()


def _mixed(joined: Work, sources: Any, function_of: Callable[[object], Callable[..., Any]]) -> MixedWork:
    """Returns the work on a mixture.

    Args:
        joined: The work on all samples, by the recipe of the first source.
        sources: The JSON of the names, and of the recipes of the others; trusted in nothing.
        function_of: Returns the function of a name, or refuses it.

    Raises:
        ArgumentError: if it is not such JSON, or the images of a source do not stand in the slots of the others.
    """
    reader, pairs = joined.reader, sources if isinstance(sources, list) else []
    if (
        not isinstance(reader, JoinedReader)
        or len(reader.readers) != len(pairs)
        or not all(isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in pairs)
    ):
        raise ArgumentError("these are no sources of a mixture")

    works = []
    uint8 = [each is not None for each in joined.divided]
    sizes = [each.output_size for each in joined.recipes]
    for part, (_, own) in zip(reader.readers, pairs, strict=True):
        recipe = joined.recipe if own is None else recipe_from_json(own, function_of)
        work = dataclasses.replace(joined, reader=part, recipe=recipe, divided=())
        if work.pad is not None or recipe.is_variable or [each.output_size for each in work.recipes] != sizes:
            raise ArgumentError("the sources of a mixture make images of different sizes")
        work.divided = _divided(work.recipes, uint8)
        if work.image_columns != joined.image_columns:
            raise ArgumentError("the sources of a mixture make other images")
        works.append(work)

    options = {each.name: getattr(joined, each.name) for each in dataclasses.fields(Work) if each.init}
    options["extras"] = *joined.extras, SourceNumber()
    return MixedWork(**options, names=tuple(name for name, _ in pairs), works=tuple(works))


def size_from_json(value: Any) -> Size:
    """Returns a (height, width) in pixels.

    Raises:
        ArgumentError: if it is none.
    """
    if isinstance(value, list) and len(value) == 2 and all(type(each) is int and 0 < each < _MOST for each in value):
        return value[0], value[1]
    raise ArgumentError("this is no size of images")


def _groups(value: Any) -> Buckets | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise ArgumentError("these are no sizes of batches")
    return Buckets([size_from_json(each) for each in value])


def _pad(value: Any) -> PadToBatch | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != set(_PAD):
        raise ArgumentError("this is no padding")
    return PadToBatch(**value)


def sent_divided(work: Work) -> tuple[DividedRecipe | None, ...]:
    """Returns each recipe divided, for servers to do the CPU's side: uint8 is a quarter of float32 to send.

    With a device they are divided as for local workers. Without one, a recipe is divided where an affine map of the
    pixels is all that is left to do: :meth:`Recipe.affine` gives it, and it gives the same bits here and there.
    """
    if work.divided:
        return work.divided
    if work.pad is not None:
        return (None,) * len(work.recipes)
    sizes = (work.largest,) if work.groups is None else work.groups.sizes
    epochs = sorted({epoch for recipe in work.recipes for epoch in recipe.phases})
    of_batches = [each.recipes_at(size, epoch) for each in work.by_source for size in sizes for epoch in epochs]
    of_images = zip(*of_batches, strict=True)
    return tuple(divide_recipe(each[0]) if _have_one_map(each) else None for each in of_images)


def _have_one_map(recipes: Sequence[Recipe]) -> bool:
    """Returns True if the same affine map is all that is left to do after the base path of each recipe."""
    floats = [recipe for recipe in recipes if recipe.is_base_path and recipe.output_dtype == "float32"]
    maps = {np.concatenate(recipe.affine).tobytes() for recipe in floats if recipe.affine is not None}
    return len(floats) == len(recipes) and len(maps) == 1


def given_labels(reader: Reader) -> AnyArray | None:
    """Returns the labels of all samples where they are the dataset's own, and not the set's: by target_transform=,
    classes=, labels= or a folder's names; None where the set has them."""
    are_the_sets = all(isinstance(each, ShardReader) and each.given_labels is None for each in leaves(reader))
    return None if are_the_sets else reader.labels()


def _refused(what: str) -> ArgumentError:
    return ArgumentError(f"service= can't have this made on another node: {what}; leave it or the service out")


def set_to_json(reader: Reader, known: dict[int, dict[str, Any]] | None = None) -> dict[str, Any]:
    """Returns the JSON of a set.

    Args:
        reader: Reads it.
        known: The JSON of the sets that subsets were of, by the ids of their readers: a mixture may have many of one.

    Raises:
        ArgumentError: if it is of a class of its own.
    """
    known = {} if known is None else known
    if isinstance(reader, SubsetReader):
        whole = known[id(reader.whole)] = known.get(id(reader.whole)) or set_to_json(reader.whole)
        # Differences are sent: ids of samples in a row pack to nearly nothing.
        steps = np.diff(reader.ids, prepend=0).astype(np.int64)
        ids = base64.b64encode(zlib.compress(steps.tobytes(), 1)).decode()
        return {"kind": "subset", "of": whole, "ids": ids}
    if isinstance(reader, JoinedReader):
        inner = [set_to_json(each, known) for each in reader.readers]
        return {"kind": "sets", "of": inner, "own_index": reader.own_index}

    if type(reader) is FolderReader:
        return {"kind": "folder", "path": reader.root, "exif": reader.exif, "fingerprint": _fingerprint(reader)}
    if type(reader) is not ShardReader:
        raise ArgumentError("a dataset of a class of its own")
    path = reader.mirror.options.url if isinstance(reader.mirror, CacheMirror) else reader.index.path
    found = {"kind": "shards", "path": path, "version": reader.index.header.info.version, "exif": reader.exif}
    return found | {"fingerprint": _fingerprint(reader)}


def set_from_json(
    value: Any,
    here: Any,
    members: tuple[str, ...] = (),
    depth: int = 0,
    opened: dict[str, Reader] | None = None,
    left: list[int] | None = None,
) -> Reader:
    """Opens the set that :func:`set_to_json` has described.

    Args:
        value: The JSON; trusted in nothing.
        here: Opens sets, or refuses them by an ArgumentError: a :class:`feeder.service.roots.Roots`.
        members: Names of members of a folder's samples that are images, and no samples themselves.
        depth: Number of sets that it is inside of.
        opened: The sets that subsets were of, by their JSON, each opened once; None: each subset has one of its own.
        left: The number of ids that all subsets may still have.

    Raises:
        ArgumentError: if it is not such JSON, or a set differs from the client's.
    """
    if not isinstance(value, dict) or depth > _DEEPEST:
        raise ArgumentError("this is no set")

    kind, inner = value.get("kind"), value.get("of")
    left = [MOST_IDS] if left is None else left
    if kind == "subset":
        opened, text = {} if opened is None else opened, json.dumps(inner)
        whole = opened[text] = opened.get(text) or set_from_json(inner, here, members, depth + 1, left=left)
        ids = _ids_from_json(value.get("ids"), len(whole))
        left[0] -= len(ids)
        if left[0] < 0:
            raise ArgumentError(f"subsets have more than {MOST_IDS:,} samples")
        return SubsetReader(whole, ids)

    if kind == "sets":
        if not isinstance(inner, list) or not 0 < len(inner) <= MOST_SETS:
            raise ArgumentError("these are no sets")
        readers = [set_from_json(each, here, members, depth + 1, opened, left) for each in inner]
        return JoinedReader(readers, own_index=value.get("own_index") is True)

    path, exif, version = (value.get(name) for name in ("path", "exif", "version"))
    if kind not in ("shards", "folder") or not isinstance(path, str) or type(exif) is not bool or "\0" in path:
        raise ArgumentError("this is no set")
    if version is not None and (type(version) is not int or version < 1):
        raise ArgumentError("this is no version of a set")

    reader: ShardReader | FolderReader
    if kind == "folder":
        reader = here.open_folder(path, members, exif=exif)
    else:
        reader = here.open_shards(path, exif=exif, version=version)
    if _fingerprint(reader) != value.get("fingerprint"):
        raise ArgumentError(f"{path}: the set here is not the client's: its samples, their sizes or their order differ")
    return reader


def _ids_from_json(value: Any, samples: int) -> Int64s:
    """Returns the ids of a subset of so many samples, int64 [N].

    Raises:
        ArgumentError: if there are none, too many, or samples that there are not.
    """
    unpacked = zlib.decompressobj()
    try:
        data = unpacked.decompress(base64.b64decode(value, validate=True), 8 * max(samples, _MOST_REPEATED))
        ids = np.cumsum(np.frombuffer(data, np.int64))
    except (binascii.Error, TypeError, ValueError, zlib.error):
        raise ArgumentError("this is no subset") from None
    if not unpacked.eof or ids.min(initial=0) < 0 or ids.max(initial=-1) >= samples:
        raise ArgumentError("a subset has samples that the set has not, or too many")
    return ids


def _fingerprint(reader: ShardReader | FolderReader) -> str:
    """Returns a hash of the samples and their order, whatever labels they were given; of a folder, of all files' names
    and the sizes of some, spread evenly."""
    if isinstance(reader, ShardReader):
        return reader.index.fingerprint()
    some = np.linspace(0, len(reader) - 1, min(len(reader), SIZED_FILES)).astype(np.int64)
    sizes = np.array([_size_bytes(os.path.join(reader.root, reader.path(i))) for i in some.tolist()], np.int64)
    digest = hashlib.blake2b(digest_size=16)
    for column in (reader.path_start, reader.path_data, sizes):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def _size_bytes(path: str) -> int:
    """Returns a file's size; -1 for one that can't be read, which is for the sample's reader to say."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
