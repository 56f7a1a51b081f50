from __future__ import annotations

import base64
import io
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from feeder import DataLoader, FolderDataset, ShardDataset, write_shards
from feeder.decoders.image_header import image_info
from feeder.errors import ArgumentError, ShardError, SourceError
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.write import encode as write_encode
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from feeder.transforms import Resize
from tests.support import jpegs
from tests.support.images import encode, pixels
from tests.support.shard_sets import contents, samples_of


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encode") / "images" / "c"
    folder.mkdir(parents=True)
    photo = pixels(1, 300, 200)
    (folder / "base.jpg").write_bytes(encode(photo, quality=85))
    (folder / "progressive.jpg").write_bytes(encode(photo, progressive=True))
    (folder / "turned.jpg").write_bytes(encode(photo, orientation=6))
    (folder / "gray.jpg").write_bytes(encode(photo.convert("L")))
    (folder / "cmyk.jpg").write_bytes(encode(photo.convert("CMYK")))
    (folder / "picture.png").write_bytes(encode(photo, "PNG"))
    (folder / "turned.tiff").write_bytes(encode(photo.transpose(Image.Transpose.ROTATE_90), "TIFF", orientation=6))
    return folder.parent


def run(source: Path, out: Path, **options: object) -> dict[str, bytes]:
    shard(str(source), str(out), ShardOptions(encode=EncodeOptions(**options)))  # type: ignore[arg-type]
    return {path: data for path, data, _ in samples_of(out)}


