"""The gain of other encodings, with decoders whose times are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder
from feeder.decoders.cpu_decoder import CpuDecoder
from feeder.decoders.decoder import DecodeResult
from feeder.tools.encoding_gain import EncodingGain, encoding_gains
from feeder.transforms import RandomResizedCrop
from tests.support import jpegs

COSTS_NS = {"ordinary": 400, "seekable": 200, "packed": 100}


def kind_of(image: bytes) -> str:
    if image.startswith(b"FPK"):
        return "packed"
    return "seekable" if b"\xff\xdd" in image else "ordinary"


def dataset(folder: Path, encode: str) -> feeder.ShardDataset:
    images = [jpegs.jpeg("4:2:0", seed=i) for i in range(6)]
    feeder.write_shards([{"jpg": image, "cls": 0} for image in images], folder / encode, encode=encode)
    return feeder.ShardDataset(folder / encode, RandomResizedCrop(24))


def gains(monkeypatch: pytest.MonkeyPatch, shards: feeder.ShardDataset, **costs_ns: int) -> list[EncodingGain]:
    """The gains, if decoding takes that long."""
    costs = COSTS_NS | costs_ns

    def decode(self: CpuDecoder, buffers: Any, *arguments: Any) -> DecodeResult:
        spent_ns = np.array([[costs[kind_of(bytes(each))], 0, 0] for each in buffers])
        return DecodeResult([None] * len(buffers), spent_ns=spent_ns)

    with monkeypatch.context() as patch:
        patch.setattr(CpuDecoder, "decode", decode)
        return encoding_gains(shards)


def test_both_encodings_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seekable, packed = gains(monkeypatch, dataset(tmp_path, "keep"))
    assert (seekable.encoding, seekable.decode) == ("seekable", 0.5)
    assert (packed.encoding, packed.decode) == ("packed", 0.25)
    assert packed.size > seekable.size > 0.5
    assert str(EncodingGain("packed", 0.25, 1.2)) == (
        "packed shards would decode 4.0 times as fast from whole files, with 1.20 times the bytes "
        "(feeder shard --encode packed)"
    )


def test_seekable_images_could_be_packed_and_packed_ones_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packed,) = gains(monkeypatch, dataset(tmp_path, "seekable"))
    assert (packed.encoding, packed.decode) == ("packed", 0.5)
    assert gains(monkeypatch, dataset(tmp_path, "packed")) == []


def test_an_encoding_without_a_noticeable_gain_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = gains(monkeypatch, dataset(tmp_path, "keep"), packed=390)
    assert [gain.encoding for gain in found] == ["seekable"]
