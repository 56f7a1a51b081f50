"""The kinds by themselves: from bytes to values."""

from __future__ import annotations

import codecs
import math
from typing import Any, cast

import numpy as np
import pytest
import torch

from feeder.errors import ArgumentError
from feeder.fields import Apply, Array, Bytes, Field, Float, Int, Json, Lines, Text
from tests.support.field_sets import npy


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (Bytes(), b"\x00\xff", b"\x00\xff"),
        (Text(), " zwölf\n".encode(), " zwölf\n"),
        (Lines(), b" a cat \r\n\n\tzw\xc3\xb6lf", ["a cat", "zwölf"]),
        (Json(), b'{"a": [1, null]}', {"a": [1, None]}),
        (Json("a"), b'{"a": [1, null]}', [1, None]),
        (Int(), b" -12\n", (-12,)),
        (Int(optional=True), b"9223372036854775807", (1 << 63) - 1),
        (Float(), b"0.1", (np.float32(0.1),)),
        (Float(optional=True), b"-inf", -math.inf),
        (Apply(len), b"abc", 3),
    ],
)
def test_bytes_become_the_kinds_value(kind: Field, data: bytes, expected: Any) -> None:
    found = kind.parse(data)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (Text(), b"a cat", "a cat"),
        (Lines(), b"a cat\nb", ["a cat", "b"]),
        (Json(), b'["a"]', ["a"]),
        (Int(), b"3", (3,)),
        (Float(), b"0.5", (np.float32(0.5),)),
    ],
)
def test_a_byte_order_mark_is_no_text(kind: Field, data: bytes, expected: Any) -> None:
    assert kind.parse(codecs.BOM_UTF8 + data) == expected


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (Lines(), "a cat\n\ufeffa dog\n \ufeff \n", ["a cat", "a dog"]),
        (Json(), '{"\ufeffa": ["\ufeffb", {"c": "\ufeff"}]}', {"a": ["b", {"c": ""}]}),
        (Json("a"), '{"a": "\\ufeffb"}', "b"),
        (Json("a"), '{"a": "\\uFEFFb"}', "b"),
    ],
)
def test_a_byte_order_mark_is_no_text_in_any_line_or_value(kind: Field, text: str, expected: Any) -> None:
    assert kind.parse(text.encode()) == expected


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        (Text(), b"a\xff", "can't decode byte 0xff in position 1"),
        (Json(), b"{", "is not JSON: Expecting property name"),
        (Json(), b"[" * 100_000, "is not JSON"),
        (Json("a"), b"[1]", r"expected an object with the key 'a', got \[1\]"),
        (Json("a"), b'{"b": 1}', "has no 'a': its keys are 'b'; optional=True"),
        (Json("a"), b'{"a": null}', "has no 'a': is null"),
        (Int(), b"1.5", "invalid literal"),
        (Int(), b" ", "expected an integer, got an empty text; optional=True takes"),
        (Int(), b"9223372036854775808", "does not fit into int64"),
        (Int(), b"1" * 5000, "expected an integer, got 5000 bytes"),
        (Float(), b"nine", "could not convert string to float: 'nine'"),
        (Float(), b"1e39", "does not fit into float32"),
        (Apply(int), b"x", "int raised ValueError: invalid literal"),
    ],
)
def test_bytes_of_another_kind_are_refused(kind: Field, data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        kind.parse(data)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.arange(6, dtype=np.int16).reshape(2, 3), Array()),
        (np.asfortranarray(np.arange(6.0).reshape(2, 3)), Array()),
        (np.arange(6, dtype=">f4").reshape(2, 3), Array()),
        (np.array(True), Array()),
        (np.arange(6, dtype=np.float64).reshape(2, 3), Array(dtype="float16")),
        (np.arange(6, dtype=np.float64).reshape(2, 3), Array((2, 3), torch.float32)),
        (np.arange(6, dtype=">f8").reshape(2, 3), Array([2, 3], np.float64)),  # type: ignore[arg-type]
        (np.zeros((0, 4), np.float32), Array(pad=0)),
    ],
)
def test_arrays_come_as_tensors(array: np.ndarray, kind: Array) -> None:
    found = kind.sample(kind.parse(npy(array)))
    assert found is not None
    assert np.array_equal(found.numpy(), array)
    expected = array.dtype.newbyteorder("=") if kind.dtype is None else np.dtype(kind.dtype)
    assert found.numpy().dtype == expected


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b"PK\x03\x04", Array(), "is not an .npy file"),
        (b" [0.5, 1, 2]", Array((3,), "float32"), r"a list in JSON: give Apply\(function\)"),
        (npy(np.zeros(3))[:90], Array(), "damaged .npy header"),
        (npy(np.zeros(3))[:-1], Array(), r"was cut off: float64 \[3\] is 24 bytes, got 23"),
        (npy(np.array([{}, None])), Array(), "holds object, expected numbers or booleans"),
        (npy(np.array(["a"])), Array(), "holds <U1, expected numbers"),
        (npy(np.zeros(3, np.longdouble)), Array(), "expected numbers"),
        (npy(np.zeros((3, 2))), Array((2, 3), "float64"), r"expected shape \[2, 3\], got \[3, 2\]"),
        (npy(np.zeros(3)), Array(dtype="int64"), "expected int64, got float64"),
        (npy(np.array(3.0)), Array(nested=True), "got a single number"),
    ],
)
def test_damaged_arrays_and_others_than_asked_for_are_refused(data: bytes, kind: Array, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        kind.parse(data)


def test_a_header_larger_than_its_file_takes_no_memory() -> None:
    data = npy(np.zeros(3)).replace(b"(3,), }         ", b"(3000000000000,)}")
    with pytest.raises(ValueError, match="was cut off"):
        Array().parse(data)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint8", 255),
        ("uint64", (1 << 64) - 1),
        ("int8", -128),
        ("int64", 3.0),
        ("bool", True),
        ("float16", 0.1),
        ("float32", float("nan")),
        ("float32", float("-inf")),
        ("complex64", 0.1),
    ],
)
def test_numbers_that_a_dtype_holds_fill_its_arrays(dtype: str, value: float) -> None:
    (filled,) = Array((2,), dtype, optional=True, fill=value).missing()
    np.testing.assert_array_equal(np.full(2, filled, dtype), np.array([value] * 2).astype(dtype))
    assert Array(dtype=dtype, pad=value).pad is value


