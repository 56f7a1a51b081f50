"""Ops that run on a device after the base path, compared with the Pillow backend: one by one, and as recipes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from feeder import transforms as T
from feeder.decoders import gpu, tensors
from feeder.decoders.device import color as device_color
from feeder.decoders.device import erase as device_erase
from feeder.decoders.device import finisher as finish
from feeder.decoders.device import geometry_ops as device_geometry
from feeder.decoders.device import rows as device_rows
from feeder.decoders.device.device_ops import check_device_ops, run_on_device
from feeder.decoders.device.finisher import Finisher
from feeder.decoders.pillow.image_ops import IMAGE_OPS
from feeder.decoders.pillow.pillow_decoder import PillowDecoder
from feeder.decoders.tensors import as_tensor
from feeder.errors import BackendError
from feeder.transforms.augment import AUGMENTATIONS
from feeder.transforms.op import Params, Uniforms
from tests.support import gpu_oracle as oracle
from tests.support import images

pytestmark = pytest.mark.usefixtures("one_torch_thread")

HEIGHT, WIDTH, COUNT = 29, 37, 20
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# pillow-simd's blends differ by a level, which later ops may make larger in a few places.
EXACT = 0 if "post" not in PIL.__version__ else 12


def pixels(height: int = HEIGHT, width: int = WIDTH, count: int = COUNT) -> npt.NDArray[np.uint8]:
    """Gradients, noise, a flat image, one without green, one with few levels: uint8 [N, H, W, 3]."""
    made = np.stack([np.asarray(images.pixels(seed, width, height)) for seed in range(count)]).copy()
    made[0] = np.random.default_rng(0).integers(0, 256, made[0].shape)
    made[1] = 7
    made[2, :, :, 1] = 0
    made[3] = made[3] // 8 + 90
    return made


def draw(op: T.Op, count: int, size: tuple[int, int]) -> Params:
    return op.draw(Uniforms(3, 1, np.arange(count), 0), np.tile(np.array([size]), (count, 1))).params


def assert_pillows(
    op: T.Op, params: Params, device: torch.device, size: tuple[int, int] = (HEIGHT, WIDTH), level: int = EXACT
) -> None:
    count = COUNT if not params else len(next(iter(params.values())))
    base = pixels(*size, count)
    batch = torch.from_numpy(base).permute(0, 3, 1, 2).contiguous().to(device)
    found = run_on_device(batch, op, params).permute(0, 2, 3, 1).cpu().numpy()
    for row in range(count):
        sample = {name: values[row] for name, values in params.items()}
        expected = np.asarray(IMAGE_OPS[type(op)](Image.fromarray(base[row]), op, sample))
        assert expected.shape == found[row].shape
        difference = np.abs(expected.astype(int) - found[row])
        assert difference.max() <= level, (row, sample)
        assert (difference > 1).mean() <= 0.03, (row, sample)


WARPS = ("nearest", "bilinear", "bicubic")


@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), (30, 30), (2, 3)], ids=str)
@pytest.mark.parametrize(
    "op",
    [
        T.ColorJitter(0.4, 0.4, 0.4),
        T.ColorJitter(brightness=(1.0, 3.0), hue=0.5),
        T.ColorJitter(0.8, 0.8, 0.8, 0.2),
        T.RandomGrayscale(0.5),
        T.RandomHorizontalFlip(),
        T.RandomVerticalFlip(),
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomErasing(value=9), T.RandomVerticalFlip()]),
        T.RandomChoice([T.ColorJitter(0.4), T.Compose([T.RandomInvert(1.0), T.RandomRotation(9)]), T.Compose([])]),
        T.RandomOrder([T.ColorJitter(0.4), T.Compose([T.RandomInvert(0.8), T.RandomRotation(9)]), T.Compose([])]),
        T.RandomPhotometricDistort(),
        T.GaussianNoise(0.1, 0.2),
        T.GaussianNoise(-0.3, 1.0, clip=False),
        T.RandomInvert(),
        T.RandomAutocontrast(),
        T.RandomEqualize(),
        *(T.RandomPosterize(bits) for bits in (0, 3, 8)),
        *(T.RandomSolarize(threshold, 0.7) for threshold in (0, 127, 127.5, 255)),
        *(T.RandomAdjustSharpness(factor) for factor in (0, 0.3, 2.7)),
        T.AutoAugment("svhn", fill=(9, 8, 7)),
        T.AugMix(),
        T.AugMix(10, 2, 4, 0.3, False, "nearest", fill=(9, 8, 7)),
        *(T.RandomPerspective(scale, 0.8, fill=(9, 8, 7)) for scale in (0.2, 1.0)),
        *(T.RandomPerspective(0.5, 1.0, name) for name in WARPS),
        T.GaussianBlur(5),
        T.GaussianBlur((9, 23), (0.1, 3.0)),
        T.RandomErasing(0.8, value=(3, 300, 7.5)),
        *(T.RandomRotation(180, interpolation=name, fill=(9, 8, 7)) for name in WARPS),
        *(T.RandomAffine(40, (0.3, 0.3), (0.5, 1.7), (-20, 20, -10, 10), interpolation=name, fill=3) for name in WARPS),
        T.RandomAffine(0, (0.3, 0.3), (0.5, 1.7)),
        T.RandomAffine(0, (0.5, 0.5)),
        T.RandomAffine((180, 180), center=(3, 9)),
        T.RandomRotation((90, 90), center=(3, 9)),
        T.Pad((1, 2, 3, 4), fill=(1, 2, 3)),
        T.Pad((3, 60, 9, 100), padding_mode="reflect"),
        T.Pad(7, padding_mode="edge"),
        T.Pad(7, padding_mode="symmetric"),
        T.RandomCrop(30, (20, 30), fill=5),
        T.RandomCrop((80, 50), pad_if_needed=True, padding_mode="symmetric"),
        T.RandomCrop(2),
        T.CenterCrop(12),
        T.CornerCrop((60, 21), "bottom right"),
        T.CenterCrop((60, 21)),
    ],
    ids=str,
)
def test_ops_give_pillows_pixels_to_the_bit(op: T.Op, size: tuple[int, int], device: torch.device) -> None:
    assert_pillows(op, draw(op, COUNT, size), device, size)


@pytest.mark.parametrize("angle", [0, 90, 180, 270])
@pytest.mark.parametrize("interpolation", WARPS)
def test_right_angles_are_turned_without_a_filter(angle: int, interpolation: str, device: torch.device) -> None:
    op = T.RandomRotation((angle, angle), interpolation=interpolation)
    for size in ((HEIGHT, WIDTH), (30, 30)):
        assert_pillows(op, draw(op, 5, size), device, size)


@pytest.mark.parametrize("interpolation", WARPS)
@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_every_augmentation_gives_pillows_pixels_to_the_bit(
    kind: str, interpolation: str, device: torch.device
) -> None:
    """All bins of the strengths and both signs, on every image; some bits beyond those that are drawn."""
    op: T.Op = T.TrivialAugmentWide(interpolation=interpolation, fill=(9, 8, 7))
    if kind == "Invert":  # which is AutoAugment's alone
        op = T.AutoAugment("svhn", interpolation, (9, 8, 7))
    params = draw(op, 1500, (HEIGHT, WIDTH))
    rows = np.flatnonzero(params["kind"][:, 0] == AUGMENTATIONS.index(kind))[:COUNT]
    assert len(rows) == COUNT
    assert_pillows(op, {name: values[rows] for name, values in params.items()}, device)


@pytest.mark.parametrize(
    "op",
    [
        T.RandAugment(4, 20),
        T.RandAugment(2, 9, interpolation="bilinear"),
        T.AugMix(10),
        T.RandomChoice([T.RandomInvert(), T.Compose([T.RandomInvert(), T.RandomEqualize()])]),
    ],
    ids=str,
)
def test_batches_of_mixed_kinds_are_done_a_few_images_at_a_time(
    op: T.Op, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setattr(device_rows, "PIXELS_AT_ONCE", 3 * HEIGHT * WIDTH)
    assert_pillows(op, draw(op, 60, (HEIGHT, WIDTH)), device)


@pytest.mark.parametrize("op", [T.Resize((20, 50)), T.RandomResizedCrop(16), T.Resize((HEIGHT, WIDTH))], ids=str)
def test_resizes_are_within_a_level(op: T.Op, device: torch.device) -> None:
    assert_pillows(op, draw(op, COUNT, (HEIGHT, WIDTH)), device, level=1)


NOISE = T.RandomErasing(0.8, value="random")
RECIPES: list[list[T.Op]] = [
    [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)],
    [T.ColorJitter(contrast=0.5), T.RandomGrayscale(0.3), T.ColorJitter(contrast=0.5), T.ToDtype("float16", True)],
    [T.RandomHorizontalFlip(), T.RandomAffine(20, interpolation="bilinear"), T.RandomHorizontalFlip()],
    [T.RandAugment(), T.Normalize(MEAN, STD), NOISE],
    [T.TrivialAugmentWide(), T.Normalize(MEAN, STD), NOISE, T.RandomHorizontalFlip(), NOISE, T.ToDtype("bfloat16")],
    [T.Pad(4, padding_mode="reflect"), T.RandomCrop((28, 32)), T.RandomHorizontalFlip(), T.ToDtype("float32")],
    [T.ToDtype("float32", True), NOISE, T.Normalize(MEAN, STD), T.RandomErasing(0.9, value=(1.0, 2.0, -3.0))],
    [T.Normalize(MEAN, STD), T.RandomErasing(0.9), NOISE, T.RandomHorizontalFlip(), T.RandomErasing(0.5, value=1.0)],
    [T.RandomErasing(0.9, value=200), T.ColorJitter(0.4, 0.4), T.RandomErasing(0.9, value=9), T.RandomErasing(0.9)],
    [
        T.RandomErasing(0.9, value=200.5),
        T.RandomErasing(0.9, value=9),
        T.RandomHorizontalFlip(),
        T.Normalize(MEAN, STD),
    ],
    [T.GaussianBlur(5), T.ToDtype("uint8"), T.RandomHorizontalFlip(), T.RandomErasing(0.9, value=300.0)],
    [
        T.AutoAugment("svhn"),
        T.RandomPerspective(0.5, 0.8),
        T.RandomChoice([T.RandomInvert(), T.RandomPosterize(4), T.RandomEqualize()], [2, 1, 1]),
        T.RandomSolarize(100),
        T.RandomAutocontrast(),
        T.RandomAdjustSharpness(2.0),
        T.Normalize(MEAN, STD),
    ],
]


def expected_of(recipe: T.Recipe, upright: npt.NDArray[np.uint8], draws: T.Draws) -> torch.Tensor:
    assert recipe.output_size is not None
    out = np.zeros((len(upright), 3, *recipe.output_size), recipe.storage_dtype)
    for row, image in enumerate(upright):
        PillowDecoder().finish(np.ascontiguousarray(image), recipe, draws, row, out[row])
    return as_tensor(out, recipe.output_dtype)


def assert_close(found: torch.Tensor, expected: torch.Tensor, what: Any = "") -> None:
    assert found.dtype == expected.dtype
    difference = (found.cpu().double() - expected.double()).abs()
    # Kernel 1's blends may lie a level away where they lie on the edge between two; all else is rounding.
    one = 1.001 if expected.max() > 10.0 else 1.001 / 255 / min(STD)
    level = one * max(1, EXACT)
    assert (difference > one + 1e-3).double().mean() <= 0.03, what
    unit = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}.get(expected.dtype, 2.0**-20)
    rounding = unit * expected.double().abs() + 1e-5
    assert (difference <= level + rounding).all(), what
    assert (difference > rounding).double().mean() <= (0.001 if EXACT == 0 else 0.5), what


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("ops", RECIPES, ids=lambda ops: "-".join(type(op).__name__ for op in ops))
def test_whole_recipes_on_turned_images_give_pillows_pixels(
    ops: list[T.Op], channels_last: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_erase, "NUMBERS_AT_ONCE", 2000)
    recipe = T.Recipe.of([T.Resize((HEIGHT, WIDTH)), *ops])
    check_device_ops(recipe, "dali")
    draws = recipe.draw(5, 2, np.arange(COUNT), [[HEIGHT, WIDTH]] * COUNT)
    turn = (np.arange(COUNT) % 8).astype(np.uint8)
    stored = [pixels(*((WIDTH, HEIGHT) if code & 4 else (HEIGHT, WIDTH)))[row] for row, code in enumerate(turn)]
    upright = np.stack([oracle.turn(image, int(code)) for image, code in zip(stored, turn, strict=True)])
    batch = torch.from_numpy(np.stack([image.reshape(-1) for image in stored])).to(device)
    before = batch.clone()
    rest, size = draws.ops[recipe.base_length :], recipe.output_size
    assert size is not None
    finisher = Finisher(recipe, device)
    expected = expected_of(recipe, upright, draws)
    found = finisher(batch, size, rest, turn=turn, channels_last=channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert found.is_contiguous(memory_format=layout)
    assert_close(found, expected)
    assert torch.equal(batch, before)  # which may be DALI's
    planes = torch.from_numpy(upright).permute(0, 3, 1, 2).contiguous().to(device)
    before = planes.clone()
    assert torch.equal(finisher(planes, size, rest, layout="nchw", channels_last=channels_last), found)
    assert torch.equal(planes, before)


def test_what_kernel_1_runs_alone_is_one_pass_as_before(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    normalize = gpu.normalize

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(options)
        return normalize(*args, **options)

    monkeypatch.setattr(gpu, "normalize", counted)
    recipe = T.Recipe.of(
        [
            T.Resize((HEIGHT, WIDTH)),
            T.ColorJitter(0.4, 0.4, 0.4),
            T.RandomHorizontalFlip(),
            T.RandomGrayscale(),
            T.Normalize(MEAN, STD),
            T.RandomErasing(1.0),
        ]
    )
    draws = recipe.draw(0, 0, np.arange(COUNT), [[HEIGHT, WIDTH]] * COUNT)
    batch = torch.from_numpy(pixels()).to(device)
    Finisher(recipe, device)(batch, (HEIGHT, WIDTH), draws.ops[recipe.base_length :])
    (options,) = calls
    assert options["color"].steps.shape == (COUNT, 5)


class _NoneFromTheCpu(TorchDispatchMode):
    """Refuses ops on tensors that lie on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        assert all(each.is_meta for each in given), func
        return func(*args, **(kwargs or {}))


