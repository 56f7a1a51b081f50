"""Encodes images on their way into a shard."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feeder.decoders.decoder import MAX_PIXELS, View
from feeder.decoders.image_header import (
    EXIF_HEAD,
    PILLOW_FORMATS,
    ImageInfo,
    jpeg_orientation,
    quiet_pillow,
)
from feeder.decoders.packed import add_codebooks, codebook_id
from feeder.decoders.registry import get_decoder
from feeder.errors import KERNELS_COMMAND, ArgumentError, BackendError
from feeder.system.checks import check_int, check_one_of
from feeder.transforms import RandomResizedCrop, Recipe, Resize

PROGRESSIVE = ("keep", "sequential")
ENCODINGS = ("seekable", "packed", "keep", "jpeg", "raw")
# Decodes an image to one pixel, to which all its pixels contribute.
_LOOK = Recipe((Resize((1, 1)),))
_CROP = Recipe((RandomResizedCrop(224),))
_NEEDS_NATIVE = ("seekable", "packed", "jpeg")
_SETTINGS = ("max_side", "quality", "keep_metadata", "reject_deep", "progressive")
_MAX_EXIF_BYTES = 65_533  # the capacity of a marker segment


@dataclass(frozen=True)
class EncodeOptions:
    """Options for encoding images.

    Attributes:
        mode: "seekable": JPEGs are rewritten losslessly so that a crop can be decoded alone, other formats are kept;
            "packed": JPEGs are stored without Huffman codes, from which the file comes back to the byte, others as
            for "seekable"; "keep": bytes as they are; "jpeg": decoded and encoded again as seekable JPEG; "raw":
            decoded to uint8 [H, W, 3] in an ``.npy`` file.
        max_side: For "jpeg" and "raw": the longer side is reduced to this number of pixels; None for no limit.
        quality: For "jpeg": 1 to 95.
        keep_metadata: For "seekable" and "jpeg": keeps EXIF, ICC profile and comments. Orientation is always kept.
        reject_deep: Rejects images of more than 8 bits per channel, which decoding clips.
        progressive: For "packed": "keep" makes progressive JPEGs seekable; "sequential" packs a sequential copy of
            them, with the same coefficients, so that the copy comes back and not the file.
    """

    mode: str = "seekable"
    max_side: int | None = None
    quality: int = 90
    keep_metadata: bool = True
    reject_deep: bool = False
    progressive: str = "keep"

    def __post_init__(self) -> None:
        check_one_of("encode", self.mode, ENCODINGS)
        check_int("max_side", self.max_side, 1, or_none=True)
        if self.max_side is not None and self.mode not in ("jpeg", "raw"):
            raise ArgumentError(f"max_side changes pixels, so it needs encode 'jpeg' or 'raw', got {self.mode!r}")
        if self.mode == "packed" and not self.keep_metadata:
            raise ArgumentError("encode 'packed' keeps files to the byte, so it can't strip their metadata")
        check_one_of("progressive", self.progressive, PROGRESSIVE)
        if self.progressive != "keep" and self.mode != "packed":
            raise ArgumentError(f"progressive {self.progressive!r} needs encode 'packed', got {self.mode!r}")
        check_int("quality", self.quality, 1, 95)

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> EncodeOptions:
        """Returns the options of a set, see :meth:`settings`."""
        return cls(settings["encode"], **{name: settings[name] for name in _SETTINGS if settings[name] is not None})

    def settings(self) -> dict[str, object]:
        """Returns the options that the result depends on."""
        settings: dict[str, object] = {"encode": self.mode} | {name: getattr(self, name) for name in _SETTINGS}
        return settings if self.mode == "jpeg" else settings | {"quality": None}


class EncodedImage(NamedTuple):
    """An image as it goes into the shard.

    Attributes:
        data: Its bytes.
        info: Its format and stored size; orientation is recorded, never applied to the pixels.
        outcome: The way it was encoded, for counting: "seekable", "packed", "packed (sequential copy)", "seekable (not
            packed: progressive)", "kept (png)", "kept (JPEG: CMYK)", ...
        clipped: True if it has more than 8 bits per channel, so that decoding clips it.
    """

    data: bytes
    info: ImageInfo
    outcome: str
    clipped: bool = False


def check_encoder(options: EncodeOptions) -> None:
    """Checks that the native kernels are installed, if the encoding needs them.

    Raises:
        BackendError: if they can't be loaded.
    """
    if options.mode in _NEEDS_NATIVE:
        try:
            import feeder._native  # noqa: F401
        except ImportError as error:
            raise BackendError(
                f"--encode {options.mode} needs feeder's native kernels, which can't be loaded ({error}): install "
                f"them ({KERNELS_COMMAND}, which `make wheel` makes in a clone), or use --encode keep"
            ) from None


def decode_ms(images: Sequence[tuple[bytes, ImageInfo]]) -> float:
    """Returns the time to decode a random crop of an image, milliseconds: the least of three, on average.

    Args:
        images: At least one, with its header.
    """
    draws = _CROP.draw(0, 0, np.arange(len(images)), [info.upright_size for _, info in images])
    view = View(_CROP, draws, np.empty((len(images), 3, 224, 224), np.uint8))
    orientations = np.array([info.orientation for _, info in images], np.uint8)
    decoder, spent_s = get_decoder(), []

    for _ in range(3):
        started_s = time.perf_counter()
        decoder.decode([data for data, _ in images], orientations, [view])
        spent_s.append(time.perf_counter() - started_s)
    return 1000.0 * min(spent_s) / len(images)


class Encoder:
    """Encodes images one by one. Each thread needs its own.

    Args:
        options: The options for encoding.
        codebook: For "packed": the codebook.
    """

    def __init__(self, options: EncodeOptions, codebook: bytes | None = None) -> None:
        self._options = options
        self._codebook_id = None if codebook is None else codebook_id(codebook)
        if codebook is not None:
            add_codebooks([codebook])
        self._decoder = get_decoder()

    def encode(self, data: bytes, info: ImageInfo) -> EncodedImage:
        """Encodes one image after checking that it can be loaded.

        Args:
            data: The encoded image from the source.
            info: Its header.

        Raises:
            ValueError: if it can't be loaded, so that it must not become a sample.
        """
        options = self._options
        if info.width_px * info.height_px > MAX_PIXELS:
            reason = f"{info.width_px}x{info.height_px} is more than the {MAX_PIXELS:,} pixels that feeder decodes"
            raise ValueError(f"{reason}; make it smaller first")
        encoded = EncodedImage(data, info, "kept")
        if options.mode in ("seekable", "packed"):
            encoded = self._lossless(data, info)
            if not encoded.outcome.startswith("kept"):  # every coefficient was read, so it can be decoded
                return encoded

        clipped = self._load(data, info)
        if clipped and options.reject_deep:
            raise ValueError("has more than 8 bits per channel, and would be clipped to 0-255 (--reject-deep)")
        if options.mode in ("jpeg", "raw"):
            encoded = _reencode(data, info, options)
        return encoded._replace(clipped=clipped)

    def _lossless(self, data: bytes, info: ImageInfo) -> EncodedImage:
        """Packs a JPEG, or makes it seekable; keeps other formats."""
        if info.extension != "jpg":
            return EncodedImage(data, info, f"kept ({info.extension})")
        if self._codebook_id is None:
            return _seekable(data, info, self._options, "seekable")
        packed, reason = self._pack(data)
        if packed is not None:
            return EncodedImage(packed, info._replace(extension="fpk"), "packed")

        encoded = _seekable(data, info, self._options, f"seekable (not packed: {reason})")
        if reason != "progressive" or self._options.progressive != "sequential" or encoded.data is data:
            return encoded
        # The seekable JPEG is sequential, with the same coefficients.
        packed, reason = self._pack(encoded.data, sequential_copy=True)
        if packed is None:
            return encoded._replace(outcome=f"seekable (not packed: {reason})")
        return EncodedImage(packed, info._replace(extension="fpk"), "packed (sequential copy)")

    def _pack(self, data: bytes, *, sequential_copy: bool = False) -> tuple[bytes | None, str]:
        """Returns a packed JPEG; None and the reason if it can't be packed."""
        from feeder._native import Unsupported, pack

        assert self._codebook_id is not None
        digest = hashlib.sha256(data).digest()
        try:
            return pack(data, self._codebook_id, digest, max_pixels=MAX_PIXELS, sequential_copy=sequential_copy), ""
        except Unsupported as error:
            return None, str(error)

    def _load(self, data: bytes, info: ImageInfo) -> bool:
        """Decodes an image as a loader would; returns True if it is clipped."""
        draws = _LOOK.draw(0, 0, np.zeros(1, np.int64), np.array([[info.height_px, info.width_px]], np.int32))
        view = View(_LOOK, draws, np.empty((1, 3, 1, 1), np.uint8))
        result = self._decoder.decode([data], np.ones(1, np.uint8), [view])
        (error,) = result.errors
        if error is not None:
            raise ValueError(f"damaged or unsupported {info.extension}: {error.reason}")
        return result.clipped > 0


