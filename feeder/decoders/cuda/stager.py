"""The worker's side of the CUDA backend: the host plans what the kernels need of each image. Needs no torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from feeder.decoders.decoder import Buffer
from feeder.decoders.staged.staged import ROW, Kind, Staged
from feeder.decoders.staged.stager import Stager
from feeder.errors import DecodeError
from feeder.transforms import Draws, Recipe

__all__ = ["PlanStager"]


class PlanStager(Stager):
    """Makes staged batches of plans, see ``_native.plan_images``: restart segments or packed lines, and tables.

    Images that can't be planned, outliers in size, and boxes of so few pixels that the CPU backend decodes them exactly
    are decoded here.
    """

    plans = True

    @property
    def takes_rows(self) -> bool:
        """True: a plan needs only the rows of the crop."""
        return True

    def stage_views(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        recipes: Sequence[Recipe],
        draws: Sequence[Draws],
        first_rows: npt.NDArray[np.int32] | None = None,
    ) -> tuple[Staged, list[DecodeError | None]]:
        """Plans N images, each view apart; see :meth:`Stager.stage_views`."""
        views = []
        errors: list[DecodeError | None] = [None] * len(buffers)
        clipped = slow = 0
        for recipe, drawn in zip(recipes, draws, strict=True):
            staged, found = self._plan(buffers, orientations, recipe, drawn, first_rows)
            views.append(staged)
            errors = [earlier or error for earlier, error in zip(errors, found, strict=True)]
            clipped, slow = max(clipped, self.clipped), max(slow, self.slow)
        self.clipped, self.slow = clipped, slow
        rows = np.stack([view.rows for view in views], axis=1).reshape(-1)
        payloads = [payload for each in zip(*(view.payloads for view in views), strict=True) for payload in each]
        return Staged(rows, payloads, len(views)), errors

    def _plan(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        recipe: Recipe,
        draws: Draws,
        first_rows: npt.NDArray[np.int32] | None = None,
    ) -> tuple[Staged, list[DecodeError | None]]:
        """Plans one view of N images."""
        from feeder import _native

        self.clipped = self.slow = 0
        rows = np.zeros(len(buffers), ROW)
        rows["kind"] = Kind.PLAN
        rows["size"] = draws.base_size
        plans, places = _native.plan_images(
            buffers,
            np.ascontiguousarray(draws.source_box, np.float64),
            np.ascontiguousarray(draws.support_box, np.int32),
            np.ascontiguousarray(draws.flip, np.uint8),
            np.ascontiguousarray(orientations, np.uint8),
            np.ascontiguousarray(draws.image_size, np.int32),
            np.ascontiguousarray(draws.base_size, np.int32),
            max_pixels=min(self.max_pixels, self.outlier_pixels),
            first_rows=first_rows,
        )
        memory = plans.data
        errors: list[DecodeError | None] = [None] * len(buffers)
        bounds = places.tolist()
        payloads: list[Buffer] = [memory[a:b] for a, b in itertools.pairwise(bounds)]
        too_large = draws.base_size.prod(axis=1) > self.max_pixels
        for row in np.flatnonzero((np.diff(places) == 0) | too_large).tolist():
            try:
                (payloads[row],) = self._pixels(row, buffers, orientations, [recipe], [draws], first_rows)
                rows["kind"][row] = Kind.PIXELS
            except DecodeError as error:
                payloads[row], errors[row] = b"", error
                rows["kind"][row] = Kind.FAILED
        return Staged(rows, payloads), errors
