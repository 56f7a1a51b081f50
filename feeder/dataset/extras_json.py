"""Converts targets and further fields to JSON and back, for servers on other machines."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import feeder.fields as fields
from feeder.dataset.drawn_fields import CropBox, ImageSizes, OriginalSize
from feeder.dataset.extras import Extra, MemberField, NamedField
from feeder.dataset.fields_of import fields_of
from feeder.dataset.further_images import FurtherImage
from feeder.dataset.target_values import TargetValue, ViewsTarget, in_padded_batches, target_values
from feeder.errors import ArgumentError
from feeder.fields.field import Field
from feeder.transforms import Recipe, Views
from feeder.transforms.recipe_json import FunctionOf, NameOf, recipe_from_json, recipe_to_json, single_entry
from feeder.transforms.targets import BoundingBoxes, Image, KeyPoints, Mask, Target

_KINDS: dict[str, type[Field]] = {
    kind.__name__: kind
    for kind in (
        *(fields.Apply, fields.Array, fields.Bytes, fields.Choice, fields.Float, fields.Int),
        *(fields.Json, fields.Lines, fields.Text, fields.Tokens),
    )
}
_TARGETS: dict[str, type[Target]] = {kind.__name__: kind for kind in (BoundingBoxes, Image, KeyPoints, Mask)}
_INNER_KINDS, _BASE64 = ("of", "text"), "base64"


def extras_to_json(extras: Sequence[Extra], name_of: NameOf) -> dict[str, Any]:
    """Returns targets and further fields as JSON takes them.

    Args:
        extras: Those of a dataset; with the images' sizes, or without.
        name_of: Returns the name that is written down for a function.

    Raises:
        ArgumentError: naming a target or field of a class that feeder does not have, or one whose function has no name.
    """
    targets: list[Any] = []
    further: list[Any] = []
    sizes = False
    for extra in extras:
        if isinstance(extra, ImageSizes):
            sizes = True
        elif isinstance(extra, (TargetValue, ViewsTarget, FurtherImage)):
            targets.append([extra.name, _target_to_json(extra.name, extra.target, name_of)])
        elif isinstance(extra, MemberField):
            further.append([extra.name, _named(extra.name, _kind_to_json, extra.kind, name_of)])
        elif isinstance(extra, (NamedField, OriginalSize, CropBox)):
            further.append([extra.name, None])
        else:
            raise ArgumentError(f"{extra.name!r} is a target or a field of a kind of its own")
    return {"sizes": sizes, "targets": targets, "fields": further}


def extras_from_json(
    value: Any,
    recipe: Recipe | Views,
    exif: bool,
    function_of: FunctionOf,
    file_of: Callable[[str], str],
) -> tuple[Extra, ...]:
    """Returns the targets and further fields that :func:`extras_to_json` has written.

    Args:
        value: The JSON, which may hold anything.
        recipe: The ops on the samples' images, or their views.
        exif: Whether EXIF orientation is applied.
        function_of: Returns the function of a name, or refuses it.
        file_of: Returns the path of a file here that a kind reads, or refuses it.

    Raises:
        ArgumentError: if it is anything else, or the dataset would refuse them.
    """
    if not isinstance(value, Mapping) or set(value) != {"sizes", "targets", "fields"}:
        raise ArgumentError("these are no targets and fields of this version of feeder")

    try:
        targets = {name: _target_from_json(each, function_of) for name, each in _pairs(value["targets"])}
        kinds = {
            name: None if each is None else _kind_from_json(each, function_of, file_of)
            for name, each in _pairs(value["fields"])
        }
        made = (*target_values(targets, recipe, exif=exif), *fields_of(kinds))
    except ArgumentError:
        raise
    except (TypeError, KeyError, ValueError) as error:
        raise ArgumentError(f"these are no targets and fields of this version of feeder: {error}") from None
    return in_padded_batches(made) if value["sizes"] is True else made


def _pairs(value: Any) -> list[tuple[str, Any]]:
    """Returns a list of [name, anything], checked to be one, with each name once."""
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 2 for each in value):
        raise ArgumentError("these are no targets and fields of this version of feeder")
    if not all(isinstance(name, str) for name, _ in value) or len(dict(value)) != len(value):
        raise ArgumentError("these are no names of targets and fields")
    return [(name, each) for name, each in value]


def _named(name: str, encode: Callable[..., Any], *arguments: Any) -> Any:
    """Returns ``encode(*arguments)``, with the name at the start of an error."""
    try:
        return encode(*arguments)
    except ArgumentError as error:
        raise ArgumentError(f"{name!r}: {error}") from None


def _target_to_json(name: str, target: Target, name_of: NameOf) -> Any:
    kind = type(target).__name__
    if _TARGETS.get(kind) is not type(target):
        raise ArgumentError(f"{name!r} is a target of a kind of its own")
    if isinstance(target, Image):
        own = None if target.recipe is None else _named(name, recipe_to_json, target.recipe, name_of)
        return {kind: {"draws": target.draws, "transform": own}}
    return {kind: {each.name: getattr(target, each.name) for each in dataclasses.fields(target)}}


def _target_from_json(value: Any, function_of: FunctionOf) -> Target:
    kind, arguments = _one(value, _TARGETS)
    if kind is Image and arguments.get("transform") is not None:
        arguments["transform"] = recipe_from_json(arguments["transform"], function_of)
    made: Target = kind(**arguments)
    return made


def _kind_to_json(kind: Any, name_of: NameOf) -> Any:
    name = type(kind).__name__
    if _KINDS.get(name) is not type(kind):
        raise ArgumentError(f"{name} is a kind of its own")
    found = {each.name: getattr(kind, each.name) for each in dataclasses.fields(kind) if each.init}
    for inner in _INNER_KINDS:
        if inner in found:
            found[inner] = _kind_to_json(found[inner], name_of)
    if "function" in found:
        found["function"] = name_of(found["function"])
    if isinstance(found["fill"], bytes):
        found["fill"] = {_BASE64: base64.b64encode(found["fill"]).decode()}
    if isinstance(kind, fields.Tokens):
        found |= {"file": str(kind.file), "digest": kind.digest}
    elif not is_json(found, (list, tuple)):  # shapes are tuples
        raise ArgumentError(f"{name}(fill={kind.fill!r}) is a value that JSON can't hold")
    return {name: found}


def _kind_from_json(value: Any, function_of: FunctionOf, file_of: Callable[[str], str]) -> Field:
    kind, arguments = _one(value, _KINDS)
    for inner in _INNER_KINDS:
        if inner in arguments:
            arguments[inner] = _kind_from_json(arguments[inner], function_of, file_of)
    if "function" in arguments:
        arguments["function"] = function_of(arguments["function"])
    if kind is fields.Bytes and isinstance(arguments.get("fill"), dict):
        try:
            arguments["fill"] = base64.b64decode(arguments["fill"][_BASE64], validate=True)
        except binascii.Error:
            raise ArgumentError("the fill of a field is no base64") from None
    digest, path = arguments.pop("digest", None), arguments.get("file")
    if path is not None:
        arguments["file"] = file_of(str(path))
    made: Field = kind(**arguments)
    if isinstance(made, fields.Tokens) and made.digest != digest:
        raise ArgumentError(f"{path}: the tokenizer here is not the client's")
    return made


def _one(value: Any, known: Mapping[str, type[Any]]) -> tuple[Any, dict[str, Any]]:
    """Returns the class and the arguments of ``{name: arguments}``."""
    name, arguments = single_entry(value)
    if name not in known or not isinstance(arguments, dict) or not all(isinstance(each, str) for each in arguments):
        raise ArgumentError("this is no kind of target or field of this version of feeder")
    return known[name], dict(arguments)


def is_json(value: Any, lists: tuple[type, ...] = (list,)) -> bool:
    """Returns True if JSON gives a value back as it was; ``lists`` are the types that count as a list."""
    if type(value) is dict:
        return all(type(key) is str and is_json(each, lists) for key, each in value.items())
    if type(value) in lists:
        return all(is_json(each, lists) for each in value)
    return value is None or type(value) in (bool, int, float, str)
