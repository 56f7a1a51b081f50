"""The worker's side of the CUDA backend: the host plans what the kernels need of each image. Needs no torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from feeder.decoders.decoder import Buffer, DecodeResult
from feeder.decoders.staged.staged import ROW, RowKind, Staged
from feeder.decoders.staged.stager import Stager
from feeder.system.arrays import Int32s, Uint8s
from feeder.transforms import Draws, Recipe


class PlanStager(Stager):
    """Makes staged batches of plans, see ``_native.plan_images``: restart segments or packed lines, and tables.

    Images that can't be planned, outliers in size, and boxes of so few pixels that the CPU backend decodes them exactly
    are decoded here.
    """

    plans = True

    def stage(
        self,
        buffers: Sequence[Buffer],
        orientations: Uint8s,
        recipes: Sequence[Recipe],
        draws: Sequence[Draws],
        first_rows: Int32s | None = None,
    ) -> tuple[Staged, DecodeResult]:
        """Plans N images; see :meth:`Stager.stage`. Of views that lie close together the first one's plan has the
        segments or lines of all of them."""
        from feeder import _native

        count, sizes = len(recipes), np.stack([drawn.base_size for drawn in draws], axis=1)
        rows = np.zeros((len(buffers), count), ROW)
        rows["kind"], rows["size"] = RowKind.PLAN, sizes
        plans, places, rows["back"] = _native.plan_images(
            buffers,
            np.stack([drawn.source_box for drawn in draws], axis=1, dtype=np.float64),
            np.stack([drawn.support_box for drawn in draws], axis=1, dtype=np.int32),
            np.stack([drawn.flip for drawn in draws], axis=1, dtype=np.uint8, casting="unsafe"),
            np.ascontiguousarray(orientations, np.uint8),
            np.ascontiguousarray(draws[0].image_size, np.int32),
            sizes.astype(np.int32),
            max_pixels=min(self.max_pixels, self.outlier_pixels),
            first_rows=first_rows,
        )
        memory, bounds = plans.data, places.tolist()
        payloads: list[Buffer] = [memory[a:b] for a, b in itertools.pairwise(bounds)]
        results = [DecodeResult([None])] * len(buffers)
        too_large = (sizes.prod(axis=2) > self.max_pixels).any(axis=1)
        left = (np.diff(places) == 0).reshape(rows.shape) | too_large[:, None]
        for row in np.flatnonzero(left.any(axis=1)).tolist():
            here = np.flatnonzero(left[row]).tolist()
            some = [recipes[view] for view in here], [draws[view] for view in here]
            pixels, results[row] = self._pixels(row, buffers, orientations, *some, first_rows)
            rows["kind"][row, here] = RowKind.PIXELS
            if results[row].errors[0]:
                here, pixels = list(range(count)), [b""] * count
                rows["kind"][row] = RowKind.FAILED
                rows["back"][row] = 0
            for view, payload in zip(here, pixels, strict=True):
                payloads[count * row + view] = payload
        return Staged(rows.reshape(-1), payloads, count), DecodeResult.join(results)
