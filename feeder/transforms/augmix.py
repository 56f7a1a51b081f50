"""AugMix: chains of augmentations, mixed with each other and with the image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feeder.errors import ArgumentError
from feeder.system.arrays import Float32s
from feeder.system.checks import check_int, check_positive
from feeder.transforms.arguments import check_fill, check_warp_interpolation
from feeder.transforms.augment import AUGMENTATIONS, strengths
from feeder.transforms.op import Drawn, FloatArray, IntArray, Op, Uniforms

_BINS = 10
_MOST_DEPTH = 3  # ops of a chain of random depth
# torchvision's order; with all_ops=False the first nine.
_KINDS = np.array(
    [AUGMENTATIONS.index(kind) for kind in (*AUGMENTATIONS[1:6], *AUGMENTATIONS[10:14], *AUGMENTATIONS[6:10])]
)
_PARTIAL = 9
_GAMMA_NUMBERS = 4  # uniform numbers of one attempt at a variate


@dataclass(frozen=True, init=False)
class AugMix(Op):
    """Mixes an image with chains of random augmentations of it (Hendrycks et al., 2019).

    Args:
        severity: Number of strengths to draw from, the weakest of ten, 1 to 10.
        mixture_width: Number of chains.
        chain_depth: Augmentations in a chain; 0 or less draws 1 to 3 for each chain.
        alpha: Parameter of the weights' Dirichlet and Beta distributions, positive.
        all_ops: True to have brightness, color, contrast and sharpness among the augmentations.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        fill: One number or (R, G, B), 0-255, for pixels from outside the image; None for black.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True

    severity: int
    mixture_width: int
    chain_depth: int
    alpha: float
    all_ops: bool
    interpolation: str
    fill: tuple[int, int, int]

    def __init__(
        self,
        severity: int = 3,
        mixture_width: int = 3,
        chain_depth: int = -1,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: object = "bilinear",
        fill: object = None,
    ) -> None:
        severity = check_int("severity", severity, 1, _BINS)
        mixture_width = check_int("mixture_width", mixture_width, 1)
        if not isinstance(chain_depth, int):
            raise ArgumentError(f"chain_depth must be an integer, got {chain_depth}")
        check_positive("alpha", alpha)
        self._set(
            severity=severity,
            mixture_width=mixture_width,
            chain_depth=chain_depth,
            alpha=float(alpha),
            all_ops=bool(all_ops),
            interpolation=check_warp_interpolation(interpolation),
            fill=check_fill(fill),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        """Draws the chains and their weights.

        ``kind`` and ``magnitude``, [N, mixture_width, depth], are augmentations as RandAugment draws them; ``weights``,
        float32 [N, 1 + mixture_width], are those of the image and of each chain.
        """
        width = self.mixture_width
        depth = self.chain_depth if self.chain_depth > 0 else _MOST_DEPTH
        steps = width * depth
        uniform = uniforms(width + 3 * steps)
        depths = np.floor(uniform[:, :width] * _MOST_DEPTH).astype(np.int64) + 1
        choice, level, sign = np.split(uniform[:, width:], 3, axis=1)
        count = len(_KINDS) if self.all_ops else _PARTIAL
        kind = _KINDS[np.floor(choice * count).astype(np.int64)]
        if self.chain_depth <= 0:  # shorter chains end with augmentations that do nothing
            kind = np.where(np.tile(np.arange(depth), width) < np.repeat(depths, depth, axis=1), kind, 0)
        bins = np.floor(level * self.severity).astype(np.int64)
        most = sizes.astype(np.float64) / 3.0
        shape = (len(sizes), width, depth)
        params = {
            "kind": kind.reshape(shape),
            "magnitude": strengths(kind, bins, _BINS, sign, most, most_bits=4).reshape(shape),
            "weights": self._weights(uniforms, uniform.shape[1], len(sizes)),
        }
        return Drawn(params, sizes)

    def _weights(self, uniforms: Uniforms, first: int, samples: int) -> Float32s:
        """Draws float32 [samples, 1 + mixture_width] from the uniform numbers from ``first`` on."""
        logs = log_gammas(uniforms, first, samples, 2 + self.mixture_width, self.alpha)
        share = dirichlet(logs[:, :2]).astype(np.float32)
        chains = dirichlet(logs[:, 2:]).astype(np.float32)
        return np.concatenate([share[:, :1], chains * share[:, 1:]], axis=1)


def dirichlet(logs: FloatArray) -> FloatArray:
    """Divides Gamma variates, given by their logarithms, by their sum."""
    parts = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares: FloatArray = parts / parts.sum(axis=1, keepdims=True)
    return shares


def log_gammas(uniforms: Uniforms, first: int, samples: int, variates: int, alpha: float) -> FloatArray:
    """Draws logarithms of Gamma(alpha) variates, float64 [samples, variates], as those of a small alpha underflow.

    From the uniform numbers from ``first`` on, by Marsaglia and Tsang, "A simple method for generating gamma variables"
    (2000): candidates until one is accepted.
    """
    shape = alpha + 1.0  # the method needs at least 1; the term after the acceptance removes the 1
    d = shape - 1.0 / 3.0
    logs = np.full((samples, variates), np.nan)
    rows = np.arange(samples)
    while len(rows):
        end = first + _GAMMA_NUMBERS * variates
        u = uniforms(end, rows)[:, first:].reshape(len(rows), variates, _GAMMA_NUMBERS)
        first = end
        normal = np.sqrt(-2.0 * np.log1p(-u[..., 0])) * np.cos(2.0 * np.pi * u[..., 1])
        v = (1.0 + normal / np.sqrt(9.0 * d)) ** 3
        log_v = np.log(np.where(v > 0.0, v, 1.0))
        accepted = (v > 0.0) & (np.log1p(-u[..., 2]) < 0.5 * normal**2 + d - d * v + d * log_v)
        found = np.log(d) + log_v + np.log1p(-u[..., 3]) / alpha
        logs[rows] = np.where(np.isnan(logs[rows]) & accepted, found, logs[rows])
        rows = rows[np.isnan(logs[rows]).any(axis=1)]
    return logs