def test_nothing_is_read_back_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's device without data, where to ask for a value is an error."""
    meta = torch.device("meta")

    def to_meta(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
        with _disable_current_modes():
            return torch.from_numpy(array.copy()).to(device)

    for module in (tensors, device_color, device_erase, device_geometry, device_rows, finish):
        monkeypatch.setattr(module, "to_device", to_meta)

    def kernel_1(images: torch.Tensor, size: tuple[int, int], *, dtype: torch.dtype, **_: Any) -> torch.Tensor:
        return torch.empty((len(images), 3, *size), dtype=dtype, device=meta)

    monkeypatch.setattr(gpu, "normalize", kernel_1)
    bicubic = T.RandAugment(4, interpolation="bicubic")
    for ops in (
        *RECIPES,
        [bicubic, T.RandomRotation(9), T.CenterCrop(40), T.RandomGrayscale(), T.ColorJitter(hue=0.1)],
    ):
        recipe = T.Recipe.of([T.Resize((HEIGHT, WIDTH)), *ops])
        draws = recipe.draw(0, 0, np.arange(COUNT), [[HEIGHT, WIDTH]] * COUNT)
        batch, size = torch.empty((COUNT, HEIGHT, WIDTH, 3), dtype=torch.uint8, device=meta), recipe.output_size
        assert size is not None
        finisher = Finisher(recipe, meta)
        finisher(batch, size, draws.ops[recipe.base_length :])  # the first time it copies what stays
        with _NoneFromTheCpu():
            found = finisher(batch, size, draws.ops[recipe.base_length :])
        assert found.is_meta
        assert found.shape == (COUNT, 3, *size)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.skipif(not gpu.has_triton(), reason="without Triton the references wait")
def test_nothing_waits_for_the_gpu() -> None:
    """Through all ops and recipes above; a stream that is kept busy shows that nothing reads what is not there yet."""
    device, every = (
        torch.device("cuda"),
        [*RECIPES, [T.TrivialAugmentWide(interpolation="bicubic"), T.Resize((16, 16))]],
    )
    codes = (np.arange(COUNT) % 4).astype(np.uint8)
    work: list[tuple[Finisher, tuple[int, int], Any]] = []
    for ops in every:
        recipe = T.Recipe.of([T.Resize((HEIGHT, WIDTH)), *ops])
        assert recipe.output_size is not None
        draws = recipe.draw(0, 0, np.arange(COUNT), [[HEIGHT, WIDTH]] * COUNT)
        work.append((Finisher(recipe, device), recipe.output_size, draws.ops[recipe.base_length :]))
    batch = torch.from_numpy(pixels()).to(device)
    expected = [finisher(batch, size, rest, turn=codes) for finisher, size, rest in work]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(50_000_000)
        found = [finisher(batch, size, rest, turn=codes) for finisher, size, rest in work]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for images_found, images_expected in zip(found, expected, strict=True):
        assert torch.equal(images_found, images_expected)


def test_no_images_are_no_work(device: torch.device) -> None:
    for ops in RECIPES:
        recipe = T.Recipe.of([T.Resize((HEIGHT, WIDTH)), *ops])
        draws = recipe.draw(0, 0, np.arange(0), np.zeros((0, 2)))
        batch, size = torch.zeros((0, HEIGHT, WIDTH, 3), dtype=torch.uint8, device=device), recipe.output_size
        assert size is not None
        assert Finisher(recipe, device)(batch, size, draws.ops[recipe.base_length :]).shape == (0, 3, *size)


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ([T.RandomResizedCrop(32), T.Lambda(abs)], "Lambda: it is a function of one image, for a worker"),
        ([T.RandomResizedCrop(32), T.Normalize(MEAN, STD), T.Lambda(abs)], "Lambda: it is a function"),
        ([T.RandomResizedCrop(32), T.RandomRotation(9, expand=True)], "RandomRotation: with expand=True"),
        ([T.Resize(80), T.RandomRotation(9), T.CenterCrop(64)], "CenterCrop: it gets images of different sizes"),
        ([T.Resize(80), T.GaussianBlur(3), T.Resize(1)], "Resize: it gets images of different sizes"),
        ([T.RandomCrop(64)], "RandomCrop: it gets images of different sizes"),
        ([T.Resize((64, 64), "bicubic")], "Resize: its interpolation is 'bicubic', and must be 'bilinear'"),
        (
            [T.Resize((64, 64)), T.GaussianBlur(3), T.Resize((32, 32), "lanczos")],
            "Resize: its interpolation is 'lanczos'",
        ),
        (
            [T.Resize(64), T.RandomPerspective(), T.CenterCrop(64)],
            "CenterCrop: it gets images of different sizes",
        ),
        ([T.RandomResizedCrop(32), T.Grayscale()], "Grayscale: its images have one channel"),
        ([T.RandomZoomOut(), T.RandomResizedCrop(32)], "RandomZoomOut: its images are of different sizes"),
        ([T.RandomResizedCrop(32), T.RandomChoice([T.RandomInvert(), T.Lambda(abs)])], "RandomChoice: of Lambda in it"),
        ([T.Resize((64, 64)), T.GaussianBlur(3), T.RandomCrop(70, 2)], "RandomCrop: its 70x70 .* larger .* 68x68"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_run_in_batches_is_refused_by_name(ops: list[T.Op], reason: str) -> None:
    with pytest.raises(BackendError, match=rf"'dali' can't run {reason}.*\. Use backend='cpu', or leave the op out"):
        check_device_ops(T.Recipe.of(ops), "dali")
