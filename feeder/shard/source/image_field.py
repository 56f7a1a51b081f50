"""Chooses the field that holds a sample's image, once for a whole set."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from feeder.decoders.image_header import is_image_field
from feeder.errors import ArgumentError
from feeder.shard.source.source import Source, reject_samples
from feeder.system.text import count

_NO_PHOTOS = ("mask", "seg", "depth", "label", "alpha", "thumb")
_MASKS = ("mask", "seg", "label", "instance", "semantic", "trimap")
_PHOTOS = ("image", "img", "rgb", "input")
_MOST_LISTED = 5
_FORMATS = (("jpg", "jpeg", "jpe", "jfif"), ("webp",), ("png",))


def split_fields(text: str) -> tuple[str, ...]:
    """Splits the fields that ``--image-field`` names, separated by ";". Each sample has one of them.

    Raises:
        ArgumentError: if it names none.
    """
    fields = tuple(field.strip() for field in text.split(";") if field.strip())
    if not fields:
        raise ArgumentError(f"image_field must name a field, such as 'rgb.jpg', got {text!r}")
    return fields


def image_fields(samples: Mapping[frozenset[str], int]) -> tuple[str, ...]:
    """Chooses the field that holds the image, by its name.

    Bare extensions such as "jpg" are preferred. Among the others, names such as "image" come first and names such as
    "mask" last; ties go by format.

    Args:
        samples: Number of samples by the names of their fields.

    Returns:
        The field, followed by fields of the same name in another format, such as "jpg" and "png" if no sample has both.
        Empty if no field is named like an image.
    """
    found = sorted({field for fields in samples for field in fields if is_image_field(field)}, key=_rank)
    chosen = found[:1]
    for field in found[1:]:
        if _name(field) == _name(chosen[0]) and not any(
            field in fields and not fields.isdisjoint(chosen) for fields in samples
        ):
            chosen.append(field)
    return tuple(chosen)


def choose_image(source: Source, where: str, asked: str | None) -> None:
    """Sets the fields that hold the source's images, and rejects samples without any of them.

    Args:
        source: A source whose samples have named fields.
        where: Name of the source, for the note that lists the candidates if there are several.
        asked: Fields as :func:`split_fields` takes them; None chooses by name.
    """
    groups = source.table.by_fields()
    samples = {fields: len(ids) for fields, ids in groups.items()}
    chosen = image_fields(samples) if asked is None else split_fields(asked)
    source.image_fields = chosen

    counts = source.table.field_counts()
    others = [field for field in sorted(counts) if is_image_field(field) and field not in chosen]
    if others:
        shown = others[:_MOST_LISTED]
        listed = ", ".join(f"{field!r} ({count(counts[field], 'sample')})" for field in shown)
        if len(shown) < len(others):
            listed += f" and {count(len(others) - len(shown), 'other')}"
        source.notes.append(
            f"{where}: several fields hold images; {_either(chosen)} is taken "
            f"({count(sum(counts.get(field, 0) for field in chosen), 'sample')}), not {listed}: --image-field chooses "
            "another"
        )

    reasons: dict[int, str] = {}
    for fields, ids in groups.items():
        reason = lacks_image(sorted(fields), chosen)
        if reason is not None:
            reasons |= dict.fromkeys(ids, reason)

    reject_samples(source, reasons)


def is_mask_field(field: str) -> bool:
    """Returns whether a field is a mask of its image by its name, as "masks.png" is."""
    return is_image_field(field) and any(word in _name(field) for word in _MASKS)


def lacks_image(fields: Collection[str], chosen: tuple[str, ...] | None) -> str | None:
    """Returns the reason to reject a sample without any of the chosen fields; None if it has one.

    Args:
        fields: The sample's fields.
        chosen: The fields that hold the set's images; None while they are not chosen yet, when any image counts.
    """
    if any(is_image_field(field) if chosen is None else field in chosen for field in fields):
        return None
    wanted = "image" if chosen is None else f"field {_either(chosen)}, which is to be the image,"
    shown = [*itertools.islice(fields, _MOST_LISTED), *(["..."] if len(fields) > _MOST_LISTED else [])]
    return f"no {wanted} among its fields: {', '.join(shown) or 'none'}"


def _either(fields: tuple[str, ...]) -> str:
    return " or ".join(map(repr, fields))


def _rank(field: str) -> tuple[bool, bool, int, int, str]:
    name, extension = _name(field), field.rpartition(".")[2]
    photo = next((i for i, word in enumerate(_PHOTOS) if word in name), len(_PHOTOS))
    format_ = next((i for i, extensions in enumerate(_FORMATS) if extension in extensions), len(_FORMATS))
    return bool(name), any(word in name for word in _NO_PHOTOS), photo, format_, field


def _name(field: str) -> str:
    """Returns the name of a field without its extension; empty for a bare extension."""
    return field.rpartition(".")[0].lower()
