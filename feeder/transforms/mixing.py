"""The ops that mix the samples of an assembled batch, keyed by (seed, epoch, step)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.order.random import Stream, uniform
from feeder.system.checks import check_int, check_positive
from feeder.transforms.augmix import dirichlet, log_gammas
from feeder.transforms.op import Uniforms

if TYPE_CHECKING:
    from torch import Tensor

_PLACE = 2  # uniform numbers for the place of a rectangle

# (labels, partners' labels, weight of the first): loss = lam * f(x, a) + (1 - lam) * f(x, b).
MixedLabels = tuple["Tensor", "Tensor", float]


class Mixing(NamedTuple):
    """A batch's mixing of each sample with the one before it.

    Attributes:
        lam: Weight of a pixel's own value inside the box, 0 to 1.
        box: (top, left, bottom, right), pixels; None is the whole image.
        label_weight: Weight of a sample's own label, 0 to 1.
    """

    lam: float
    box: tuple[int, int, int, int] | None
    label_weight: float

    def apply(self, images: Tensor) -> Tensor:
        """Returns the mixed images, of the same shape, dtype and memory format; ``images`` is unchanged.

        Args:
            images: [N, C, H, W], uint8 or float, on any device.
        """
        import torch

        if self.box is None:
            floats = images if images.is_floating_point() else images.float()
            mixed = torch.empty_like(floats)  # roll would give another memory format on a GPU
            mixed[1:], mixed[:1] = floats[:-1], floats[-1:]
            mixed.mul_(1.0 - self.lam).add_(floats, alpha=self.lam)
            return mixed if images.is_floating_point() else mixed.round_().to(images.dtype)
        top, left, bottom, right = self.box
        mixed = images.clone()
        mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
        return mixed


@dataclass(frozen=True, kw_only=True)
class BatchOp(ABC):
    """An op on an assembled batch.

    As in torchvision, each sample is mixed with the one before it in the batch, so the batch must be shuffled.

    Args:
        alpha: Parameter of the Beta(alpha, alpha) distribution that the mixing weight is drawn from; positive.
        num_classes: Number of classes, for labels with a weight for each class, as loss functions take them. None for
            the labels of both images and the first one's weight.

    Raises:
        ArgumentError: if ``alpha`` or ``num_classes`` is not positive.
    """

    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", float(self.alpha))  # numpy's floats become Python's: states are JSON
        check_positive("alpha", self.alpha)
        object.__setattr__(self, "num_classes", check_int("num_classes", self.num_classes, 1, or_none=True))

    def __call__(
        self, images: Tensor, labels: Tensor, *, seed: int, epoch: int, step: int
    ) -> tuple[Tensor, MixedLabels | Tensor]:
        """Mixes a batch; ``images`` and ``labels`` are unchanged.

        Args:
            images: [N, C, H, W], uint8 or float, on any device.
            labels: [N, ...]; with ``num_classes`` int64 [N], each 0 to ``num_classes`` - 1.
            seed: 0 to 2**64-1.
            epoch: 0 to 2**32-1.
            step: Number of the batch in the epoch.

        Returns:
            The mixed images, of the same shape and dtype, and their labels, see :meth:`mixed_labels`.

        Raises:
            ArgumentError: if the shapes don't fit, or a label on the CPU is out of range.
        """
        if images.ndim != 4 or len(images) != len(labels):
            raise ArgumentError(
                f"expected images [N, C, H, W] and N labels, got {list(images.shape)} and {list(labels.shape)}"
            )
        if self.num_classes is not None:
            if labels.ndim != 1:
                raise ArgumentError(f"with num_classes labels must be class numbers [N], got {list(labels.shape)}")
            if labels.device.type == "cpu":
                self.check_labels(labels.numpy())
        drawn = self.draw(seed, epoch, step, images.shape[2], images.shape[3])
        return drawn.apply(images), self.mixed_labels(labels, drawn.label_weight)

    def check_labels(self, labels: npt.NDArray[np.integer[Any]]) -> None:
        """Refuses class numbers out of range for ``num_classes``, before they reach a GPU, which would not say which.

        Args:
            labels: integers [N].

        Raises:
            ArgumentError: naming the first.
        """
        if self.num_classes is None:
            return
        wrong = labels[(labels < 0) | (labels >= self.num_classes)]
        if len(wrong):
            raise ArgumentError(
                f"{type(self).__name__} with num_classes={self.num_classes} takes labels from 0 to "
                f"{self.num_classes - 1}, got {wrong[0]}"
            )

    def mixed_labels(self, labels: Tensor, weight: float) -> MixedLabels | Tensor:
        """Returns the labels of mixed images.

        Args:
            labels: [N, ...], on any device; with ``num_classes`` int64 [N].
            weight: Weight of a sample's own label, 0 to 1.

        Returns:
            With ``num_classes`` float32 [N, num_classes], each row with ``weight`` at the image's own class and the
            rest at its partner's. Else (labels, partners' labels, weight).
        """
        if self.num_classes is None:
            return labels, labels.roll(1, 0), weight
        import torch

        own = torch.zeros((len(labels), self.num_classes), device=labels.device)
        own.scatter_(1, labels[:, None], 1.0)
        return own.roll(1, 0).mul_(1.0 - weight).add_(own, alpha=weight)

    @abstractmethod
    def draw(self, seed: int, epoch: int, step: int, height_px: int, width_px: int) -> Mixing:
        """Draws a batch's mixing: a pure function of its arguments."""


