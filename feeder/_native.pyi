"""feeder's CPU kernels, in C++ under kernels/: seekable JPEG, decode, resize and normalize."""

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_Buffer = bytes | bytearray | memoryview

class Status(enum.IntEnum):
    """Status of one image."""

    OK = 0
    DAMAGED = 1
    """Pixels were made, but compressed data is missing or wrong."""
    NOT_JPEG = 2
    """Neither a JPEG, nor a plain PNG, nor an .npy array: for another decoder."""
    UNSUPPORTED = 3
    """A well-formed file of a kind that this module does not decode."""
    CORRUPT = 4
    """No pixels could be made."""
    TOO_LARGE = 5
    """More than max_pixels."""

class AugmentOp(enum.IntEnum):
    """An op of a program.

    A program is float64 [ops, 12]: each row has an op's number, and then its values, which
    ``kernels/cpu/augment/program.h`` names.
    """

    NOTHING = 0
    MIRROR = 1
    FLIP = 2
    GRAYSCALE = 3
    BRIGHTNESS = 4
    CONTRAST = 5
    SATURATION = 6
    HUE = 7
    SHARPNESS = 8
    POSTERIZE = 9
    SOLARIZE = 10
    SOLARIZE_ADD = 11
    AUTOCONTRAST = 12
    EQUALIZE = 13
    INVERT = 14
    AFFINE = 15
    PERSPECTIVE = 16
    BLUR = 17
    PERMUTE = 18
    ADD_NOISE = 19
    MIX_START = 20
    MIX_ADD = 21
    MIX_FINISH = 22
    JPEG = 23
    ERASE = 24
    ERASE_OUTPUT = 25
    ERASE_NOISE = 26

class WarpFilter(enum.IntEnum):
    """The filter of a warp."""

    NEAREST = 0
    BILINEAR = 1
    BICUBIC = 2

def augment(
    image: npt.NDArray[np.uint8],
    out: npt.NDArray[Any],
    programs: npt.NDArray[np.float64] | None = None,
    *,
    dtype: str = "uint8",
    layout: str = "nchw",
    scale: npt.NDArray[np.float32] | None = None,
    bias: npt.NDArray[np.float32] | None = None,
) -> None:
    """Runs a program on an image, without the GIL.

    Args:
        image: uint8 [3, H, W], of any strides.
        out, dtype, layout, scale, bias: As those of :class:`View`, of one image; may share the image's memory.
        programs: float64 [1, ops, 12], see :class:`AugmentOp`; None: nothing is changed but the dtype.

    Raises:
        ValueError: naming what is wrong with the program or another argument.
    """

class Unsupported(ValueError):
    """A JPEG that can't be transcoded; keep it as it is."""

    status: Status

def transcode(
    data: _Buffer, *, keep_metadata: bool, orientation: int = 1, segment_px: int = 64, max_pixels: int = 0
) -> bytes:
    """Rewrites a JPEG losslessly into a seekable one.

    Args:
        data: The JPEG.
        keep_metadata: False drops APPn and COM but for what decides color.
        orientation: The EXIF orientation, 1-8, to write in their place.
        segment_px: Wanted width of a restart segment in pixels.
        max_pixels: Refuse larger images; 0 for no limit.

    Returns:
        A baseline JPEG with the same pixels.

    Raises:
        Unsupported: with the reason, for files to be kept as they are.
    """

def train_codebook(images: Sequence[_Buffer], *, max_pixels: int = 0) -> bytes:
    """Trains a codebook for packed JPEGs.

    Args:
        images: A sample of the JPEGs. Those that can't be packed are left out.
        max_pixels: Leaves larger images out; 0 for no limit.

    Returns:
        The codebook: the same bytes for the same images in the same order.
    """

def add_codebook(id: bytes, data: _Buffer) -> None:
    """Makes a codebook known to all decoders of this process, under the first 8 bytes of its SHA-256.

    Raises:
        ValueError: not a codebook.
    """

def pack(
    data: _Buffer, codebook_id: bytes, sha256: bytes, *, max_pixels: int = 0, sequential_copy: bool = False
) -> bytes:
    """Packs a JPEG, if unpacking it gives the same bytes again.

    Args:
        data: The JPEG.
        codebook_id: The id of a known codebook.
        sha256: The JPEG's SHA-256, 32 bytes, which goes into the packed file.
        max_pixels: Refuses larger images; 0 for no limit.
        sequential_copy: Notes that the JPEG is a sequential copy of a progressive file.

    Raises:
        Unsupported: with the reason why the JPEG should be kept as it is.
    """

