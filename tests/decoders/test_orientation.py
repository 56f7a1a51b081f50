"""The orientation that is recorded is the one that Pillow's exif_transpose applies, wherever a file has it."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from feeder.decoders.image_header import image_info
from feeder.shard.format.open_index import open_index
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.images import encode, pixels
from tests.support.shard_sets import samples_of

PHOTO = pixels(5, 40, 30)


def tiff(*entries: tuple[int, int, int, bytes], order: str = ">", count: int | None = None, tail: bytes = b"") -> bytes:
    """An EXIF block: entries of (tag, type, count, four bytes)."""
    head = (b"MM\0*" if order == ">" else b"II*\0") + struct.pack(order + "I", 8)
    body = b"".join(struct.pack(order + "HHI", *entry[:3]) + entry[3] for entry in entries)
    return head + struct.pack(order + "H", len(entries) if count is None else count) + body + b"\0" * 4 + tail


def turned(value: int, order: str = ">") -> tuple[int, int, int, bytes]:
    return 0x0112, 3, 1, struct.pack(order + "Hxx", value)


def jpeg(*segments: tuple[int, bytes], before_scan: tuple[tuple[int, bytes], ...] = ()) -> bytes:
    data = encode(PHOTO)
    scan = data.index(b"\xff\xda")
    return data[:2] + markers(segments) + data[2:scan] + markers(before_scan) + data[scan:]


def markers(segments: tuple[tuple[int, bytes], ...]) -> bytes:
    return b"".join(b"\xff" + bytes([code]) + struct.pack(">H", 2 + len(data)) + data for code, data in segments)


def exif(*args: object, **options: object) -> tuple[int, bytes]:
    return 0xE1, b"Exif\0\0" + tiff(*args, **options)  # type: ignore[arg-type]


def xmp(value: int) -> bytes:
    return f'<x:xmpmeta><rdf:Description tiff:Orientation="{value}"/></x:xmpmeta>'.encode()


def png(*chunks: tuple[bytes, bytes], late: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    data = encode(PHOTO, "PNG")
    start, end = data.index(b"IDAT") - 4, data.index(b"IEND") - 4
    return data[:start] + packed(chunks) + data[start:end] + packed(late) + data[end:]


def packed(chunks: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)


def raw_profile(block: bytes) -> bytes:
    return b"exif\n%8d\n" % len(block) + block.hex().encode() + b"\n"


def text(value: bytes) -> bytes:
    return b"Raw profile type exif\0\0" + zlib.compress(b"\n" + raw_profile(value))


MAKER = (0x010F, 2, 100, struct.pack(">I", 5000))  # a text that lies nowhere

FILES = {
    "exif": jpeg(exif(turned(6))),
    "exif, little endian": jpeg((0xE1, b"Exif\0\0" + tiff(turned(8, "<"), order="<"))),
    "two segments, the first counts": jpeg(exif(turned(6)), exif(turned(3))),
    "two segments, one block": jpeg(exif(count=1), (0xE1, b"Exif\0\0" + struct.pack(">HHIHxx", 0x0112, 3, 1, 5))),
    "behind the frame header": jpeg(before_scan=(exif(turned(6)),)),
    "the tag twice": jpeg(exif(turned(6), turned(3))),
    "a long": jpeg(exif((0x0112, 4, 1, struct.pack(">I", 6)))),
    "a byte": jpeg(exif((0x0112, 1, 1, b"\x06\0\0\0"))),
    "two values": jpeg(exif((0x0112, 3, 2, struct.pack(">HH", 6, 1)))),
    "out of range": jpeg(exif(turned(9))),
    "out of range, with xmp": jpeg(exif(turned(9)), (0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp(3))),
    "behind a tag that lies nowhere": jpeg(exif(MAKER, turned(6))),
    "a directory cut short": jpeg(exif(turned(6), count=9)),
    "xmp only": jpeg((0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp(6))),
    "xmp beside an exif without": jpeg(exif(MAKER), (0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp(6))),
    "exif beside xmp": jpeg(exif(turned(8)), (0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp(6))),
    "padding between segments": jpeg((0xE0, b"other"), exif(turned(6))).replace(b"other", b"other\0\0\0", 1),
    "png": png((b"eXIf", tiff(turned(6)))),
    "png, behind 64 KiB": png((b"tEXt", b"Comment\0" + b"x" * 70_000), (b"eXIf", tiff(turned(6)))),
    "png, a block of 80 KiB": png((b"eXIf", tiff(turned(6), tail=b"x" * 80_000))),
    "png, behind the pixels": png(late=((b"eXIf", tiff(turned(6))),)),
    "png, raw profile": png((b"zTXt", text(b"Exif\0\0" + tiff(turned(6))))),
    "png, raw profile behind the pixels": png(late=((b"zTXt", text(b"Exif\0\0" + tiff(turned(6)))),)),
    "png, xmp": png((b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(6))),
    "png, xmp behind the pixels": png(late=((b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(8)),)),
    "png, a word in its pixels' place": png((b"tEXt", b"Comment\0eXIf")),
    "webp": encode(PHOTO, "WEBP", exif=b"Exif\0\0" + tiff(turned(6))),
    "webp, xmp": encode(PHOTO, "WEBP", xmp=xmp(6)),
    "tiff": encode(PHOTO, "TIFF", orientation=6),
}
UPRIGHT = dict(
    zip(
        range(2, 9),
        (
            Image.Transpose.FLIP_LEFT_RIGHT,
            Image.Transpose.ROTATE_180,
            Image.Transpose.FLIP_TOP_BOTTOM,
            Image.Transpose.TRANSPOSE,
            Image.Transpose.ROTATE_270,
            Image.Transpose.TRANSVERSE,
            Image.Transpose.ROTATE_90,
        ),
        strict=True,
    )
)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about odd files
def test_the_orientation_is_the_one_that_pillow_applies(kind: str) -> None:
    data = FILES[kind]
    with Image.open(io.BytesIO(data)) as image:
        expected = ImageOps.exif_transpose(image).convert("RGB")
    with Image.open(io.BytesIO(data)) as image:
        stored = image.convert("RGB")
    info = image_info(data)
    found = stored.transpose(UPRIGHT[info.orientation]) if info.orientation != 1 else stored
    assert (info.width_px, info.height_px) == stored.size
    assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_unreadable_exif_leaves_the_image_as_stored() -> None:
    for data in (
        jpeg((0xE1, b"Exif\0\0nonsense")),
        jpeg((0xE1, b"Exif\0\0MM")),
        encode(PHOTO, "WEBP", exif=b"Exif\0\0nonsense"),
        png((b"eXIf", b"nonsense")),
    ):
        assert image_info(data).orientation == 1


@pytest.mark.parametrize("mode", ["seekable", "jpeg", "raw"])
@pytest.mark.parametrize("keep_metadata", [True, False])
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about odd files
def test_sharding_keeps_the_orientation_in_the_index_and_in_the_file(
    tmp_path: Path, mode: str, keep_metadata: bool
) -> None:
    folder = tmp_path / "src" / "c"
    folder.mkdir(parents=True)
    kinds = [kind for kind in FILES if not kind.startswith("tiff")]
    for number, kind in enumerate(kinds):
        (folder / f"{number:02d}").with_suffix(".png" if "png" in kind else ".jpg").write_bytes(FILES[kind])
    encoding = EncodeOptions(mode, keep_metadata=keep_metadata)
    shard(str(tmp_path / "src"), str(tmp_path / "out"), ShardOptions(encode=encoding))
    index = open_index(tmp_path / "out" / "index.bin")
    assert len(index) == len(kinds)
    images = {path: data for path, data, _ in samples_of(tmp_path / "out")}
    for i in range(len(index)):
        kind = kinds[int(Path(index.source_path(i)).stem)]
        expected = image_info(FILES[kind]).orientation
        assert index.column("orientation")[i] == expected, kind
        if mode != "raw":
            assert image_info(images[index.source_path(i)]).orientation == expected, kind
