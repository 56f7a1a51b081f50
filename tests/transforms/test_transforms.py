"""Recipes: arguments as torchvision's, draws as pure functions, and what the base path says."""

from __future__ import annotations

import enum
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from feeder import transforms
from feeder.errors import ArgumentError
from feeder.transforms import (
    AugMix,
    AutoAugment,
    AutoAugmentPolicy,
    CenterCrop,
    ColorJitter,
    Compose,
    CutMix,
    GaussianBlur,
    Lambda,
    MixUp,
    Normalize,
    Op,
    Pad,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomCrop,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomPerspective,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    RandomVerticalFlip,
    RandomZoomOut,
    Recipe,
    Resize,
    ToDtype,
    TrivialAugmentWide,
)
from feeder.transforms.augment import AUGMENTATIONS
from feeder.transforms.op import Uniforms
from tests.golden import torchvision_arrays, torchvision_cases

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SIZES = np.array([[375, 500], [500, 375], [64, 64], [30, 900], [1, 1], [257, 255]])
ALL_OPS: list[Op] = [
    RandomZoomOut(),
    RandomResizedCrop(48),
    Resize(40),
    CenterCrop(32),
    RandomHorizontalFlip(),
    Pad(3),
    RandomCrop(24, padding=2, pad_if_needed=True),
    RandomRotation(30, expand=True),
    RandomAffine(10, (0.1, 0.2), (0.8, 1.2), (-5.0, 5.0, -3.0, 3.0)),
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    RandomGrayscale(),
    GaussianBlur(3),
    RandomVerticalFlip(),
    RandomApply([GaussianBlur(3), RandomRotation(5)]),
    RandAugment(),
    TrivialAugmentWide(),
    AutoAugment("cifar10"),
    AugMix(),
    RandomChoice([RandomInvert(), Compose([RandomSolarize(9), RandomRotation(5)]), RandomEqualize()], [1, 2, 3]),
    RandomPerspective(0.3),
    RandomPosterize(3),
    RandomAdjustSharpness(2),
    RandomAutocontrast(),
    ToDtype("float32", scale=True),
    Normalize(MEAN, STD),
    RandomErasing(),
]


class InterpolationMode(enum.Enum):
    """Spelled as torchvision's."""

    BICUBIC = "bicubic"


