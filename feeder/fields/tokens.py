"""Fields of text, as the ids of a tokenizer."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from feeder.errors import ArgumentError, FormatError
from feeder.fields.derived_fields import kind_of
from feeder.fields.field import Field, shown
from feeder.fields.text_fields import Text
from feeder.system.arrays import Int64s
from feeder.system.files import read_regular

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PADS = ("<pad>", "[PAD]")


@dataclass(frozen=True)
class Tokens(Field):
    """Text as token ids of fixed length, made in the workers by a tokenizer of the ``tokenizers`` library.

    A batch has the dict that models of transformers take, ``model(**tokens)``: "input_ids" and "attention_mask", both
    int64 [N, max_length]; the mask is 1 for tokens and 0 for padding. ``dataset[i]`` has [max_length] of each.

    The kind holds the tokenizer's file by its path and hash. Each process opens it once, and encodes without threads
    of its own. Needs the extra ``tokenizers``.

    Args:
        file: The tokenizer's JSON, ``tokenizer.json`` in a folder that ``save_pretrained`` of transformers has written.
        max_length: Number of ids; longer texts are truncated on the side that the file says, shorter ones are padded.
        text: The kind, or a function of the member's bytes, that gives the text: ``Json("caption")`` or
            ``Choice(Lines())``.
        pad_id: Id after the text's own, from 0; None for that of the file's padding, else of its token "<pad>" or
            "[PAD]".
        add_special_tokens: True to add the special tokens that the file's model wants, such as a start and an end.
        optional: True if samples may lack the member.
        fill: The text of samples without the member; None for an empty one.

    Raises:
        ArgumentError: if ``tokenizers`` is missing, the file can't be read or is no tokenizer's, no ``pad_id`` is
            known, or ``max_length`` has no place for the special tokens.
        FormatError: in a batch, if the file was changed since.
    """

    file: str | os.PathLike[str]
    max_length: int = field(kw_only=True)
    text: Field | Callable[[bytes], Any] = field(default=Text(), kw_only=True)
    pad_id: int | None = field(default=None, kw_only=True)
    add_special_tokens: bool = field(default=True, kw_only=True)
    pads_left: bool = field(default=False, init=False, repr=False)
    digest: str = field(default="", init=False, repr=False)

    fill_types = (str,)

    def __post_init__(self) -> None:
        super().__post_init__()

        if not isinstance(self.file, (str, os.PathLike)):
            raise ArgumentError(
                f"Tokens takes the path of a tokenizer.json, got {type(self.file).__name__}; save_pretrained(folder) "
                "of a tokenizer of transformers writes one"
            )

        for name in ("max_length", "pad_id"):
            number = getattr(self, name)
            if (type(number) is not int or number < 0) and (name, number) != ("pad_id", None):
                raise ArgumentError(f"Tokens({name}={number!r}) must be an integer from 0")

        path = os.path.abspath(self.file)
        text = kind_of(self.text)
        if text.columns or text.optional:
            raise ArgumentError(f"Tokens(text=...) takes a kind that gives the text of each sample, got {text!r}")

        try:
            data = read_regular(path)
        except OSError as error:
            raise ArgumentError(f"{path}: expected a tokenizer's JSON: {error.strerror}") from None

        object.__setattr__(self, "file", path)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "digest", _hash(data))
        tokenizer = _tokenizer(path, data)
        padding = tokenizer.padding or {}
        object.__setattr__(self, "pads_left", padding.get("direction") == "left")

        if self.pad_id is None:
            known = (found for token in _PADS if (found := tokenizer.token_to_id(token)) is not None)
            object.__setattr__(self, "pad_id", padding.get("pad_id", next(known, None)))
        if self.pad_id is None:
            raise ArgumentError(f"{path}: has no padding, and no token {' or '.join(_PADS)}: give Tokens a pad_id=")

        special = tokenizer.num_special_tokens_to_add(False) if self.add_special_tokens else 0
        if self.max_length <= special:
            raise ArgumentError(
                f"Tokens(max_length={self.max_length}) has no place beside the {special} special tokens of {path}"
            )

    @property
    def columns(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        return (((self.max_length,), "int64"),) * 2

    @property
    def is_drawn(self) -> bool:
        return isinstance(self.text, Field) and self.text.is_drawn

    def parse(self, data: bytes, draw: float = 0.0) -> tuple[Int64s, Int64s]:
        assert isinstance(self.text, Field)
        text = self.text.parse(data, draw)
        if not isinstance(text, str):
            raise ValueError(f"expected text, got {shown(text)}")
        return self._encoded(text)

    def missing(self) -> tuple[Int64s, Int64s]:
        return self._encoded(self.fill or "")

    def gather(self, tensors: tuple[Any, ...]) -> dict[str, Any]:
        return {"input_ids": tensors[0], "attention_mask": tensors[1]}

    def _encoded(self, text: str) -> tuple[Int64s, Int64s]:
        """Returns the ids and the mask of a text, int64 [max_length] each."""
        tokenizer = _opened(os.getpid(), str(self.file), self.digest, self.max_length)
        try:
            found = tokenizer.encode(text, add_special_tokens=self.add_special_tokens).ids
        except Exception as error:  # the library has no class of its own
            raise ValueError(f"can't be tokenized: {error}") from None
        ids, mask = np.full(self.max_length, self.pad_id, np.int64), np.zeros(self.max_length, np.int64)
        place = slice(self.max_length - len(found), None) if self.pads_left else slice(0, len(found))
        ids[place], mask[place] = found, 1
        return ids, mask


@functools.lru_cache(maxsize=16)
def _opened(process: int, path: str, digest: str, max_length: int) -> Tokenizer:
    """Opens a tokenizer once in each process: a forked one shares none with its parent, whose threads may use it.

    Raises:
        FormatError: if the file has another hash, or can't be read any more.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise FormatError(f"{path}: can't be read any more: {error.strerror}; restore the file") from None
    if _hash(data) != digest:
        raise FormatError(f"{path}: was changed while it was in use; create the dataset again, or restore the file")
    tokenizer = _tokenizer(path, data)
    direction = (tokenizer.truncation or {}).get("direction", "right")
    tokenizer.enable_truncation(max_length, direction=direction)
    tokenizer.no_padding()
    return tokenizer


def _tokenizer(path: str, data: bytes) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ArgumentError("Tokens needs tokenizers: pip install 'feeder-data[tokenizers]'") from None
    try:
        return Tokenizer.from_buffer(data)
    except Exception as error:  # the library has no class of its own
        raise ArgumentError(f"{path}: expected a tokenizer's JSON: {error}") from None


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