def test_a_pad_that_stored_arrays_do_not_hold_is_refused() -> None:
    for pad in (-1, 1.5):
        with pytest.raises(ValueError, match="does not fit into the arrays' uint8: give Array a dtype="):
            Array(pad=pad).collate([np.zeros(2, np.uint8), np.zeros(3, np.uint8)])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Text(fill=""), "add optional=True"),
        (lambda: Text(optional=True, fill=3), "Text.fill=.* must be str, got 3"),
        (lambda: Array((3,)), "needs dtype="),
        (lambda: Array((3,), "U5"), "must be one of bool, uint8"),
        (lambda: Array((0,), "uint8"), "integers from 1"),
        (lambda: Array(pad=0, nested=True), "one of shape=, pad= and nested"),
        (lambda: Array(pad=0, optional=True), "need an array of each sample"),
        (lambda: Array(optional=True, fill=0), "needs shape="),
        (lambda: Array((3,), "uint8", fill=0), "add optional=True"),
        (lambda: Array((3,), "uint8", optional=True, fill=300), "fill=300. does not fit into uint8"),
        (lambda: Array((3,), "uint8", optional=True, fill=1.5), "fill=1.5. does not fit into uint8"),
        (lambda: Array((3,), "int32", optional=True, fill=float("nan")), "does not fit into int32"),
        (lambda: Array((3,), "uint64", optional=True, fill=1 << 70), "does not fit into uint64"),
        (lambda: Array((3,), "float16", optional=True, fill=1e9), "does not fit into float16"),
        (lambda: Array((3,), "bool", optional=True, fill=2), "does not fit into bool"),
        (lambda: Array(dtype="uint8", pad=-1), "pad=-1. does not fit into uint8"),
        (lambda: Array(pad=cast(Any, "0")), "pad=.* is a number"),
        (lambda: Int(optional=True, fill=1 << 63), "does not fit into int64"),
        (lambda: Float(optional=True, fill=1e60), "does not fit into float32"),
        (lambda: Json(cast(Any, 3)), "takes a key"),
        (lambda: Apply(cast(Any, "len")), "takes a function"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        make()
