"""Draws: torchvision's parameters from the same uniform numbers, and pure functions of seed, epoch and sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from feeder import transforms
from feeder.transforms import (
    JPEG,
    AugMix,
    AutoAugment,
    AutoAugmentPolicy,
    ColorJitter,
    Lambda,
    Op,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomPhotometricDistort,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    TimmRandAugment,
    TrivialAugmentWide,
)
from feeder.transforms.augment import AUGMENTATIONS, ENHANCEMENTS, TIMM_AUGMENTATIONS
from feeder.transforms.op import Uniforms
from tests.golden import torchvision_cases
from tests.support.recipes import ALL_OPS, SIZES, draw


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


# What timm 1.0's level functions give for the strengths 0, 2.7, 8.6 and 10, the sign a plus: of each kind by
# default, and with inc1 where that differs.
TIMM_LEVELS = (0.0, 2.7, 8.6, 10.0)
TIMM_VALUES: dict[str, tuple[tuple[float, ...], ...]] = {
    "Rotate": ((0, 8.1, 25.8, 30),),
    "Posterize": ((0, 1, 3, 4), (4, 3, 1, 0)),
    "Solarize": ((0, 69, 220, 256), (256, 187, 36, 0)),
    "SolarizeAdd": ((0, 29, 94, 110),),
    "Color": ((0.1, 0.586, 1.648, 1.9), (1, 1.243, 1.774, 1.9)),
    "Contrast": ((0.1, 0.586, 1.648, 1.9), (1, 1.243, 1.774, 1.9)),
    "Brightness": ((0.1, 0.586, 1.648, 1.9), (1, 1.243, 1.774, 1.9)),
    "Sharpness": ((0.1, 0.586, 1.648, 1.9), (1, 1.243, 1.774, 1.9)),
    "ShearX": ((0, 0.081, 0.258, 0.3),),
    "ShearY": ((0, 0.081, 0.258, 0.3),),
    "TranslateX": ((0, 0.1215, 0.387, 0.45),),
    "TranslateY": ((0, 0.1215, 0.387, 0.45),),
}


@pytest.mark.parametrize("kind", TIMM_AUGMENTATIONS[1:])
def test_strengths_of_timms_augmentations_are_its_own(kind: str) -> None:
    number = TIMM_AUGMENTATIONS.index(kind)
    size = np.array([[9, 9]])
    expected = TIMM_VALUES.get(kind, ((0.0,) * 4,))
    for increasing in (0, 1):
        op = TimmRandAugment(f"rand-m10-n1-mstd101-inc{increasing}")
        for level, value in zip(TIMM_LEVELS, expected[increasing % len(expected)], strict=True):
            given = (number - 0.5) / 15, 0.5, level / 10, 0.0
            params, _ = op.draw(Given(*given, 0.4), size)
            assert params["kind"].tolist() == [[number]]
            np.testing.assert_allclose(params["value"], [[value]], rtol=1e-12, atol=1e-12)
            params, _ = op.draw(Given(*given, 0.6), size)
            signed = kind[:5] in ("Rotat", "Shear", "Trans")
            turned = max(0.1, 2 - value) if kind in ENHANCEMENTS and increasing else -value if signed else value
            np.testing.assert_allclose(params["value"], [[turned]], rtol=1e-12, atol=1e-12)


def test_timms_augmentations_are_drawn_as_often_as_in_timm() -> None:
    count = 6000
    ops: list[Op] = [TimmRandAugment("rand-m9-mstd0.5-inc1"), TimmRandAugment("rand-m20-n3-p0.8-mmax15")]
    usual, strong = draw(ops, sizes=np.full((count, 2), 9), ids=np.arange(count)).ops
    for params, p in ((usual, 0.5), (strong, 0.8)):
        assert abs((params["kind"] > 0).mean() - p) < 0.02
        kinds = np.bincount(params["kind"].ravel(), minlength=16)[1:]
        np.testing.assert_allclose(kinds / kinds.sum(), 1 / 15, atol=0.01)
    turns = usual["value"][usual["kind"] == TIMM_AUGMENTATIONS.index("Rotate")]
    assert abs((turns < 0).mean() - 0.5) < 0.08
    assert abs(np.abs(turns).mean() - 27) < 0.2
    assert abs(np.abs(turns).std() - 1.5) < 0.3  # a little less, as no strength is above 10
    assert np.abs(turns).max() == 30
    assert np.abs(strong["value"][strong["kind"] == TIMM_AUGMENTATIONS.index("Rotate")]).min() == 45


def test_interpolations_are_drawn_and_change_no_other_draw() -> None:
    count = 4000
    for fixed, drawn in (
        (RandomResizedCrop(9), RandomResizedCrop(9, interpolation="random")),
        (TimmRandAugment(), TimmRandAugment(interpolation="random")),
    ):
        params, others = (
            draw([op], sizes=np.full((count, 2), 99), ids=np.arange(count)).ops[0] for op in (drawn, fixed)
        )
        assert abs(params["bicubic"].mean() - 0.5) < 0.04
        for name in params.keys() - {"bicubic"}:
            np.testing.assert_array_equal(params[name], others[name])


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


def test_distortions_and_orders_are_drawn_as_often_as_in_torchvision() -> None:
    count = 4000
    ops: list[Op] = [
        RandomPhotometricDistort(p=0.3),
        RandomOrder([RandomInvert(0.4), ColorJitter(0.1), RandomInvert()]),
    ]
    distort, order = draw(ops, sizes=np.full((count, 2), 9), ids=np.arange(count)).ops
    assert abs(distort["change"].mean(axis=0) - 0.3).max() < 0.03
    assert abs((distort["order"] == [0, 1, 2, 3]).all(axis=1).mean() - 0.5) < 0.03
    assert (distort["order"][:, 0] == 0).all()
    assert (np.sort(distort["order"], axis=1) == [0, 1, 2, 3]).all()
    exchanged = (distort["permutation"] != [0, 1, 2]).any(axis=1)
    assert abs(exchanged.mean() - 0.3 * 5 / 6) < 0.03  # one of six permutations leaves all in place
    for name, low, high in (("brightness", 0.875, 1.125), ("contrast", 0.5, 1.5), ("hue", -0.05, 0.05)):
        assert low <= distort[name].min() < low + 0.01 * (high - low), name
        assert high - 0.01 * (high - low) < distort[name].max() < high, name
    both = np.concatenate([distort["change"], exchanged[:, None], distort["hue"][:, None]], axis=1)
    assert abs(np.corrcoef(both.T) - np.eye(6)).max() < 0.06
    for one, times in zip(*np.unique(order["order"], axis=0, return_counts=True), strict=True):
        assert abs(times / count - 1 / 6) < 0.03, one
    assert abs(order["0.change"].mean() - 0.4) < 0.03


def subclasses(of: type[Op]) -> list[type[Op]]:
    return [each for direct in of.__subclasses__() for each in (direct, *subclasses(direct))]


SIZELESS = [
    op
    for op in (*ALL_OPS, transforms.CornerCrop(9, "top left"), transforms.Grayscale(3), JPEG((20, 90)), Lambda(abs))
    if not op.draws_from_size
]


def test_each_op_with_a_draw_of_its_own_is_drawn_for_two_sizes_or_says_that_it_depends_on_the_size() -> None:
    """A pair of images of different sizes would silently get different draws from one that is neither."""
    own = [op for op in subclasses(Op) if op.__module__.startswith("feeder.") and {"draw", "resized"} & {*vars(op)}]
    assert {"RandomCrop", "RandomRotation", "RandomApply", "ProbabilityOp"} <= {op.__name__ for op in own}
    rest = {op.__name__ for op in own if not op.draws_from_size} - {type(op).__name__ for op in SIZELESS}
    # A letterbox draws nothing at random; RandomResize draws one length for all sizes, and the other side follows.
    assert rest == {"LetterBox", "ProbabilityOp", "RandomResize", "ResizeOp"}


@pytest.mark.parametrize("op", SIZELESS, ids=str)
def test_draws_that_do_not_depend_on_the_size_are_the_same_for_all_sizes(op: Op) -> None:
    """Sizes and places of windows that are no draws aside."""
    uniforms = Uniforms(3, 1, np.arange(200), 7)
    small, large = (op.draw(uniforms, np.broadcast_to(size, (200, 2))).params for size in ([90, 120], [200, 160]))
    sizes = {"top", "left", "height", "width", "resized_height", "resized_width"}
    assert small.keys() == large.keys()
    for name in small.keys() - sizes:
        np.testing.assert_array_equal(small[name], large[name])
    for name in small.keys() & sizes:  # no sample differs from another
        assert len(np.unique(small[name])) == 1
