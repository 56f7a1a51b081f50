"""Arguments of transforms: torchvision's names and defaults, and what is refused."""

from __future__ import annotations

import enum
import math
import subprocess
import sys
import warnings
from collections.abc import Callable

import numpy as np
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
    GaussianBlur,
    GaussianNoise,
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
    RandomHorizontalFlip,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    RandomZoomOut,
    Recipe,
    Resize,
    TimmRandAugment,
    ToDtype,
    TrivialAugmentWide,
)

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class InterpolationMode(enum.Enum):
    """Spelled as torchvision's."""

    BICUBIC = "bicubic"


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


def test_what_feeder_lacks_or_cant_call_says_the_way_out() -> None:
    with pytest.raises(AttributeError, match=r"'ElasticTransform'; .* Lambda takes any function"):
        transforms.ElasticTransform  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="by name, such as 'bicubic'"):
        transforms.InterpolationMode  # type: ignore[attr-defined]  # noqa: B018
    for name, near in (
        ("RandomResizeCrop", "RandomResizedCrop"),
        ("Normalise", "Normalize"),
        ("colorJitter", "ColorJitter"),
    ):
        with pytest.raises(AttributeError) as error:
            getattr(transforms, name)
        assert str(error.value).endswith(f"has no attribute {name!r}; did you mean {near}?")
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
        (lambda: RandomHorizontalFlip(1.5), "p must be a number from 0 to 1"),
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
        (lambda: RandomAffine(math.inf), "degrees must be two increasing, finite numbers"),
        (lambda: RandomRotation(9, center=(math.nan, 1)), "center must be .* two finite numbers"),
        (lambda: ColorJitter((1, math.inf)), "brightness must be two increasing, finite numbers"),
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
        (lambda: RandomApply([], 1.5), "p must be a number from 0 to 1"),
        (lambda: RandomApply([RandomChoice([RandomInvert()])]), "RandomChoice can't be in RandomApply: .* do not nest"),
        (lambda: RandomChoice([RandomApply([RandomInvert()])]), "RandomApply can't be in RandomChoice"),
        (lambda: RandomChoice([RandomInvert(), Compose([RandomInvert(), Resize(9)])]), "Resize can't be in RandomCho"),
        (lambda: RandomChoice([]), "one op or more"),
        (lambda: RandomOrder([]), "one op or more"),
        (lambda: RandomOrder([RandomInvert(), Resize(9)]), "Resize can't be in RandomOrder"),
        (lambda: RandomPhotometricDistort(hue=(-0.6, 0.1)), "hue"),
        (lambda: RandomPhotometricDistort(p=2), "p must be a number from 0 to 1"),
        (lambda: GaussianNoise(sigma=-0.1), "sigma"),
        (lambda: GaussianNoise(11.0), "mean"),
        (lambda: TimmRandAugment("augmix-m3"), "config must be timm's"),
        (lambda: TimmRandAugment("rand-m9-t3a"), "other sets of augmentations"),
        (lambda: TimmRandAugment("rand-m9.5"), "config must be timm's"),
        (lambda: TimmRandAugment("rand-p1.5"), "config must be timm's"),
        (lambda: RandomChoice(RandomInvert()), "must be a sequence"),  # type: ignore[arg-type]
        (lambda: RandomChoice([RandomInvert()], [0.5, 0.5]), "1 numbers, one for each op"),
        (lambda: RandomChoice([RandomInvert()] * 2, [-1, 3]), "0 or more"),
        (lambda: RandomChoice([RandomInvert()], [0.0]), "one above 0"),
        (lambda: AutoAugment("coco"), "one of imagenet, cifar10, svhn, got 'coco'"),
        (lambda: AutoAugment(["imagenet"]), "policy must be"),
        (lambda: AutoAugment(interpolation="lanczos"), "lanczos"),
        (lambda: RandomPerspective(1.1), "distortion_scale must be a number from 0 to 1, got 1.1"),
        (lambda: RandomPerspective(p=-1), "p must be a number from 0 to 1"),
        (lambda: RandomPosterize(9), "bits must be an integer from 0 to 8, got 9"),
        (lambda: RandomPosterize(2.5), "bits"),  # type: ignore[arg-type]
        (lambda: RandomSolarize(256), "threshold must be a number from 0 to 255, got 256"),
        (lambda: RandomSolarize(-1, 0.5), "threshold"),
        (lambda: RandomSolarize(0.5), "0-255, got 0.5; for one of 0.0-1.0 images take 127.5"),
        (lambda: RandomAdjustSharpness(-0.1), "0 or more, got -0.1"),
        (lambda: RandomInvert(2), "p must be a number from 0 to 1"),
        (lambda: Compose([ToDtype("float32"), RandomSolarize(128)]), "put it before ToDtype"),
        (lambda: RandomZoomOut(side_range=(0.5, 2)), "side_range must be two increasing, finite numbers"),
        (lambda: RandomZoomOut(p=3), "p must be a number from 0 to 1"),
        (lambda: RandomApply([RandomZoomOut()]), "RandomZoomOut can't be in RandomApply"),
        (lambda: MixUp(num_classes=0), "num_classes must be an integer of 1 or more, or None, got 0"),
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