def unpack(data: _Buffer, codebook: _Buffer | None = None) -> bytes:
    """Returns the JPEG that was packed. Its SHA-256 is not checked.

    Args:
        data: The packed JPEG.
        codebook: Its codebook, if that is not known; it is not afterwards, either.

    Raises:
        Unsupported: the packed JPEG is damaged, or its codebook is not known.
        ValueError: not a codebook.
    """

def cut(data: _Buffer, support_box: tuple[int, int, int, int], first_row: int = 0) -> tuple[bytes, int, int] | None:
    """Cuts a seekable JPEG to the restart segments that a box needs, or writes a packed one's MCUs as a JPEG.

    Args:
        data: The JPEG.
        support_box: left, top, right, bottom in stored pixels (before orientation).
        first_row: The row of pixels that the data begin with after the header, see :func:`decode_batch`; -1: a packed
            JPEG is whole.

    Returns:
        (JPEG, x, y) with the cut's place in the stored image, or None where the file is not seekable.

    Raises:
        Unsupported: the header can't be read, or restart markers are missing or out of order.
        ValueError: the box does not lie in the image.
    """

def row_places(data: _Buffer) -> bytes | None:
    """Finds the rows of a complete seekable JPEG, in bands of about 32 pixels.

    Args:
        data: The JPEG.

    Returns:
        uint32 values as bytes, in the machine's byte order: the height of a band in pixels, the byte offset of each (of
        the first one: the length of the header), and that of the end of the last one's marker. None if the file is
        not seekable, or not complete.
    """

def row_extents(
    row_data: npt.NDArray[np.uint32],
    starts: npt.NDArray[np.uint64],
    ends: npt.NDArray[np.uint64],
    lengths: npt.NDArray[np.uint64],
    heights: npt.NDArray[np.uint32],
    rows: npt.NDArray[np.int32],
) -> npt.NDArray[np.int64]:
    """Returns the bytes of N images that are needed for some of their rows.

    Args:
        row_data: uint32, the results of :func:`row_places` for many images, one after the other.
        starts: uint64 [N], the places of each image's values in it; not checked beforehand.
        ends: uint64 [N], likewise.
        lengths: uint64 [N], of the images, bytes.
        heights: uint32 [N], of the images, pixels as stored.
        rows: int32 [N, 2], first and end row, in pixels as stored.

    Returns:
        int64 [N, 4]: first_row, header, begin, end. The first ``header`` bytes are needed, and those from ``begin`` to
        ``end``; these start with the marker in front of the band of ``first_row``, in pixels. For row 0 they start with
        the file, and ``header`` is 0. first_row -1: the whole file.

    Raises:
        ValueError: arguments of different lengths.
    """

class HeldIndex:
    """An index that a :class:`PartRunner` reads."""