def _seekable(data: bytes, info: ImageInfo, options: EncodeOptions, outcome: str) -> EncodedImage:
    """Rewrites a JPEG losslessly as a seekable one, with that outcome; keeps one of a kind that can't be rewritten."""
    from feeder._native import Status, Unsupported, transcode

    try:
        # The same limit as in decoding: a header of a few bytes may claim gigabytes of coefficients.
        rewritten = transcode(
            data, keep_metadata=options.keep_metadata, orientation=info.orientation, max_pixels=MAX_PIXELS
        )
        return EncodedImage(rewritten, info, outcome)
    except Unsupported as error:
        if error.status == Status.UNSUPPORTED:
            return EncodedImage(data, info, f"kept ({error})")
        raise ValueError(f"damaged jpg: {error}") from None


def _reencode(data: bytes, info: ImageInfo, options: EncodeOptions) -> EncodedImage:
    """Decodes an image with Pillow, makes it smaller, and encodes it as the options say."""
    from PIL import Image

    try:
        # Pillow reads that far ahead of the last block, which may be all that there is.
        ahead = bytes(8) if info.extension == "jpg" else b""
        with quiet_pillow(), Image.open(io.BytesIO(data + ahead), formats=PILLOW_FORMATS) as opened:
            image = opened.convert("RGB")
            metadata = {name: opened.info[name] for name in ("exif", "icc_profile") if opened.info.get(name)}
        exif = metadata.get("exif", b"")
        if exif and not exif.startswith(EXIF_HEAD):  # WebP stores it without
            exif = metadata["exif"] = EXIF_HEAD + exif
    except Exception as error:  # Pillow raises nearly any error on damaged files
        raise ValueError(f"damaged {info.extension}: {error}") from None

    longest = max(image.size)
    if options.max_side is not None and longest > options.max_side:
        width, height = (max(1, round(side * options.max_side / longest)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)

    buffer = io.BytesIO()
    if options.mode == "raw":
        np.save(buffer, np.asarray(image), allow_pickle=False)
        return EncodedImage(buffer.getvalue(), ImageInfo("npy", image.width, image.height, info.orientation), "raw")

    # Orientation is recorded, never applied to the pixels. EXIF that says another one, or is too long, is replaced.
    if len(exif) > _MAX_EXIF_BYTES or info.orientation != jpeg_orientation([exif] if exif else [], None):
        oriented = Image.Exif()
        oriented[0x0112] = info.orientation
        metadata["exif"] = oriented.tobytes()
    image.save(buffer, "JPEG", quality=options.quality, **metadata)
    return _seekable(buffer.getvalue(), ImageInfo("jpg", image.width, image.height, info.orientation), options, "jpeg")