def rgb(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


@pytest.mark.parametrize("options", [EncodeOptions(), EncodeOptions("jpeg", max_side=60)])
def test_images_larger_than_feeder_decodes_are_rejected(
    source: Path, tmp_path: Path, options: EncodeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_encode, "MAX_PIXELS", 5000)  # in place of 89 million, which take seconds
    too_many = "300x200 is more than the 5,000 pixels that feeder decodes; make it smaller first"
    with pytest.raises(SourceError, match=too_many):
        shard(str(source), str(tmp_path / "out"), ShardOptions(max_bad=1, encode=options))


@pytest.mark.parametrize("mode", ["seekable", "packed", "keep", "jpeg"])
def test_jpegs_are_taken_if_all_their_blocks_decode(tmp_path: Path, mode: str) -> None:
    photo = pixels(1, 96, 80)
    plain, restarts = encode(photo), encode(photo, restart_marker_rows=1)
    markers = re.compile(rb"\xff[\xd0-\xd7]")
    half = plain[: len(plain) // 2]
    good = {
        "plain.jpg": plain,
        "zeros.jpg": plain[:-2] + bytes(64),
        "ones.jpg": restarts[:-2] + b"\xff" * 64,
        "restarts.jpg": markers.sub(lambda found: b"\0\0\0" + found[0], restarts),
        "other-bytes.jpg": markers.sub(lambda found: b"\x12\x34\x56" + found[0], restarts),
        "both.jpg": markers.sub(lambda found: b"\0" + found[0], restarts)[:-2] + bytes(9),
        "no-end.jpg": plain[:-2],
    }
    bad = {
        "cut-off.jpg": half + bytes(len(plain)),
        "cut-short.jpg": plain[:-6] + bytes(4),
        "half.jpg": half,
        "progressive.jpg": encode(photo, progressive=True)[:-2] + bytes(64),
    }
    (tmp_path / "src").mkdir()
    for name, data in (good | bad).items():
        (tmp_path / "src" / name).write_bytes(data)
    summary = shard(str(tmp_path / "src"), str(tmp_path / "out"), ShardOptions(max_bad=1, encode=EncodeOptions(mode)))
    decoded = ShardDataset(tmp_path / "out", fields=("path",), labels=False)
    found = {sample[-1]: sample[0] for sample in map(decoded.__getitem__, range(len(decoded)))}
    assert found.keys() == good.keys()
    assert all(torch.equal(image, found["plain.jpg"]) for image in found.values())
    assert rejected(tmp_path / "out").keys() == bad.keys()
    if mode == "packed":
        assert summary.encoded["packed"] == 1  # the others would not come back to the byte
    else:
        assert summary.encoded == {"kept" if mode == "keep" else mode: len(good)}


def rows(out: Path) -> dict[str, tuple[str, int, int, int]]:
    index = open_index(out / "index.bin")
    return {
        index.source_path(i): (
            index.image_field(i),
            int(index.column("width")[i]),
            int(index.column("height")[i]),
            int(index.column("orientation")[i]),
        )
        for i in range(len(index))
    }


def test_seekable_is_the_default_and_keeps_every_pixel(source: Path, tmp_path: Path) -> None:
    shard(str(source), str(tmp_path / "out"))
    for path, data, _ in samples_of(tmp_path / "out"):
        assert np.array_equal(rgb(data), rgb((source / path).read_bytes())), path
        restart_interval = b"\xff\xdd\x00\x04" in data
        assert restart_interval == (path in {"c/base.jpg", "c/progressive.jpg", "c/turned.jpg", "c/gray.jpg"}), path
    assert rows(tmp_path / "out")["c/turned.jpg"] == ("jpg", 300, 200, 6)
    manifest = Manifest.read(str(tmp_path / "out"))
    assert manifest is not None
    assert manifest.settings["encode"] == "seekable"
    assert manifest.encoded["seekable"] == 4
    assert manifest.encoded["kept (png)"] == 1
    assert sum(manifest.encoded.values()) == 7
    assert any("CMYK" in reason for reason in manifest.encoded)


@pytest.mark.parametrize("mode", ["seekable", "keep", "jpeg", "raw"])
def test_damage_that_pillow_conceals_is_rejected(source: Path, tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "src" / "c"
    folder.mkdir(parents=True)
    data = bytearray((source / "c" / "base.jpg").read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40] = b"\x00" * 40
    (folder / "damaged.jpg").write_bytes(data)
    (folder / "good.jpg").write_bytes(encode(pixels(1)))
    shard(str(tmp_path / "src"), str(tmp_path / "out"), ShardOptions(max_bad=1, encode=EncodeOptions(mode)))
    assert [path for path, _, _ in samples_of(tmp_path / "out")] == ["c/good.jpg"]
    assert "Corrupt JPEG data" in rejected(tmp_path / "out")["c/damaged.jpg"]


def test_metadata_stays_or_goes_but_orientation_stays(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "src" / "c"
    folder.mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 8, "Camera Maker"
    (folder / "x.jpg").write_bytes(encode(pixels(2, 64, 48), exif=exif, comment=b"a remark"))
    kept = run(tmp_path / "src", tmp_path / "kept")["c/x.jpg"]
    stripped = run(tmp_path / "src", tmp_path / "stripped", keep_metadata=False)["c/x.jpg"]
    assert b"Camera Maker" in kept
    assert b"a remark" in kept
    assert b"Camera Maker" not in stripped
    assert b"a remark" not in stripped
    assert Image.open(io.BytesIO(stripped)).getexif()[0x0112] == 8


def test_jpeg_makes_smaller_seekable_copies_of_everything(source: Path, tmp_path: Path) -> None:
    found = run(source, tmp_path / "out", mode="jpeg", max_side=150, quality=80)
    for path, data in found.items():
        assert b"\xff\xdd\x00\x04" in data, path
        expected = np.asarray(Image.open(source / path).convert("RGB").resize((150, 100), Image.Resampling.LANCZOS))
        assert np.abs(rgb(data) - expected).mean() < 6, path
    table = rows(tmp_path / "out")
    assert {row[:3] for row in table.values()} == {("jpg", 150, 100)}
    assert (table["c/turned.jpg"][3], table["c/turned.tiff"][3]) == (6, 1)  # Pillow has turned the TIFF already
    assert Image.open(io.BytesIO(found["c/turned.jpg"])).getexif()[0x0112] == 6


def test_raw_holds_the_pixels_as_stored(source: Path, tmp_path: Path) -> None:
    found = run(source, tmp_path / "out", mode="raw")
    for path, data in found.items():
        array = np.load(io.BytesIO(data), allow_pickle=False)
        assert array.dtype == np.uint8
        assert np.array_equal(array, np.asarray(Image.open(source / path).convert("RGB"))), path
    assert rows(tmp_path / "out")["c/turned.jpg"] == ("npy", 300, 200, 6)
    assert rows(tmp_path / "out")["c/turned.tiff"] == ("npy", 300, 200, 1)


@pytest.mark.parametrize("mode", ["seekable", "jpeg", "raw"])
def test_encoding_is_deterministic_whatever_the_workers(source: Path, tmp_path: Path, mode: str) -> None:
    encoding = EncodeOptions(mode)
    for workers in (1, 3):
        options = ShardOptions(samples_per_shard=2, workers=workers, encode=encoding)
        shard(str(source), str(tmp_path / str(workers)), options)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def test_another_encoding_on_the_same_folder_is_refused(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out", mode="jpeg", quality=80)
    with pytest.raises(ShardError, match="quality=80, asked for quality=70"):
        run(source, tmp_path / "out", mode="jpeg", quality=70)


def test_an_image_that_must_be_decoded_and_cannot_be_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "c"
    folder.mkdir(parents=True)
    (folder / "good.jpg").write_bytes(encode(pixels(1)))
    data = encode(pixels(2, 100, 100))
    (folder / "bad.jpg").write_bytes(data[:300] + b"\xff\xd9")
    shard(str(tmp_path / "src"), str(tmp_path / "out"), ShardOptions(max_bad=1, encode=EncodeOptions("raw")))
    (row,) = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert row["path"] == "c/bad.jpg"
    assert row["reason"].startswith("truncated jpg")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "zip"}, "encode must be one of seekable, packed, keep, jpeg, raw, got 'zip'"),
        ({"max_side": 100}, "max_side changes pixels"),
        ({"mode": "raw", "max_side": 0}, "max_side must be an integer of 1 or more, or None"),
        ({"mode": "jpeg", "quality": 100}, "quality must be an integer from 1 to 95"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        EncodeOptions(**options)  # type: ignore[arg-type]


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    parts = [struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def header(width: int, height: int) -> tuple[bytes, bytes]:
    return b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)


# 40 x 24 pixels, by libjpeg with arith_code set: Pillow reads such files, but does not write them.
ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYV"
    "pQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//yQARCAAY"
    "ACgDASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AJMcLpjY8eknQd3TnFzh2kbkr5aQbg+xrjuUNEfvPdWTI23CdMMwE6l2FB"
    "W/s2dQPf6uo0Unp++as06lsCQLPTut5r3T31Q2LpYF2RjqNd5f0ZlpXc5IaWPvJbkmTZbIvK4Akjumiyaqu5mgGXyvkJgZAd5Lkbou9Cf6s5Qf"
    "2SJ9l0YyX/qIVYnsaRqFVuq+HDs6Yrqghz3GNgTjeMqjSubGoQZwWA4P2I3VK6xX2pSagGXfMeh2gP/Z"
)


def rejected(out: Path) -> dict[str, str]:
    rows = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    return {row["path"]: row["reason"] for row in rows}


@pytest.mark.parametrize("mode", ["seekable", "keep", "raw"])
def test_what_is_sharded_can_be_loaded_and_the_rest_is_rejected(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "src" / "c"
    folder.mkdir(parents=True)
    picture = encode(pixels(3), "PNG")
    bomb = b"Comment\0\0" + zlib.compress(b"x" * (1 << 21))
    adobe_rgb = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0"
    files = {
        "text.png": picture[:33] + png((b"zTXt", bomb))[8:] + picture[33:],
        "profile.png": picture[:33] + png((b"iCCP", b"name\0\0" + zlib.compress(b"x" * (1 << 26))))[8:] + picture[33:],
        "nonsense.png": png(header(9, 9), (b"IDAT", b"nonsense"), (b"IEND", b"")),
        "12 bits.jpg": jpegs.patched(jpegs.jpeg("4:2:0"), jpegs.frame_offset(jpegs.jpeg("4:2:0")) + 4, 12),
        "thirds of halves.jpg": jpegs.flat_blocks((0x12, 0x13, 0x13), (64, 48)),
        "no end.jpg": encode(pixels(4), progressive=True)[:-2],
        "rgb.jpg": jpegs.with_segments(jpegs.flat_blocks((0x22, 0x11, 0x11), (64, 48)), adobe_rgb),
        "odd.jpg": jpegs.flat_blocks((0x11, 0x12, 0x12), (64, 48)),
        "cmyk.jpg": encode(pixels(5).convert("CMYK")),
        "arithmetic.jpg": ARITHMETIC,
        "plain.png": picture,
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    shard(str(tmp_path / "src"), str(tmp_path / "out"), ShardOptions(max_bad=1, encode=EncodeOptions(mode)))
    kept = {"c/rgb.jpg", "c/odd.jpg", "c/cmyk.jpg", "c/arithmetic.jpg", "c/plain.png"}
    assert {path for path, _, _ in samples_of(tmp_path / "out")} == kept
    assert rejected(tmp_path / "out").keys() == {f"c/{name}" for name in files} - kept
    dataset = ShardDataset(tmp_path / "out", transform=Resize((32, 32)))
    loader = DataLoader(dataset, batch_size=4)
    assert sum(len(images) for images, _ in loader) == len(kept)
    assert loader.stats()["slow"] == (0 if mode == "raw" else 3)
    with pytest.warns(UserWarning, match="runs torch's path"):
        single = DataLoader(dataset, batch_size=None)
    assert len(list(single)) == len(kept)
    assert single.stats()["slow"] == loader.stats()["slow"]


def deep_images(folder: Path) -> None:
    folder.mkdir(parents=True)
    levels = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
    (folder / "16 bits.png").write_bytes(encode(Image.fromarray(levels), "PNG"))
    (folder / "big endian.tiff").write_bytes(encode(Image.fromarray(levels.astype(">u2")), "TIFF"))
    (folder / "floats.tiff").write_bytes(encode(Image.fromarray(levels.astype(np.float32) / 65535), "TIFF"))
    (folder / "16 bits, small.png").write_bytes(encode(Image.fromarray(levels % 256), "PNG"))
    (folder / "8 bits.png").write_bytes(encode(Image.fromarray((levels % 256).astype(np.uint8)), "PNG"))


@pytest.mark.parametrize("mode", ["seekable", "keep", "raw", "jpeg"])
def test_images_that_lose_range_are_counted_when_sharded(tmp_path: Path, mode: str) -> None:
    deep_images(tmp_path / "src" / "c")
    summary = shard(str(tmp_path / "src"), str(tmp_path / "out"), ShardOptions(encode=EncodeOptions(mode)))
    assert (summary.samples, summary.clipped) == (5, 3)
    again = shard(str(tmp_path / "src"), str(tmp_path / "out"), ShardOptions(encode=EncodeOptions(mode)))
    assert again.clipped == 3


def test_images_that_lose_range_are_rejected_on_request(tmp_path: Path) -> None:
    deep_images(tmp_path / "src" / "c")
    options = ShardOptions(max_bad=1, encode=EncodeOptions(reject_deep=True))
    summary = shard(str(tmp_path / "src"), str(tmp_path / "out"), options)
    assert (summary.samples, summary.clipped) == (2, 0)
    found = rejected(tmp_path / "out")
    assert found.keys() == {"c/16 bits.png", "c/big endian.tiff", "c/floats.tiff"}
    assert all("more than 8 bits" in reason for reason in found.values())


def test_the_command_warns_of_images_that_lose_range_also_when_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep_images(tmp_path / "src" / "c")
    assert main(["shard", "-q", str(tmp_path / "src"), "--out", str(tmp_path / "out")]) == 0
    assert "warning: 3 images of more than 8 bits a sample clipped" in capsys.readouterr().err
    assert main(["shard", "-q", str(tmp_path / "src"), "--out", str(tmp_path / "b"), "--reject-deep"]) == 3


class _Wrapped(torch.utils.data.Dataset[Any]):
    def __init__(self, inner: FolderDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> Any:
        return self.inner[i]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("path", ["fast", "generic"])
@pytest.mark.filterwarnings("ignore:this loader runs torch's path")
def test_images_that_lose_range_are_counted_when_loaded(tmp_path: Path, workers: int, path: str) -> None:
    deep_images(tmp_path / "c")
    dataset: Any = FolderDataset(tmp_path, transform=Resize((16, 16)))
    dataset = dataset if path == "fast" else _Wrapped(dataset)
    loader = DataLoader(dataset, batch_size=2, num_workers=workers)
    assert loader.path == path
    with pytest.warns(UserWarning, match="3 images of more than 8 bits a sample clipped") as caught:
        for _ in loader:
            pass
    assert [each.filename for each in caught if "clipped" in str(each.message)] == [__file__]
    assert loader.stats()["clipped"] == 3
    for _ in loader:  # warns no more
        pass
    assert loader.stats()["clipped"] == 6
    loader.close()


def test_images_that_lose_range_are_warned_of_once_where_no_loader_of_ours_counts_them(tmp_path: Path) -> None:
    deep_images(tmp_path / "c")
    dataset = FolderDataset(tmp_path, transform=Resize((16, 16)))
    with pytest.warns(UserWarning, match=r"sample 'c/16 bits.png': 1 image of more than 8 bits") as caught:
        for _ in [*torch.utils.data.DataLoader(dataset, batch_size=2), *map(dataset.__getitem__, range(5))]:
            pass
    assert len(caught) == 1


def test_write_shards_warns_of_images_that_lose_range(tmp_path: Path) -> None:
    deep_images(tmp_path / "c")
    samples = [{"__key__": path.stem, "png": path.read_bytes()} for path in (tmp_path / "c").glob("*.png")]
    with pytest.warns(UserWarning, match="1 image of more than 8 bits a sample clipped"):
        write_shards(samples, tmp_path / "out")


@pytest.mark.parametrize("jpeg_ms", [4.0, 0.25])
def test_formats_that_decode_faster_as_jpeg_get_a_line_of_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jpeg_ms: float
) -> None:
    timed = []

    def decode_ms(images: Any) -> float:
        kinds = {info.extension for data, info in images if image_info(data) == info}
        timed.append((kinds, len(images)))
        return jpeg_ms if kinds == {"jpg"} else 4.0

    monkeypatch.setattr("feeder.shard.write.write_run.decode_ms", decode_ms)
    folder = tmp_path / "src" / "c"
    folder.mkdir(parents=True)
    for i in range(9):
        kind = "WEBP" if i < 6 else "JPEG"
        (folder / f"{i}.{kind.lower()}").write_bytes(encode(pixels(i, 90, 70), kind))
    notes = shard(str(tmp_path / "src"), str(tmp_path / "out"), ShardOptions()).notes
    assert timed == [({"webp"}, 4), ({"jpg"}, 4)]
    line = "6 of 9 images are not JPEGs. A crop of a webp took 4 ms, and 0.25 ms of the same image as JPEG"
    assert [note for note in notes if "advice" in note] == (
        [f"advice: {line}: --encode jpeg makes lossy copies"] if jpeg_ms < 1 else []
    )


def test_what_no_decoder_can_read_is_rejected_and_advice_never_fails(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "c"
    folder.mkdir(parents=True)
    (folder / "good.jpg").write_bytes(encode(pixels(1)))
    data = encode(pixels(2, 100, 100))
    (folder / "headers.jpg").write_bytes(data[:300] + b"\xff\xd9")
    (folder / "huge.png").write_bytes(png(header(60_000, 60_000), (b"IDAT", b"x"), (b"IEND", b"")))
    flipped = bytearray(encode(pixels(3), "PNG"))
    flipped[60] ^= 1
    (folder / "flipped.png").write_bytes(flipped)
    (folder / "nonsense.png").write_bytes(png(header(9, 9), (b"IDAT", b"nonsense"), (b"IEND", b"")))
    shard(str(tmp_path / "src"), str(tmp_path / "out"), ShardOptions(max_bad=1))
    reasons = rejected(tmp_path / "out")
    assert reasons.keys() == {"c/headers.jpg", "c/huge.png", "c/flipped.png", "c/nonsense.png"}
    assert "60000x60000 is more than" in reasons["c/huge.png"]
    assert "c/good.jpg" in {path for path, _, _ in samples_of(tmp_path / "out")}