class Given(Uniforms):
    """Uniform numbers that the test has chosen, for one sample."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = np.array([numbers])

    def __call__(self, count: int, rows: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.float64]:
        return self._numbers[:, :count]

    def keys(self) -> npt.NDArray[np.uint64]:
        return np.zeros(1, np.uint64)


class Within(Given):
    """The same for the ops within an op, too."""

    def inner(self, number: int) -> Uniforms:
        return self


def draw(ops: list[Op], seed: int = 1, epoch: int = 2, ids: Any = None, sizes: Any = SIZES) -> transforms.Draws:
    return Recipe.of(ops).draw(seed, epoch, np.arange(len(sizes)) if ids is None else ids, sizes)


def test_arguments_and_defaults_are_those_of_torchvision() -> None:
    crop = RandomResizedCrop(224)
    assert crop == RandomResizedCrop((224, 224), (0.08, 1.0), (3 / 4, 4 / 3), "bilinear", True)
    assert crop.size == (224, 224)
    assert RandomResizedCrop([96]).size == (96, 96)
    assert Resize(256).size == (256,)
    assert Resize((1, 2), max_size=None).size == (1, 2)
    assert RandomHorizontalFlip().p == 0.5
    assert RandomCrop(32, padding=(1, 2)).padding == (1, 2, 1, 2)
    assert Pad([5]).padding == (5, 5, 5, 5)
    assert ColorJitter(brightness=0.5, hue=0.1).brightness == (0.5, 1.5)
    assert ColorJitter(brightness=2.0).brightness == (0.0, 3.0)
    assert ColorJitter(hue=0.1).hue == (-0.1, 0.1)
    assert ColorJitter(contrast=0).contrast is None
    assert RandomAffine(10).degrees == (-10.0, 10.0)
    assert RandomAffine(10, shear=5).shear == (-5.0, 5.0, 0.0, 0.0)
    assert GaussianBlur(3, 0.5).sigma == (0.5, 0.5)
    assert RandomErasing(value="random").value is None
    assert RandAugment().magnitude == 9
    assert AutoAugment() == AutoAugment(AutoAugmentPolicy.IMAGENET, "nearest", None)
    assert AutoAugment("svhn") == AutoAugment(policy=AutoAugmentPolicy.SVHN) != AutoAugment("cifar10")
    assert RandomPerspective() == RandomPerspective(0.5, 0.5, "bilinear", 0)
    assert RandomChoice([RandomInvert(), RandomEqualize()]).p == (0.5, 0.5)
    assert RandomChoice([RandomInvert(), RandomEqualize()], [1, 3]).p == (0.25, 0.75)
    assert RandomPosterize(4) == RandomPosterize(bits=4, p=0.5)
    assert RandomSolarize(128) == RandomSolarize(threshold=128.0, p=0.5)
    assert RandomAdjustSharpness(2) == RandomAdjustSharpness(sharpness_factor=2.0, p=0.5)
    assert {op().p for op in (RandomInvert, RandomAutocontrast, RandomEqualize)} == {0.5}
    different: object = RandomEqualize()
    assert RandomInvert() != different
    assert RandomZoomOut() == RandomZoomOut(0, (1.0, 4.0), 0.5)


def test_torchvisions_other_names_of_conversions_are_known() -> None:
    flip, normalize = RandomHorizontalFlip(), Normalize(MEAN, STD)
    scaled = Recipe.of([flip, ToDtype("float32", scale=True), normalize])
    assert Recipe.of([flip, transforms.ToTensor(), normalize]) == scaled
    assert Recipe.of([flip, transforms.ToPureTensor()]) == Recipe.of([flip])
    assert Recipe.of([transforms.PILToTensor(), flip, transforms.ConvertImageDtype(torch.float), normalize]) == scaled
    assert Recipe.of(Compose([transforms.ToImage(), *scaled.ops])) == scaled
    assert Recipe.of([*scaled.ops, transforms.ToImage()]) == scaled
    assert Normalize(0.5, 0.25) == Normalize([0.5] * 3, [0.25] * 3)
    assert Recipe.of([ToDtype("float32"), Normalize(127.5, 127.5)]).ops[1] == Normalize(127.5, 127.5)


@pytest.mark.parametrize("scaling", [ToDtype("float32", scale=True), transforms.ToTensor()], ids=["dtype", "tensor"])
def test_a_mean_for_255_after_an_op_that_scales_is_warned_of_once(scaling: Op) -> None:
    normalize = Normalize([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])
    with pytest.warns(UserWarning, match=r"has a mean for pixels of 0 to 255.*divide mean and std by 255") as caught:
        Recipe.of(Compose([Resize((8, 8)), scaling, normalize]))
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="mean for pixels of 0 to 255"):
        Recipe.of([scaling, normalize])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Compose([ToDtype("float32"), normalize])
        Compose([scaling, Normalize(MEAN, STD), Normalize([2.0], [1.0])])
        Compose([scaling, Normalize([1.0], [0.5])])


def test_a_recipe_shows_its_ops_line_by_line() -> None:
    recipe = Compose([Resize((8, 9)), RandomApply([RandomHorizontalFlip()], 0.25)])
    lines = (
        "    Resize(size=(8, 9), interpolation='bilinear', max_size=None),\n"
        "    RandomApply(transforms=(RandomHorizontalFlip(p=0.5),), p=0.25),\n"
    )
    assert repr(recipe) == f"Compose(\n{lines})"
    assert repr(Recipe.of(recipe)) == f"Recipe(\n{lines})"
    assert repr(Recipe()) == "Recipe()"


def test_what_feeder_lacks_or_cant_call_says_the_way_out() -> None:
    with pytest.raises(AttributeError, match=r"'ElasticTransform'; .* Lambda takes any function"):
        transforms.ElasticTransform  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="by name, such as 'bicubic'"):
        transforms.InterpolationMode  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(transforms, "__wrapped__")
    with pytest.raises(TypeError, match="give it to ShardDataset"):
        Compose([Resize(3)])(np.zeros((3, 8, 8), np.uint8))


@pytest.mark.parametrize("value", ["bicubic", InterpolationMode.BICUBIC, 3, Image.Resampling.BICUBIC])
def test_interpolation_is_taken_by_name_enum_or_pillow_constant(value: object) -> None:
    assert Resize(8, interpolation=value).interpolation == "bicubic"
    assert RandomRotation(8, interpolation=value).interpolation == "bicubic"


@pytest.mark.parametrize("value", [torch.float16, np.float16, np.dtype("float16"), "float16"])
def test_dtype_is_taken_from_torch_numpy_or_by_name(value: object) -> None:
    assert ToDtype(value).dtype == "float16"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomResizedCrop(224, antialias=False), "antialias must be True"),
        (lambda: Resize(224, antialias=False), "antialias must be True"),
        (lambda: Resize(224, interpolation="cubic"), "'cubic'"),
        (lambda: Resize(224, interpolation=17), "17"),
        (lambda: RandomRotation(9, interpolation="lanczos"), "lanczos"),
        (lambda: Resize(None), "max_size must be an int"),
        (lambda: Resize((2, 3), max_size=9), "size=None or one int"),
        (lambda: Resize(9, max_size=9), "greater than size"),
        (lambda: Resize(0), "positive"),
        (lambda: Resize(2.5), "2.5"),  # type: ignore[arg-type]
        (lambda: CenterCrop((1, 2, 3)), r"\(1, 2, 3\)"),
        (lambda: RandomResizedCrop(8, scale=(1.0, 0.5)), "increasing"),
        (lambda: RandomResizedCrop(8, ratio=(0.0, 1.0)), "ratio"),
        (lambda: RandomHorizontalFlip(1.5), "probability"),
        (lambda: Pad((1, 2, 3)), "padding"),
        (lambda: Pad(1, padding_mode="wrap"), "wrap"),
        (lambda: Pad(1, fill=300), "300"),
        (lambda: ToDtype("int32"), "int32"),
        (lambda: ToDtype(torch.float64), "float64"),
        (lambda: Normalize([0.5], [0.0]), "std must not be 0"),
        (lambda: Normalize([0.5, 0.5], [1.0]), "three"),
        (lambda: ColorJitter(hue=0.6), "hue"),
        (lambda: ColorJitter(brightness=-1), "negative"),
        (lambda: GaussianBlur(4), "odd"),
        (lambda: GaussianBlur(3, 0.0), "sigma"),
        (lambda: RandomErasing(value="noise"), "noise"),
        (lambda: RandomErasing(scale=(0.1, 2.0)), "scale"),
        (lambda: RandomAffine(1, translate=(0.1, 1.1)), "translate"),
        (lambda: RandAugment(magnitude=31), "magnitude"),
        (lambda: TrivialAugmentWide(1), "num_magnitude_bins"),
        (lambda: AugMix(0), "severity"),
        (lambda: AugMix(11), "severity"),
        (lambda: AugMix(mixture_width=0), "mixture_width"),
        (lambda: AugMix(mixture_width=2.5), "mixture_width"),  # type: ignore[arg-type]
        (lambda: AugMix(chain_depth=1.5), "chain_depth"),  # type: ignore[arg-type]
        (lambda: AugMix(alpha=0.0), "alpha"),
        (lambda: MixUp(alpha=0.0), "alpha"),
        (lambda: Lambda(3), "function"),  # type: ignore[arg-type]
        (lambda: Compose([torch.nn.Identity()]), "Identity"),  # type: ignore[list-item]
        (lambda: Compose([MixUp()]), "assembled batches"),  # type: ignore[list-item]
        (lambda: Compose([ToDtype("float32"), Resize(3)]), "put it before ToDtype"),
        (lambda: Compose([Normalize(MEAN, STD), ToDtype("uint8")]), "uint8"),
        (lambda: Compose([RandomErasing(value="random")]), "put it after ToDtype"),
        *(
            (lambda op=op: RandomApply([op]), f"{type(op).__name__} can't be in RandomApply")
            for op in (
                Resize(5),
                RandomCrop((7, 5)),
                Pad(1),
                RandomRotation(5, expand=True),
                ToDtype("uint8"),
                RandomApply([]),
            )
        ),
        (lambda: RandomApply([], 1.5), "probability"),
        (lambda: RandomApply([RandomChoice([RandomInvert()])]), "RandomChoice can't be in RandomApply: .* do not nest"),
        (lambda: RandomChoice([RandomApply([RandomInvert()])]), "RandomApply can't be in RandomChoice"),
        (lambda: RandomChoice([RandomInvert(), Compose([RandomInvert(), Resize(9)])]), "Resize can't be in RandomCho"),
        (lambda: RandomChoice([]), "one op or more"),
        (lambda: RandomChoice(RandomInvert()), "must be a sequence"),  # type: ignore[arg-type]
        (lambda: RandomChoice([RandomInvert()], [0.5, 0.5]), "1 numbers, one for each op"),
        (lambda: RandomChoice([RandomInvert()] * 2, [-1, 3]), "0 or more"),
        (lambda: RandomChoice([RandomInvert()], [0.0]), "one above 0"),
        (lambda: AutoAugment("coco"), "one of imagenet, cifar10, svhn, got 'coco'"),
        (lambda: AutoAugment(["imagenet"]), "policy must be"),
        (lambda: AutoAugment(interpolation="lanczos"), "lanczos"),
        (lambda: RandomPerspective(1.1), "distortion_scale must be a number from 0 to 1, got 1.1"),
        (lambda: RandomPerspective(p=-1), "probability"),
        (lambda: RandomPosterize(9), "bits must be an int from 0 to 8, got 9"),
        (lambda: RandomPosterize(2.5), "bits"),  # type: ignore[arg-type]
        (lambda: RandomSolarize(256), "threshold must be a number from 0 to 255, got 256"),
        (lambda: RandomSolarize(-1, 0.5), "threshold"),
        (lambda: RandomSolarize(0.5), "0-255, got 0.5; for one of 0.0-1.0 images take 127.5"),
        (lambda: RandomAdjustSharpness(-0.1), "0 or more, got -0.1"),
        (lambda: RandomInvert(2), "probability"),
        (lambda: Compose([ToDtype("float32"), RandomSolarize(128)]), "put it before ToDtype"),
        (lambda: RandomZoomOut(side_range=(0.5, 2)), "side_range must be two increasing numbers"),
        (lambda: RandomZoomOut(p=3), "probability"),
        (lambda: RandomApply([RandomZoomOut()]), "RandomZoomOut can't be in RandomApply"),
        (lambda: MixUp(num_classes=0), "num_classes must be a positive int or None, got 0"),
        (lambda: Compose([Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))]), "ToDtype.torch.float32. before it"),
    ],
)
def test_bad_arguments_are_refused_when_the_op_is_made(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_importing_transforms_loads_neither_torch_nor_pillow() -> None:
    code = "import sys, feeder.transforms; print(sorted({'torch', 'PIL', 'torchvision'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_recipes_pickle_and_compare_by_value() -> None:
    recipe = Recipe.of(Compose(ALL_OPS))
    copy = pickle.loads(pickle.dumps(recipe))
    assert copy == recipe
    assert hash(copy) == hash(recipe)
    assert repr(copy) == repr(recipe)
    before, after = recipe.draw(1, 1, [5], SIZES[:1]), copy.draw(1, 1, [5], SIZES[:1])
    np.testing.assert_array_equal(before.source_box, after.source_box)
    assert Recipe.of(recipe) is recipe
    assert Recipe.of(None).ops == ()
    assert Recipe.of(Compose([Compose(ALL_OPS[:2]), *ALL_OPS[2:]])) == recipe


@pytest.mark.parametrize("case", torchvision_cases("draws"), ids=lambda case: f"{case['op']}-{case['size']}")
def test_crops_and_erasings_are_those_of_torchvision(case: dict[str, Any]) -> None:
    """From the same uniform numbers, attempt by attempt, and down to the fallback."""
    op = getattr(transforms, case["op"])(**case["args"])
    attempts, (row, column) = case["uniforms"][:20], case["uniforms"][20:]
    # Ours draws the corner first, so that later attempts cost nothing when the first fits.
    head = [row, column] if case["op"] == "RandomResizedCrop" else [0.0, 0.0, 0.0, row, column]
    params, _ = op.draw(Given(*head, *attempts), np.array([case["size"]]))
    expected = case["result"]
    if case["op"] == "RandomResizedCrop":
        found = {name: int(params[name][0]) for name in ("top", "left", "height", "width")}
        assert found == {name: expected[name] for name in found}
    else:
        assert bool(params["erase"][0]) == expected["erase"]
        if expected["erase"]:
            found = {name: int(params[name][0]) for name in ("i", "j", "h", "w")}
            assert found == {name: expected[name] for name in found}


@pytest.mark.parametrize("case", torchvision_cases("sizes"), ids=lambda case: f"{case['op']}-{case['args']}")
def test_sizes_and_windows_are_those_of_torchvision(case: dict[str, Any]) -> None:
    op = getattr(transforms, case["op"])(**case["args"])
    params, sizes = op.draw(Given(case.get("uniform", 0.0)), np.array([case["size"]]))
    if "resized_height" in params:
        assert sizes[0].tolist() == case["result"]
    else:
        # torchvision's padding shows as a window that starts before the image.
        assert [int(params["top"][0]), int(params["left"][0])] == case["result"]


# torchvision's order: those that all_ops=False leaves come first.
AUGMIX_KINDS = [*AUGMENTATIONS[1:6], *AUGMENTATIONS[10:14], *AUGMENTATIONS[6:10]]


@pytest.mark.parametrize("case", torchvision_cases("magnitudes"), ids=lambda case: f"{case['op']}-{case['kind']}")
def test_strengths_of_augmentations_are_those_of_torchvision(case: dict[str, Any]) -> None:
    kind = (case["kind"] + 0.5) / (13 if case["op"] == "AugMix" else 14)
    size = np.array([[375, 500]])
    for number, expected in enumerate(case["values"]):
        for sign in (0.4, 0.6):
            if case["op"] == "RandAugment":
                op: Op = RandAugment(1, number, case["bins"])
                params, _ = op.draw(Given(kind, sign), size)
            elif case["op"] == "AugMix":
                op = AugMix(case["bins"], 1, 1)
                # The chain's depth, the step, and for each of three variates an attempt that is accepted.
                step = kind, (number + 0.5) / case["bins"], sign
                params, _ = op.draw(Given(0.5, *step, *[0.9, 0.25, 0.5, 0.5] * 3), size)
                params = {name: params[name][0] for name in ("kind", "magnitude")}
                assert AUGMENTATIONS[params["kind"][0, 0]] == AUGMIX_KINDS[case["kind"]]
                params["kind"][:] = case["kind"]
            else:
                op = TrivialAugmentWide(case["bins"])
                params, _ = op.draw(Given(kind, sign, (number + 0.5) / case["bins"]), size)
            assert params["kind"].tolist() == [[case["kind"]]]
            signed = -expected if case["signed"] and sign < 0.5 else expected
            # torch.linspace differs in the last bits from CPU to CPU.
            np.testing.assert_allclose(params["magnitude"], [[signed]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 4.0])
def test_weights_and_chains_of_augmix_are_distributed_as_those_of_torchvision(alpha: float) -> None:
    count, width = 20_000, 3
    (params,) = draw([AugMix(alpha=alpha)], ids=np.arange(count), sizes=np.full((count, 2), 64)).ops
    weights = params["weights"].astype(np.float64)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-6)
    assert (weights >= 0).all()
    share, chains = weights[:, 0], weights[:, 1:] / np.maximum(1.0 - weights[:, :1], 1e-30)
    assert abs(share.mean() - 0.5) < 0.02
    assert abs(share.var() - 0.25 / (2 * alpha + 1)) < 0.01  # of a Beta distribution
    chains = chains[share < 0.99]
    np.testing.assert_allclose(chains.mean(axis=0), 1 / width, atol=0.02)
    total = width * alpha
    np.testing.assert_allclose(chains.var(axis=0), (width - 1) / width**2 / (total + 1), atol=0.01)
    depths = (params["kind"] != 0).sum(axis=2)
    np.testing.assert_allclose(np.bincount(depths.ravel()) / depths.size, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.01)
    kinds = np.bincount(params["kind"][params["kind"] != 0], minlength=15)
    assert not kinds[14]
    np.testing.assert_allclose(kinds[1:14] / kinds.sum(), 1 / 13, atol=0.01)


@pytest.mark.parametrize("policy", AutoAugmentPolicy)
def test_policies_of_autoaugment_are_those_of_torchvision(policy: AutoAugmentPolicy) -> None:
    op, count = AutoAugment(policy), 0
    for case in torchvision_cases("policies"):
        if case["policy"] == policy.value:
            params, _ = op.draw(Given((case["pair"] + 0.5) / 25, *[case["uniform"]] * 4), np.array([[375, 500]]))
            names = [AUGMENTATIONS[number] for number in params["kind"][0]]
            found = [step for step in zip(names, params["magnitude"][0], strict=True) if step[0] != "Identity"]
            assert [name for name, _ in found] == [name for name, _ in case["steps"]], case
            # torch.linspace differs in the last bits from CPU to CPU.
            np.testing.assert_allclose([m for _, m in found], [m for _, m in case["steps"]], rtol=1e-5, atol=1e-6)
            count += 1
    assert count == 100


@pytest.mark.parametrize("case", torchvision_cases("corners"), ids=lambda case: f"{case['scale']}-{case['size']}")
def test_corners_of_a_perspective_are_those_of_torchvision(case: dict[str, Any]) -> None:
    params, _ = RandomPerspective(case["scale"]).draw(Given(0.2, *case["uniforms"]), np.array([case["size"]]))
    assert params["distort"].tolist() == [True]
    assert params["corners"][0].tolist() == case["corners"]


@pytest.mark.parametrize("case", torchvision_cases("zooms"), ids=lambda case: f"{case['side_range']}-{case['size']}")
def test_what_zooming_out_puts_around_an_image_is_that_of_torchvision(case: dict[str, Any]) -> None:
    op, size = RandomZoomOut(side_range=case["side_range"], p=0.3), np.array([case["size"]])
    params, sizes = op.draw(Given(0.2, *case["uniforms"]), size)
    left, top, right, bottom = params["padding"][0].tolist()
    assert [left, top, right, bottom] == case["padding"]
    np.testing.assert_array_equal(sizes - size, [[top + bottom, left + right]])
    params, sizes = op.draw(Given(0.3, *case["uniforms"]), size)
    assert params["padding"].tolist() == [[0, 0, 0, 0]]
    np.testing.assert_array_equal(sizes, size)


def test_an_op_that_cannot_be_picked_never_is() -> None:
    ops = [RandomInvert(), RandomEqualize(), RandomAutocontrast(), RandomInvert()]
    for weights, uniform, picked in (
        ([0, 1, 0, 0], 0.0, 1),
        ([0, 1, 1, 0], 0.5, 2),
        ([0, 1, 1, 0], 1 - 2**-53, 2),
        ([0.1, 0.7, 0, 0.2], 0.0, 0),
        ([0.1, 0.1, 0.1, 0], 1 - 2**-53, 2),
    ):
        params, _ = RandomChoice(ops, weights).draw(Within(uniform), np.array([[9, 9]]))
        assert params["choice"].tolist() == [picked]


def test_draws_depend_on_nothing_but_seed_epoch_sample_and_size() -> None:
    together = draw(ALL_OPS, ids=[7, 8, 9, 2**40, 11, 12])
    again = draw(ALL_OPS, ids=[7, 8, 9, 2**40, 11, 12])
    for row, sample in enumerate([7, 8, 9, 2**40, 11, 12]):
        alone = draw(ALL_OPS, ids=[sample], sizes=SIZES[row : row + 1])
        taken = together.take([row])
        for one, other in ((alone, taken), (again.take(slice(row, row + 1)), taken)):
            np.testing.assert_array_equal(one.source_box, other.source_box)
            np.testing.assert_array_equal(one.output_size, other.output_size)
            for found, expected in zip(one.ops, other.ops, strict=True):
                assert found.keys() == expected.keys()
                for name in found:
                    np.testing.assert_array_equal(found[name], expected[name])


def test_seed_epoch_sample_and_place_in_the_recipe_all_change_the_draws() -> None:
    sizes = np.array([[375, 500]] * 50)
    ids = np.arange(50)
    flips = draw([RandomHorizontalFlip(), RandomHorizontalFlip()], sizes=sizes, ids=ids)
    assert (flips.ops[0]["flip"] != flips.ops[1]["flip"]).any()
    first = draw([RandomResizedCrop(9)], sizes=sizes, ids=ids)
    others: tuple[dict[str, Any], ...] = ({"seed": 5}, {"epoch": 5}, {"ids": ids + 50})
    for other in others:
        changed = draw([RandomResizedCrop(9)], **{"sizes": sizes, "ids": ids, **other})
        assert (changed.source_box != first.source_box).any(axis=1).mean() > 0.9


def test_random_numbers_fill_their_ranges() -> None:
    count = 4000
    sizes = np.array([[300, 400]] * count)
    draws = draw(
        [
            RandomResizedCrop(9, scale=(0.2, 0.6)),
            RandomHorizontalFlip(0.3),
            ColorJitter((0.5, 0.7), hue=0.2),
            RandomGrayscale(0.2),
            RandAugment(3),
            RandomRotation((10, 20)),
            Resize((9, 19)),
            RandomAffine((-5, 5), (0.3, 0.0), (0.5, 0.6), (1.0, 2.0, 3.0, 4.0)),
            RandomErasing(0.25),
            RandomVerticalFlip(0.7),
            RandomApply([ColorJitter(hue=0.2), ColorJitter(hue=0.2)], 0.8),
            RandomChoice([RandomInvert(0.3), RandomInvert(0.6), RandomInvert(1.0)], [0.2, 0.3, 0.5]),
            AutoAugment(),
            RandomPerspective(0.5, 0.4),
        ],
        sizes=sizes,
        ids=np.arange(count),
    )
    crop, flip, jitter, gray, augment, rotation, _, affine, erasing, vertical, applied, choice, auto, tilt = draws.ops
    share = crop["height"] * crop["width"] / 120_000
    assert 0.19 < share.min() < 0.22
    assert 0.58 < share.max() < 0.61
    assert abs(share.mean() - 0.4) < 0.01
    assert ((crop["top"] >= 0) & (crop["top"] + crop["height"] <= 300)).all()
    assert ((crop["left"] >= 0) & (crop["left"] + crop["width"] <= 400)).all()
    assert abs(flip["flip"].mean() - 0.3) < 0.03
    assert abs(gray["gray"].mean() - 0.2) < 0.03
    assert 0.5 <= jitter["brightness"].min() < 0.501
    assert 0.699 < jitter["brightness"].max() < 0.7
    assert abs(jitter["hue"].mean()) < 0.01
    assert "contrast" not in jitter
    orders = {tuple(order) for order in jitter["order"].tolist()}
    assert len(orders) == 24
    assert np.bincount(augment["kind"].ravel()).min() > 3 * count / 14 * 0.85
    assert abs((augment["magnitude"][augment["kind"] == 1] < 0).mean() - 0.5) < 0.06
    assert 10 <= rotation["angle"].min() < 10.1
    assert set(affine["shift_x"]) == set(range(-6, 7))
    assert set(affine["shift_y"]) == {0}
    for name, low, high in (("angle", -5, 5), ("scale", 0.5, 0.6), ("shear_x", 1, 2), ("shear_y", 3, 4)):
        assert low <= affine[name].min() < low + 0.01 * (high - low), name
        assert high - 0.01 * (high - low) < affine[name].max() < high, name
    assert abs(erasing["erase"].mean() - 0.25) < 0.03
    assert abs(vertical["flip_vertically"].mean() - 0.7) < 0.03
    assert abs(applied["apply"].mean() - 0.8) < 0.03
    assert abs(np.corrcoef([applied["apply"], applied["0.hue"], applied["1.hue"]]) - np.eye(3)).max() < 0.06
    shares = np.bincount(choice["choice"], minlength=3) / count
    assert abs(shares - [0.2, 0.3, 0.5]).max() < 0.03
    assert abs(choice["0.change"].mean() - 0.3) < 0.03
    assert abs(choice["1.change"][choice["choice"] == 1].mean() - 0.6) < 0.05
    assert abs(np.corrcoef([choice["choice"], choice["0.change"], choice["1.change"]]) - np.eye(3)).max() < 0.06
    # By the sum of a kind's probabilities in the 25 pairs.
    assert abs((auto["kind"] == AUGMENTATIONS.index("Invert")).mean() - 1.8 / 50) < 0.01
    assert abs((auto["kind"] == AUGMENTATIONS.index("Equalize")).mean() - 11.2 / 50) < 0.02
    assert abs((auto["magnitude"][auto["kind"] == AUGMENTATIONS.index("Rotate")] < 0).mean() - 0.5) < 0.06
    assert abs(tilt["distort"].mean() - 0.4) < 0.03
    assert abs(np.corrcoef([tilt["distort"], *tilt["corners"].reshape(count, 8).T]) - np.eye(9)).max() < 0.06
    height, width = 9, 19  # after the Resize
    for number, (x, y) in enumerate(((0, 0), (width - 5, 0), (width - 5, height - 3), (0, height - 3))):
        assert set(tilt["corners"][:, number, 0]) == set(range(x, x + 5))
        assert set(tilt["corners"][:, number, 1]) == set(range(y, y + 3))


@pytest.mark.parametrize(
    ("ops", "length", "base_size", "output_size"),
    [
        ([], 0, None, None),
        ([RandomResizedCrop(9), RandomHorizontalFlip(), Normalize(MEAN, STD)], 3, (9, 9), (9, 9)),
        ([Resize(9), CenterCrop(8), ToDtype("float32"), RandomHorizontalFlip()], 4, (8, 8), (8, 8)),
        ([Resize(9), RandomCrop((8, 9))], 2, (8, 9), (8, 9)),
        ([Resize(9)], 1, None, None),
        ([Resize((9, 7))], 1, (9, 7), (9, 7)),
        ([Resize(9), CenterCrop(10)], 1, None, (10, 10)),
        ([Resize(9, max_size=20), CenterCrop(8)], 1, None, (8, 8)),
        ([CenterCrop(8)], 0, None, (8, 8)),
        ([Resize(9), RandomCrop(8, padding=1)], 1, None, (8, 8)),
        ([RandomResizedCrop(9), Resize(7)], 1, (9, 9), (7, 7)),
        ([RandomResizedCrop((9, 18)), Resize(7)], 1, (9, 18), (7, 14)),
        ([RandomResizedCrop(9, interpolation="bicubic")], 0, None, (9, 9)),
        ([RandomResizedCrop(9), ColorJitter(0.4), RandomHorizontalFlip()], 1, (9, 9), (9, 9)),
        ([RandomResizedCrop(9), Normalize(MEAN, STD), RandomErasing()], 1, (9, 9), (9, 9)),
        ([RandomResizedCrop(9), Pad((1, 2))], 1, (9, 9), (13, 11)),
        ([RandomResizedCrop(9), RandomRotation(5, expand=True)], 1, (9, 9), None),
        ([RandomResizedCrop(9), RandomRotation(5)], 1, (9, 9), (9, 9)),
        ([Resize((9, 7)), RandomZoomOut()], 1, (9, 7), None),
        ([RandomZoomOut(), RandomResizedCrop(9)], 0, None, (9, 9)),
    ],
)
def test_base_path_is_the_longest_part_that_boxes_can_say(
    ops: list[Op], length: int, base_size: tuple[int, int] | None, output_size: tuple[int, int] | None
) -> None:
    recipe = Recipe.of(ops)
    assert recipe.base_length == length
    assert recipe.rest == tuple(ops[length:])
    assert recipe.is_base_path == (length == len(ops))
    assert recipe.base_size == base_size
    assert recipe.output_size == output_size
    draws = recipe.draw(0, 0, np.arange(len(SIZES)), SIZES)
    if base_size is not None:
        assert (draws.base_size == base_size).all()
    if output_size is not None:
        assert (draws.output_size == output_size).all()


def test_boxes_of_a_random_resized_crop_are_the_crop() -> None:
    draws = draw([RandomResizedCrop(9)])
    crop = draws.ops[0]
    box = np.stack([crop["left"], crop["top"], crop["left"] + crop["width"], crop["top"] + crop["height"]], axis=1)
    np.testing.assert_array_equal(draws.source_box, box)
    np.testing.assert_array_equal(draws.support_box, box)
    assert draws.source_box.dtype == np.float64
    assert draws.support_box.dtype == np.int32
    assert draws.flip.dtype == np.uint8


def test_boxes_of_resize_and_center_crop_are_fractional_with_the_whole_image_as_support() -> None:
    draws = draw([Resize(256), CenterCrop(224)], sizes=np.array([[375, 500]]))
    # The image becomes 341 x 256; the window starts at round(117 / 2) = 58 and at 16.
    x, y = 500 / 341, 375 / 256
    np.testing.assert_allclose(draws.source_box, [[58 * x, 16 * y, 282 * x, 240 * y]])
    np.testing.assert_array_equal(draws.support_box, [[0, 0, 500, 375]])


def test_a_window_after_a_flip_is_counted_from_the_other_side() -> None:
    flipped = draw([Resize((10, 20)), RandomHorizontalFlip(1.0), RandomCrop((10, 4))], sizes=np.array([[10, 20]]))
    left = int(flipped.ops[2]["left"][0])
    np.testing.assert_allclose(flipped.source_box, [[16 - left, 0, 20 - left, 10]])
    assert flipped.flip.tolist() == [1]
    twice = draw([RandomHorizontalFlip(1.0), RandomHorizontalFlip(1.0)], sizes=np.array([[10, 20]]))
    assert twice.flip.tolist() == [0]


@pytest.mark.parametrize(
    ("ops", "dtype", "scale", "bias"),
    [
        ([], "uint8", None, None),
        ([ToDtype("uint8", scale=True)], "uint8", None, None),
        ([ToDtype("float32")], "float32", 1.0, 0.0),
        ([ToDtype("float32", scale=True)], "float32", 1 / 255, 0.0),
        ([Normalize([0.5], [0.25])], "float32", 4 / 255, -2.0),
        ([ToDtype("float32", scale=True), Normalize([0.5], [0.25])], "float32", 4 / 255, -2.0),
        ([ToDtype("float32"), Normalize([128], [64])], "float32", 1 / 64, -2.0),
        ([ToDtype("float16", scale=True), ToDtype("float32", scale=True)], "float32", 1 / 255, 0.0),
        ([Normalize([0.5], [0.25]), ToDtype("bfloat16")], "bfloat16", 4 / 255, -2.0),
        ([Normalize([0.5], [0.25]), Normalize([1.0], [2.0])], "float32", 2 / 255, -1.5),
    ],
)
def test_affine_says_what_the_value_ops_do(ops: list[Op], dtype: str, scale: float | None, bias: float | None) -> None:
    recipe = Recipe.of(ops)
    assert recipe.output_dtype == dtype
    assert recipe.storage_dtype == ("uint16" if dtype == "bfloat16" else dtype)
    if scale is None or bias is None:
        assert recipe.affine is None
    else:
        assert recipe.affine is not None
        np.testing.assert_allclose(recipe.affine[0], [scale] * 3, rtol=1e-6)
        np.testing.assert_allclose(recipe.affine[1], [bias] * 3, rtol=1e-6)
        assert recipe.affine[0].dtype == np.float32


def test_sample_ids_and_sizes_must_be_of_one_length() -> None:
    with pytest.raises(ArgumentError, match="got 2 and 6"):
        draw([Resize(3)], ids=[1, 2])


def test_mixup_is_that_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = torchvision_arrays()
    images = torch.from_numpy(arrays["mixing_input"])
    labels = torch.tensor([5, 6, 7])
    for lam in (0.3, 0.95):
        monkeypatch.setattr(transforms.mixing, "beta", lambda *_, lam=lam: lam)
        mixed, (a, b, weight) = MixUp()(images, labels, seed=0, epoch=0, step=0)
        np.testing.assert_allclose(mixed.numpy(), arrays[f"mixup_{lam}"], atol=1e-6)
        assert (a.tolist(), b.tolist(), weight) == ([5, 6, 7], [7, 5, 6], lam)
    np.testing.assert_array_equal(images.numpy(), arrays["mixing_input"])


def test_cutmix_is_that_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = torchvision_arrays()
    images = torch.from_numpy(arrays["mixing_input"])
    for lam in (0.3, 0.95):
        monkeypatch.setattr(transforms.mixing, "beta", lambda *_, lam=lam: lam)
        # The golden rectangle is about (20, 3) in an image of 24 x 8.
        monkeypatch.setattr(transforms.mixing, "uniform", lambda *_: np.array([[20.5 / 24, 3.5 / 8]]))
        mixed, (_, _, weight) = CutMix()(images, torch.arange(3), seed=0, epoch=0, step=0)
        np.testing.assert_array_equal(mixed.numpy(), arrays[f"cutmix_{lam}"])
        assert weight == pytest.approx(float(arrays[f"cutmix_lam_{lam}"]))


def test_mixed_labels_of_num_classes_are_those_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = torchvision_arrays()
    images = torch.from_numpy(arrays["mixing_input"])
    for lam in (0.3, 0.95):
        monkeypatch.setattr(transforms.mixing, "beta", lambda *_, lam=lam: lam)
        mixed, shares = MixUp(num_classes=3)(images, torch.arange(3), seed=0, epoch=0, step=0)
        assert isinstance(shares, torch.Tensor)
        assert shares.dtype == torch.float32
        np.testing.assert_array_equal(shares.numpy(), arrays[f"mixup_labels_{lam}"])
        assert torch.equal(mixed, MixUp()(images, torch.arange(3), seed=0, epoch=0, step=0)[0])


@pytest.mark.parametrize("op", [MixUp, CutMix])
def test_mixed_labels_of_num_classes_are_the_others_as_shares(op: type[transforms.BatchOp]) -> None:
    images, labels = torch.zeros(4, 3, 8, 8), torch.tensor([2, 0, 0, 4])
    for step in range(5):
        _, (own, others, weight) = op()(images, labels, seed=0, epoch=0, step=step)
        _, shares = op(num_classes=5)(images, labels, seed=0, epoch=0, step=step)
        expected = torch.zeros(4, 5)
        for row in range(4):
            expected[row, own[row]] += weight
            expected[row, others[row]] += 1.0 - weight
        torch.testing.assert_close(shares, expected)
        logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.cross_entropy
        by_hand = weight * loss(logits, own) + (1.0 - weight) * loss(logits, others)
        torch.testing.assert_close(loss(logits, shares), by_hand)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, 5])
def test_labels_that_num_classes_has_no_place_for_are_named(wrong: int) -> None:
    images, labels = torch.zeros(2, 3, 8, 8), torch.tensor([0, wrong])
    with pytest.raises(ArgumentError, match=f"CutMix with num_classes=5 takes labels from 0 to 4, got {wrong}"):
        CutMix(num_classes=5)(images, labels, seed=0, epoch=0, step=0)
    with pytest.raises(ArgumentError, match=r"class numbers \[N\], got \[2, 5\]"):
        CutMix(num_classes=5)(images, torch.zeros(2, 5), seed=0, epoch=0, step=0)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
@pytest.mark.parametrize("op", [MixUp(), CutMix()], ids=str)
def test_mixing_keeps_the_memory_format(op: transforms.BatchOp, dtype: torch.dtype, device: str) -> None:
    """Tensors without memory tell what a GPU would give; there torch's roll gives another format."""
    images = torch.zeros((4, 3, 8, 6), dtype=dtype, device=device).to(memory_format=torch.channels_last)
    mixed, _ = op(images, torch.arange(4), seed=0, epoch=0, step=0)
    assert mixed.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("op", [MixUp(alpha=0.2), CutMix()])
