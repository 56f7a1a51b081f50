"""Any iterable of WebDataset-style dicts, spooled to disk in one pass."""

from __future__ import annotations

import contextlib
import io
import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from feeder.decoders.image_header import is_image_field
from feeder.errors import SourceError
from feeder.shard.source.image_field import choose_image, lacks_image, split_fields
from feeder.shard.source.json_field import json_field
from feeder.shard.source.labels import LabelColumn, as_number, is_class_number, label_text
from feeder.shard.source.sample_table import NO_FILE
from feeder.shard.source.source import Source, SourceKind, Spool, drop_duplicates
from feeder.system.text import count


def open_samples(
    samples: Iterable[Any],
    spool_path: str,
    image_field: str | None = None,
    classes: Sequence[str] | None = None,
) -> Source:
    """Spools samples, which are dicts of fields by extension, with their name under ``__key__``.

    Args:
        samples: Images, or images and their labels, or dicts of fields ("jpg", "cls", "json", ...). Values are bytes,
            text, integers, pixels, arrays for names that end in npy, and for ``json`` any JSON value. Keys that start
            with ``__`` are not fields. Fields are lower case, as in tars.
        spool_path: Scratch file.
        image_field: See :func:`open_tars`.
        classes: Class names by label; None takes the names in ``cls``, sorted.

    Raises:
        SourceError: for a sample that is not such a dict, or a value that can't be encoded.
    """
    source = Source(SourceKind.SAMPLES, os.path.dirname(spool_path))
    image_field = None if image_field is None else image_field.lower()
    labels = LabelColumn("the field 'cls'", "give the field another name")

    with Spool(source, spool_path) as spool:
        for number, sample in enumerate(samples):
            sample = _as_dict(sample, number)
            name = str(sample.get("__key__", number))
            named = [_stored(str(k).lower(), v, name) for k, v in sample.items() if not str(k).startswith("__")]
            fields = {field: _encoded(value, field, name) for field, value in named}
            if len(fields) < len(named):
                raise SourceError(
                    f"sample {name!r}: has two fields of one name, but for their case: {', '.join(map(str, sample))}"
                )

            lacking = lacks_image(fields, None if image_field is None else split_fields(image_field))
            if lacking is not None:
                source.reject(name, lacking)
                continue

            label = labels.add(_label_text(fields.get("cls", b""), name))
            stored = [spool.add(field, data) for field, data in fields.items()]
            size = sum(field.length for field in stored)
            source.table.add(os.fsencode(name), size, NO_FILE, label, stored)

    found = labels.finish_whole(classes)
    source.take_labels(found, "cls")
    if found.classes is None and classes is not None:
        source.classes = list(classes)
        label = max(found.labels.tolist(), default=-1) if found.labels is not None else -1
        if label >= len(classes):
            listed = count(len(classes), "class", "classes")
            raise SourceError(f"the field 'cls' holds the label {label}, but the list has {listed}")

    choose_image(source, "the samples", image_field)
    drop_duplicates(source, lambda path: path, "duplicate __key__")
    return source


def _as_dict(sample: Any, number: int) -> Mapping[str, Any]:
    """Returns a sample as a dict of fields: an image, or an image and its label, or such a dict already."""
    if isinstance(sample, Mapping):
        return sample
    image, *labels = sample if isinstance(sample, tuple | list) and sample else (sample,)
    if isinstance(image, (bytes, str)) or len(labels) > 1:
        shown = f"{type(sample).__name__} of {', '.join(type(each).__name__ for each in (image, *labels))}"
        raise SourceError(f"sample {number}: expected a dict of fields, or an image and its label, got {shown}")
    is_class = all(isinstance(each, str) or hasattr(each, "__index__") for each in labels)
    return {"image": image} | {"cls" if is_class else "json": each for each in labels}


def _label_text(data: bytes, name: str) -> str:
    """Returns the label in a sample's ``cls``; empty without one.

    Raises:
        SourceError: if it is neither a class number nor a class name.
    """
    text = label_text(data)
    value = None if text is None else as_number(text)
    is_class = value is None or value == -1 or math.isnan(value) or is_class_number(value)
    if text is None or not is_class:
        raise SourceError(
            f"sample {name!r}: field 'cls' is {data[:40]!r}; expected a class number, 0 or more, or a class name: put "
            "other numbers into the field 'json', where ShardDataset(labels=...) finds them"
        )
    return text


def _stored(field: str, value: Any, name: str) -> tuple[str, Any]:
    """Returns a field with pixels as a PNG, an array as ``.npy``, and any other as it is.

    Raises:
        SourceError: for pixels that are not uint8, or that PNG can't store.
    """
    stem, _, ending = field.rpartition(".")
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
        if value.ndim == 3 and ending != "npy" and value.shape[0] in (1, 3, 4):
            value = value.transpose(1, 2, 0)

    image = value
    if isinstance(value, np.ndarray):
        if ending == "npy":
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            return field, file.getvalue()
        if value.ndim not in (2, 3) or ending == "json":
            return field, value
        if value.dtype != np.uint8:
            raise SourceError(
                f"sample {name!r}: field {field!r} is {value.dtype} {list(value.shape)}: pixels are uint8, 0-255, as "
                "before ToTensor or Normalize; name it NAME.npy to store an array as it is"
            )
        image = Image.fromarray(value[:, :, 0] if value.ndim == 3 and value.shape[2] == 1 else value)

    if not isinstance(image, Image.Image):
        return field, value
    file = io.BytesIO()
    try:
        image.save(file, "PNG")
    except OSError as error:
        raise SourceError(f"sample {name!r}: field {field!r}: {error}; convert('RGB') it") from None
    stem = stem if is_image_field(field) else "" if field in ("image", "img", "pixels") else field
    return f"{stem}.png".lstrip("."), file.getvalue()


def _encoded(value: Any, field: str, name: str) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise SourceError(f"sample {name!r}: field {field!r} can't be written as text: {error}") from None
    if field.rpartition(".")[2] == "json":
        try:
            return json_field(value)
        except (TypeError, ValueError) as error:
            raise SourceError(f"sample {name!r}: field {field!r} can't be written as JSON: {error}") from None
    with contextlib.suppress(TypeError):
        return b"%d" % operator.index(value)
    raise SourceError(
        f"sample {name!r}: field {field!r} is a {type(value).__name__}; expected bytes (encode images first), text, an "
        "integer, or JSON values in a field named json"
    )