class MixUp(BatchOp):
    """Blends pairs of samples (Zhang et al., "mixup: Beyond empirical risk minimization", 2018)."""

    def draw(self, seed: int, epoch: int, step: int, height_px: int, width_px: int) -> Mixing:
        """See :meth:`BatchOp.draw`."""
        lam = beta(self.alpha, Uniforms(seed, epoch, np.array([step]), Stream.MIXUP))
        return Mixing(lam, None, lam)


class CutMix(BatchOp):
    """Replaces a rectangle by the one of another sample (Yun et al., "CutMix", 2019)."""

    def draw(self, seed: int, epoch: int, step: int, height_px: int, width_px: int) -> Mixing:
        """See :meth:`BatchOp.draw`."""
        uniforms = Uniforms(seed, epoch, np.array([step]), Stream.CUTMIX)
        lam = beta(self.alpha, uniforms)
        u_x, u_y = uniforms(_PLACE)[0].tolist()
        left, top, right, bottom = _box(lam, int(u_x * width_px), int(u_y * height_px), width_px, height_px)
        share = (right - left) * (bottom - top) / (width_px * height_px)
        return Mixing(0.0, (top, left, bottom, right), 1.0 - share)


def check_mix(mix: object) -> tuple[BatchOp, ...]:
    """Returns the ops of a loader's ``mix``: one, or several in a sequence; none for None.

    Raises:
        ArgumentError: for anything else, or several whose labels would differ in form.
    """
    ops = () if mix is None else tuple(mix) if isinstance(mix, (list, tuple)) else (mix,)
    if (mix is not None and not ops) or not all(isinstance(op, BatchOp) for op in ops):
        raise ArgumentError(f"mix must be a feeder.transforms.MixUp or CutMix, or several in a list, got {mix!r}")
    if len({op.num_classes for op in ops}) > 1:
        raise ArgumentError(f"the ops of mix must have the same num_classes, got {mix!r}")
    return ops


def pick(ops: Sequence[BatchOp], seed: int, epoch: int, step: int) -> BatchOp:
    """Picks one of several ops for a batch, all equally likely: a pure function of its arguments."""
    if len(ops) == 1:
        return ops[0]
    return ops[int(uniform(seed, epoch, [step], Stream.PICK, 1)[0, 0] * len(ops))]


def _box(lam: float, center_x: int, center_y: int, width: int, height: int) -> tuple[int, int, int, int]:
    """Returns (left, top, right, bottom) of about 1 - lam of the image's area, cut at its edges."""
    ratio = 0.5 * math.sqrt(1.0 - lam)
    half_width, half_height = int(ratio * width), int(ratio * height)
    return (
        max(center_x - half_width, 0),
        max(center_y - half_height, 0),
        min(center_x + half_width, width),
        min(center_y + half_height, height),
    )


def beta(alpha: float, uniforms: Uniforms) -> float:
    """Draws a Beta(alpha, alpha) variate for a step from its uniform numbers, behind those of the rectangle's place."""
    return float(dirichlet(log_gammas(uniforms, _PLACE, 1, 2, alpha))[0, 0])