class ShardRows(HeldIndex):
    """The mapped records of shards, by their numbers; buffers stay exported while they are held.

    Args:
        record_bytes: Size of a record.
        length_at, steps_at, height_at: Offsets in it of the image's length, bytes, uint32; of the number of its first
            value among the shard's steps, uint32, 2**32-1 for none; and of its height, pixels as stored, uint16.
        offset_at, label_at, width_at, orientation_at: Of the image's place in the shard, bytes, uint32; its label,
            int32; its width, pixels as stored, uint16; and EXIF orientation, uint8. A :class:`PartRunner` needs all.
    """

    def __init__(
        self,
        record_bytes: int,
        length_at: int,
        steps_at: int,
        height_at: int,
        *,
        offset_at: int | None = None,
        label_at: int | None = None,
        width_at: int | None = None,
        orientation_at: int | None = None,
    ) -> None: ...
    def add(self, shard: int, records: _Buffer) -> None:
        """Takes a shard's records."""

    def add_steps(self, shard: int, steps: _Buffer) -> None:
        """Takes the places of rows of a shard's images.

        Args:
            shard: Number of the shard.
            steps: uint16. An image's values are the height of a band, the offset of the first band, and the difference
                of each further value of :func:`row_places` to the one before it. 0xFFFF says that the number is in the
                next two, its low half first. Not checked beforehand.
        """

    def remove(self, shard: int) -> None:
        """Drops a shard."""

    def gather(self, shards: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> bytes | None:
        """Returns N records, one after the other; None if a shard is not held.

        Args:
            shards: int64 [N], numbers of the shards.
            rows: int64 [N], numbers of the records in them.

        Raises:
            IndexError: for a row past the end of its shard.
        """

    def extents(
        self, shards: npt.NDArray[np.int64], records: _Buffer | npt.NDArray[Any], rows: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int64] | None:
        """Returns the bytes of N images that are needed for some of their rows; None if a shard's steps are not held.

        Args:
            shards: int64 [N], numbers of the shards.
            records: N records, one after the other.
            rows: int32 [N, 2], first and end row, in pixels as stored.

        Returns:
            int64 [N, 4], see :func:`row_extents`.

        Raises:
            ValueError: arguments of different lengths.
        """

def crc32c(data: _Buffer, before: int = 0, *, portable: bool = False) -> int:
    """Returns the CRC-32C of bytes that follow others whose checksum is ``before``, without the GIL.

    Args:
        data: The bytes.
        before: Checksum of the bytes before them.
        portable: True computes it by tables, as CPUs without the instruction do.
    """

def decode_batch(
    buffers: Sequence[_Buffer],
    source_boxes: npt.NDArray[np.float64],
    support_boxes: npt.NDArray[np.int32],
    flips: npt.NDArray[np.uint8],
    orientations: npt.NDArray[np.uint8],
    out: npt.NDArray[Any],
    *,
    layout: str,
    dtype: str,
    scale: npt.NDArray[np.float32] | None = None,
    bias: npt.NDArray[np.float32] | None = None,
    threads: int = 1,
    fidelity: str = "fast",
    max_pixels: int = 0,
    image_sizes: npt.NDArray[np.int32] | None = None,
    first_rows: npt.NDArray[np.int32] | None = None,
    times: dict[str, int] | None = None,
    spent: npt.NDArray[np.int64] | None = None,
    slow: npt.NDArray[np.uint8] | None = None,
) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Decodes, crops, resizes, flips and normalizes N images into ``out``, without the GIL.

    Args:
        buffers: N encoded images, each a JPEG, a packed JPEG, a PNG or an .npy array of uint8 [H, W, 3] or [H, W].
        source_boxes: float64 [N, 4], left, top, right, bottom in upright pixels: what maps onto the output.
        support_boxes: int32 [N, 4], the pixels that the filter may read.
        flips: uint8 [N], nonzero mirrors the output.
        orientations: uint8 [N], EXIF orientation 1-8 to apply.
        out: [N, 3, H, W] or [N, H, W, 3], C-contiguous; of a larger array [N, 3, H, W] also some rows and columns, the
            other ones of which are left alone.
        layout: "nchw" or "nhwc".
        dtype: "uint8", "float32", "float16" or "bfloat16" (a uint16 array).
        scale: float32 [3]; out = pixel (0-255) * scale + bias. None leaves pixels as they are.
        bias: float32 [3], with scale.
        threads: How many threads share the work.
        fidelity: "fast" resizes YCbCr planes each from its own resolution; "exact" upsamples chroma first;
            "draft" is fast, and decodes at half or quarter size what is at least 2 or 4 times as large as the output.
        max_pixels: Refuse larger stored images; 0 for no limit.
        image_sizes: int32 [N, 2], the upright (height, width) that the boxes were drawn for; an image of another
            size is refused.
        first_rows: int32 [N], -1 for a whole file. Of a seekable or packed JPEG the rows that the support box needs
            are enough, see :func:`row_places`: the buffer is then its header and the bytes from 2 before a band on (for
            the first band, from its start on), and ``first_rows`` has the band's first row, in pixels as stored.
        times: A dict to be filled with nanoseconds per stage; the batch then runs on one thread.
        spent: int64 [N, 2], filled with nanoseconds for each image: from the file to planes, and from there to the
            output. Reading the clock for it costs less than 0.1 us an image.
        slow: uint8 [N], filled with 1 for images that "fast" is not for, which are decoded as "exact" would.

    Returns:
        (int32 [N] of Status values, N reasons, empty where OK).

    Raises:
        ValueError: an argument has another shape, dtype or value than the above.
    """

class View:
    """One output of each of N images.

    Args:
        source_boxes, support_boxes, flips, out, layout, dtype, scale, bias: See :func:`decode_batch`.
        programs: What follows on each image, float64 [N, ops, 12], see :class:`AugmentOp`; None: nothing.
        filter: "bilinear" or "bicubic".
        frames, fill: See :attr:`feeder.transforms.Draws.frame`, and its color.

    Raises:
        ValueError: an argument has another shape, dtype or value.
    """

    def __init__(
        self,
        source_boxes: npt.NDArray[np.float64],
        support_boxes: npt.NDArray[np.int32],
        flips: npt.NDArray[np.uint8],
        out: npt.NDArray[Any],
        *,
        layout: str,
        dtype: str,
        scale: npt.NDArray[np.float32] | None = None,
        bias: npt.NDArray[np.float32] | None = None,
        programs: npt.NDArray[np.float64] | None = None,
        filter: str = "bilinear",
        frames: npt.NDArray[np.int32] | None = None,
        fill: tuple[int, int, int] = (0, 0, 0),
    ) -> None: ...

def decode_views(
    buffers: Sequence[_Buffer],
    views: Sequence[View],
    orientations: npt.NDArray[np.uint8],
    *,
    threads: int = 1,
    fidelity: str = "fast",
    max_pixels: int = 0,
    image_sizes: npt.NDArray[np.int32] | None = None,
    first_rows: npt.NDArray[np.int32] | None = None,
    times: dict[str, int] | None = None,
    spent: npt.NDArray[np.int64] | None = None,
    slow: npt.NDArray[np.uint8] | None = None,
) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Makes several views of each of N images, without the GIL.

    An image's views are decoded together where that is cheaper. The pixels are those of :func:`decode_batch` for each
    view alone. An image of which any view can't be made has that view's status.

    Args:
        buffers: N encoded images.
        views: At least one, each of N images.
        orientations, threads, fidelity, max_pixels, image_sizes, times, spent, slow: See :func:`decode_batch`.
        first_rows: int32 [N], likewise; the rows are those that all views need.

    Returns:
        (int32 [N] of Status values, N reasons, empty where OK).

    Raises:
        ValueError: an argument has another shape, dtype or value than the above.
    """

def plan_images(
    buffers: Sequence[_Buffer],
    source_boxes: npt.NDArray[np.float64],
    support_boxes: npt.NDArray[np.int32],
    flips: npt.NDArray[np.uint8],
    orientations: npt.NDArray[np.uint8],
    image_sizes: npt.NDArray[np.int32],
    output_sizes: npt.NDArray[np.int32],
    *,
    max_pixels: int,
    first_rows: npt.NDArray[np.int32] | None = None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Plans the decoding of V views of N images on a GPU, without the GIL.

    A plan is what the CUDA kernels need of a view: the restart segments or lines that its box needs, and tables. Views
    that lie close together are decoded together: the first one's plan has the segments or lines of all of them.

    Args:
        buffers, orientations, first_rows: See :func:`decode_batch`.
        source_boxes, support_boxes, flips: As there, but of each view: [N, V, 4], [N, V, 4], [N, V].
        image_sizes: int32 [N, 2], the upright (height, width) that the boxes were drawn for.
        output_sizes: int32 [N, V, 2], (height, width) of each output.
        max_pixels: Leaves larger images out.

    Returns:
        (uint8 [bytes], the plans; int64 [N * V + 1], where each begins and the last one ends; int32 [N, V], how many
        views before each the one is whose segments or lines it needs). A view without bytes is left to the CPU: of a
        kind that the kernels lack, not perfect as far as the host looks, or with a box of so few pixels that
        :func:`decode_batch` decodes it exactly.

    Raises:
        ValueError: arrays of different lengths.
    """

def upload_runs(
    plans: Sequence[_Buffer | npt.NDArray[np.uint8]],
) -> tuple[npt.NDArray[np.int64], list[tuple[npt.NDArray[np.uint8], int]], int]:
    """Lays plans out in memory of the GPU: those that lie back to back on the host stay so, and are one copy.

    Args:
        plans: Of :func:`plan_images`.

    Returns:
        (int64 [N], where each plan lies in that memory; the copies, each (uint8 [bytes], where it goes); the memory's
        size in bytes). The arrays are views of the plans, not to be written to, and keep the first of theirs only.
    """

class CudaBatch:
    """A batch of plans, for the CUDA kernels.

    Args:
        plans: At least one of :func:`plan_images`; held until :meth:`write`.
        places: int64 [N], where each lies in memory of the GPU, which is under 4 GiB; see :func:`upload_runs`.
        planes: int64 [N], for each the plan whose segments or lines it needs: itself, or an earlier one.
        bounds: int64 [P + 1], where each part begins, whose outputs are of one size, and the last one ends.

    Raises:
        ValueError: for bytes that are no plan, or plans that can't be in one batch.
    """

    def __init__(
        self,
        plans: Sequence[_Buffer | npt.NDArray[np.uint8]],
        places: npt.NDArray[np.int64],
        planes: npt.NDArray[np.int64],
        bounds: npt.NDArray[np.int64],
    ) -> None: ...
    @property
    def tables_bytes(self) -> int:
        """Memory that :meth:`write` takes, which the GPU needs."""

    @property
    def scratch_bytes(self) -> int:
        """Memory on the GPU that the kernels write."""

    @property
    def zeroed_bytes(self) -> int:
        """Bytes of it, from its start on, that must be zeros."""

    @property
    def faults_at(self) -> int:
        """Offset in it of a uint32 for each plan; not 0: the image is left to the CPU. A view has the fault of the plan
        whose segments or lines it needs."""

    def write(self, memory: npt.NDArray[np.uint8]) -> None:
        """Writes the batch's tables, without the GIL; once.

        Args:
            memory: uint8, at least tables_bytes, aligned to 16 bytes.
        """

    def decoding(self, tables: int, plans: int, scratch: int) -> list[tuple[str, int, int, bytes]]:
        """Returns the launches from segments to planes and filters: (kernel, blocks, threads, argument) of each.

        Args:
            tables, plans, scratch: Addresses on the GPU, aligned to 256 bytes.
        """

    def finishing(
        self,
        tables: int,
        plans: int,
        scratch: int,
        part: int,
        out: int,
        *,
        dtype: str,
        channels_last: bool,
        scale: npt.NDArray[np.float32] | None = None,
        bias: npt.NDArray[np.float32] | None = None,
    ) -> tuple[str, int, int, bytes]:
        """Returns the launch after them, which writes the output of a part.

        Args:
            tables, plans, scratch: See :meth:`decoding`.
            part: Its number.
            out: Address on the GPU of images [3, height, width], or channels last.
            dtype, scale, bias: See :func:`decode_batch`.
            channels_last: True for images [height, width, 3].
        """

def libjpeg_turbo() -> tuple[str, bool]:
    """Returns the version of the libjpeg-turbo inside, and True if it uses its SIMD code here."""

def libjpeg_decode(data: _Buffer) -> npt.NDArray[np.uint8]:
    """Decodes a whole JPEG with libjpeg-turbo alone: the yardstick of tests and benchmarks.

    Returns:
        uint8 [H, W, 3] (RGB), [H, W, 1] or [H, W, 4] (CMYK), as stored, before orientation.

    Raises:
        Unsupported: with the reason, also where the data is damaged.
    """

def jpeg_planes(data: _Buffer, box: tuple[int, int, int, int], *, libjpeg: bool = False) -> list[npt.NDArray[np.uint8]]:
    """Decodes a box of a JPEG to planes, each at its own resolution, for tests.

    Args:
        data: The JPEG.
        box: left, top, right, bottom in stored pixels.
        libjpeg: By libjpeg-turbo, not by feeder's own decoder.

    Returns:
        uint8 [H, W] for each component: its samples that show something of the box.

    Raises:
        Unsupported: with the reason, also where the data is damaged.
        ValueError: the box does not lie in the image.
    """

def entropy_decode(data: _Buffer, *, libjpeg: bool = False) -> int:
    """Decodes the Huffman codes of a whole JPEG and throws the coefficients away, for benchmarks.

    Args:
        data: The JPEG.
        libjpeg: By libjpeg-turbo, not by feeder's own decoder.

    Returns:
        The number of 8 x 8 blocks; 0 for libjpeg.

    Raises:
        Unsupported: with the reason.
    """

def inverse_dct(
    blocks: npt.NDArray[np.int16], quant: npt.NDArray[np.int16], *, corner: bool = False, libjpeg: bool = False
) -> npt.NDArray[np.uint8]:
    """Dequantizes and transforms blocks at the SIMD level in use, for tests.

    Args:
        blocks: int16 [N, 64], coefficients in natural order.
        quant: int16 [64], in natural order.
        corner: By the kernel for blocks with zeros outside the upper left 4 x 4.
        libjpeg: By libjpeg-turbo's function.

    Returns:
        uint8 [N, 8, 8].
    """

def resample_planes(
    planes: Sequence[npt.NDArray[np.uint8]],
    color: str,
    source_box: Sequence[float],
    support_box: Sequence[int],
    out: npt.NDArray[Any],
    *,
    sampling: Sequence[tuple[int, int]],
    most: tuple[int, int],
    window: Sequence[int],
    image_size: tuple[int, int],
    orientation: int = 1,
    flip: bool = False,
    layout: str = "nchw",
    dtype: str = "uint8",
    scale: Sequence[float] | None = None,
    bias: Sequence[float] | None = None,
    inverted: bool = False,
    filter: str = "bilinear",
) -> None:
    """Resizes decoded planes into ``out``: the last stage of :func:`decode_batch`, by itself.

    Args:
        planes: uint8 [rows, columns] each, as stored; a column stride of 3 or 4 is an interleaved image.
        color: "gray", "ycbcr", "rgb", "cmyk" or "ycck".
        source_box: left, top, right, bottom in upright pixels: what maps onto the output.
        support_box: The pixels that the filter may read.
        out: [3, height, width] for "nchw", [height, width, 3] for "nhwc".
        sampling: (horizontal, vertical) factor of each plane.
        most: The greatest factors; for DCT-scaled planes, times the scale.
        window: x, y, width, height of the planes within the stored image, in full-resolution pixels.
        image_size: (width, height) of the stored image.
        orientation: EXIF orientation, 1-8.
        flip: Mirror the output.
        layout: "nchw" or "nhwc".
        dtype: "uint8", "float32", "float16" or "bfloat16" (a uint16 array).
        scale: out = pixel (0-255) * scale + bias, per channel.
        bias: With scale.
        inverted: cmyk and ycck: 255 is no ink.
        filter: "bilinear" or "bicubic".

    Raises:
        ValueError: an argument that makes no sense; nothing was written then.
    """

def map_pixels(
    pixels: npt.NDArray[np.uint8],
    scale: Sequence[float] | npt.NDArray[np.float32],
    bias: Sequence[float] | npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
) -> None:
    """Maps pixels to floats as :func:`decode_batch` does, to the bit, without the GIL.

    Args:
        pixels: uint8 [N, 3, H, W], C-contiguous.
        scale: [3]; out = pixel (0-255) * scale + bias.
        bias: [3].
        out: float32 [N, 3, H, W], C-contiguous.

    Raises:
        ValueError: arrays of different shapes.
        TypeError: arrays of another dtype or number of dimensions, or not contiguous.
    """

def copy_bytes(bytes: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Copies bytes that this process does not read soon, past its caches where it can, without the GIL.

    Args:
        bytes: uint8 [N], C-contiguous.
        out: uint8 [N], C-contiguous; shares no memory with them.

    Raises:
        ValueError: if the sizes differ.
    """

def simd_level() -> str:
    """The instruction set in use: "portable", "avx2" or "avx512"."""

def set_simd_level(level: str, *, slow_pdep: bool = False, no_sse2: bool = False) -> bool:
    """Makes all threads use another instruction set, for tests; False where this CPU lacks it.

    Args:
        level: "portable", "avx2" or "avx512".
        slow_pdep: Does without BMI2's pdep, as on AMD's CPUs before Zen 3.
        no_sse2: Resizes at the portable level as on CPUs other than x86-64.
    """

def cut_mask(
    mask: npt.NDArray[np.uint8] | npt.NDArray[np.int32],
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    fill: int,
    out: npt.NDArray[np.uint8] | npt.NDArray[np.int32],
) -> None:
    """Cuts a mask by the numbers of its rows and columns.

    Args:
        mask: uint8 or int32 [H, W], in any memory order.
        rows: int64 [h], rows of the mask, or negative for one to fill.
        columns: int64 [w], likewise.
        fill: Value of what is filled.
        out: [h, w] of the mask's dtype, C-contiguous; filled.

    Raises:
        ValueError: for a number outside the mask, or another shape of ``out``.
    """

def unfilter_png(rows: _Buffer, out: npt.NDArray[np.uint8], pixel_bytes: int = 1) -> None:
    """Undoes the filters of a PNG's rows.

    Args:
        rows: Inflated rows, each of one byte for its filter and B bytes.
        out: uint8 [height, B]; filled.
        pixel_bytes: Size of a pixel.

    Raises:
        ValueError: for another number of bytes, or a filter that PNG does not have.
    """

def uniform(seed: int, epoch: int, keys: npt.NDArray[np.int64], stream: int, count: int) -> npt.NDArray[np.float64]:
    """Draws uniform numbers, float64 [N, count], see :func:`feeder.order.random.uniform`."""

def philox(
    seeds: npt.NDArray[np.uint64],
    epochs: npt.NDArray[np.uint32],
    keys: npt.NDArray[np.uint64],
    stream: int,
    blocks: int,
) -> npt.NDArray[np.uint32]:
    """Draws words, uint32 [N, 4 * blocks], see :func:`feeder.order.random.philox`; seeds and epochs are [1] or [N]."""

def permute(
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    keys: npt.NDArray[np.uint64],
    groups: npt.NDArray[np.intp],
    inverse: bool,
) -> npt.NDArray[np.int64]:
    """Maps positions by keyed permutations, int64 [N], see :func:`feeder.order.permutation.permute_each`.

    Raises:
        ValueError: for a position outside its group's size, or arrays whose lengths do not fit.
    """

class BaseOps:
    """The ops of a recipe's base path, in order, for their draws.

    ``stream`` is an op's number in the recipe. Sizes are in pixels, at most 65,535.
    """

    def __init__(self) -> None: ...
    def add_random_resized_crop(
        self,
        stream: int,
        height: int,
        width: int,
        scale: tuple[float, float],
        ratio: tuple[float, float],
        log_ratio: tuple[float, float],
    ) -> None:
        """Adds a crop; ``log_ratio`` has the logarithms of ``ratio``."""

    def add_random_crop(
        self, stream: int, height: int, width: int, padding: tuple[int, int, int, int], pads_if_needed: bool
    ) -> None:
        """Adds a crop, before which a border (left, top, right, bottom) is put around an image."""

    def add_pad(self, padding: tuple[int, int, int, int]) -> None:
        """Adds a border (left, top, right, bottom)."""

    def add_letterbox(self, height: int, width: int) -> None:
        """Adds a :class:`feeder.transforms.LetterBox`."""

    def add_center_crop(self, height: int, width: int) -> None: ...
    def add_resize(self, side: str, height: int, width: int, most: int) -> None:
        """Adds a resize: "both" sides to (height, width); the "shorter" to ``height``, the longer one at most ``most``
        unless that is 0; the "longer" to ``most``; or to the least size that can "cover" (height, width)."""

    def add_horizontal_flip(self, stream: int, p: float) -> None: ...
    def draw(
        self, seed: int, epoch: int, keys: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> list[tuple[tuple[float, ...], tuple[int, ...], tuple[int, int], bool, tuple[int, ...]] | None]:
        """Draws as :meth:`feeder.transforms.Recipe.draw` does, to the bit.

        Args:
            seed: 0 to 2**64-1.
            epoch: 0 to 2**32-1.
            keys: int64 [N].
            sizes: int64 [N, 2], upright (height, width), pixels, 1 or more.

        Returns:
            For each image the source box, the support box, the (height, width) after the base path, the flip and the
            frame. None where they can't be told: a crop's side is a half too nearly to be rounded, or an image is too
            small.
        """

class OpenShards:
    """The open shards of one thread, which keeps their descriptors open while they are here."""

    def __init__(self) -> None: ...
    def put(self, shard: int, descriptor: int, size_bytes: int, changed_ns: int) -> None:
        """Takes an open shard: its number, descriptor, size, and its ctime when it was opened, nanoseconds."""

    def remove(self, shard: int) -> None:
        """Drops a shard, if it is here."""

class PartRunner:
    """Makes parts of batches: from sample ids to pixels.

    Args:
        ops: The recipe's base path.
        seed: Of the draws, 0 to 2**64-1.
        exif: True applies EXIF orientation.
        large_bytes: Larger files are left out.
        made_ns: Samples of shards that changed since then are left out; nanoseconds since the epoch, by the wall clock.
            None leaves none out: their bytes were checked.
        max_pixels: Larger images are left out.
        fidelity: "fast", "exact" or "draft".
        threads: Threads that share the decoding.
        dtype: "uint8", "float32", "float16" or "bfloat16".
        scale, bias: float32 [3], out = pixel(0-255) * scale + bias; None for uint8.
        stages: Numbers of the first words of the stages read, draw, decode and transform in a meter.
        filter, fill: See :class:`View`.
    """

    def __init__(
        self,
        ops: BaseOps,
        *,
        seed: int,
        exif: bool,
        large_bytes: int,
        made_ns: int | None,
        max_pixels: int,
        fidelity: str,
        threads: int,
        dtype: str,
        scale: npt.NDArray[np.float32] | None,
        bias: npt.NDArray[np.float32] | None,
        stages: list[int],
        filter: str,
        fill: tuple[int, int, int],
    ) -> None: ...
    def run(
        self,
        index: HeldIndex,
        open_shards: OpenShards,
        shards: npt.NDArray[np.int64] | None,
        per_shard: int,
        rows: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int64],
        repeats: npt.NDArray[np.int64],
        samples: int,
        epoch: int,
        out: npt.NDArray[Any],
        labels: npt.NDArray[np.int64] | None,
        words: npt.NDArray[np.int64],
        brought_ns: int,
        advise_from: int | None,
        is_last: bool,
        heartbeat: Callable[[], object],
        programs: npt.NDArray[np.float64] | None = None,
        places: npt.NDArray[np.int64] | None = None,
    ) -> list[int] | tuple[list[int], int, int, int, int] | None:
        """Makes N samples; reads and decodes without the GIL.

        Args:
            index: The set's index.
            open_shards: The calling thread's open shards.
            shards, rows, per_shard: The samples, see :class:`feeder.shard.format.set_index.SetIndex.located`.
            ids: int64 [N], ids of the samples in the dataset.
            repeats: int64 [N]. The key of a sample's draws is its id and ``repeats`` times ``samples``.
            samples: Number of samples of the dataset.
            epoch: Of the draws.
            out: [N, 3, H, W], C-contiguous; filled. With ``places`` it may have more rows, which stay as they are.
            labels: int64, as many as ``out`` has rows, filled as ``out`` is; None leaves labels out.
            words: int64, the meter.
            brought_ns: Time that it took to have the images at hand, a part of that of reading.
            advise_from: Reads of more bytes in all are announced to the kernel before; None: none are.
            is_last: True leaves out samples of shards that are not held.
            heartbeat: Called after the reading.
            programs: What follows the base path on each image, float64 [N, ops, 12], see :class:`AugmentOp`; None:
                nothing.
            places: int64 [N], ascending, the row of each sample in ``out`` and ``labels``; None: its number.

        Returns:
            The numbers of shards whose index or file is not held, before anything is made. Or (rows left out, time of
            index and reading, time of drawing and decoding, nanoseconds, bytes read, images decoded slowly); rows left
            out are unusual or wrong, and their parts of ``out`` and ``labels`` undefined. None if another thread is in
            a call.

        Raises:
            ValueError: an argument has another shape or dtype than the above.
        """
    def plan(
        self,
        index: HeldIndex,
        open_shards: OpenShards,
        shards: npt.NDArray[np.int64] | None,
        per_shard: int,
        rows: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int64],
        repeats: npt.NDArray[np.int64],
        samples: int,
        epoch: int,
        size: tuple[int, int],
        labels: npt.NDArray[np.int64] | None,
        words: npt.NDArray[np.int64],
        brought_ns: int,
        advise_from: int | None,
        is_last: bool,
        heartbeat: Callable[[], object],
    ) -> list[int] | tuple[list[int], int, int, int, int, npt.NDArray[np.uint8], npt.NDArray[np.int64]] | None:
        """Plans N samples for the CUDA kernels; reads and plans without the GIL.

        Args:
            size: (height, width) of the outputs.
            The others: See :meth:`run`; of labels there are N.

        Returns:
            As :meth:`run` does, with the time of planning alone in place of the number of images decoded slowly, and
            the plans and their places, see :func:`plan_images`. Samples without a plan are among the rows left out.

        Raises:
            ValueError: an argument has another shape or dtype than the above.
        """