def test_mixing_depends_on_seed_epoch_and_step_only(op: transforms.BatchOp) -> None:
    images = (torch.arange(4 * 3 * 64 * 64) % 251).to(torch.uint8).reshape(4, 3, 64, 64)
    labels = torch.arange(4)

    def run(seed: int = 1, epoch: int = 2, step: int = 3) -> tuple[torch.Tensor, float]:
        mixed, (_, _, lam) = op(images, labels, seed=seed, epoch=epoch, step=step)
        return mixed, lam

    first, lam = run()
    assert first.dtype == torch.uint8
    assert torch.equal(run()[0], first)
    lams = {run(**{name: value})[1] for name in ("seed", "epoch", "step") for value in range(10, 20)}
    assert len(lams - {lam}) > 10


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 3.0])
def test_mixing_weights_follow_the_beta_distribution(alpha: float) -> None:
    lams = np.array([transforms.mixing.beta(alpha, 0, 0, step, 9) for step in range(1500)])
    assert ((lams >= 0.0) & (lams <= 1.0)).all()
    assert abs(lams.mean() - 0.5) < 0.04
    variance = 1.0 / (4.0 * (2.0 * alpha + 1.0))
    assert abs(lams.var() / variance - 1.0) < 0.12


def test_mixing_refuses_shapes_that_do_not_fit() -> None:
    with pytest.raises(ArgumentError, match="N labels"):
        MixUp()(torch.zeros(4, 3, 2, 2), torch.zeros(3), seed=0, epoch=0, step=0)
