"""The page of a comparison: the differences by recipe, and the images that differ most."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from starlette.responses import Response

from feeder.system.arrays import Uint8s
from feeder.tools.browse.pictures import png
from feeder.tools.browse.set_pages import Renderer
from feeder.tools.parity.comparison import Compared, ParityReport
from feeder.tools.parity.differences import FIGURES, Differences

SHOWN = 8  # images
_TIMES = 16
_DIFFERENCE = f"difference x {_TIMES} (grey = equal)"
_STYLE = Path(__file__).parents[1] / "browse/static/browse.css"


class Shown(NamedTuple):
    """The view of an image that differs most, with the root of its mean squared difference, in levels of 0-255."""

    distance: float
    name: str
    recipe: str
    reference: Uint8s
    ours: Uint8s

    def pictures(self) -> dict[str, str]:
        """Returns both and their difference as data URLs of PNGs, by name."""
        difference = _TIMES * (self.ours.astype(np.int16) - self.reference) + 128
        named = {"reference": self.reference, "ours": self.ours, _DIFFERENCE: difference.clip(0, 255).astype(np.uint8)}
        return {
            name: f"data:image/png;base64,{base64.b64encode(png(pixels.transpose(1, 2, 0))).decode()}"
            for name, pixels in named.items()
        }


class ParityPage:
    """Collects what the page shows, in memory for a few images."""

    def __init__(self) -> None:
        self._recipes: dict[str, Differences] = {}
        self._worst: list[Shown] = []

    def add(self, name: str, views: Sequence[Compared]) -> None:
        """Takes the views of an image, of which the one that differs most may be shown."""
        found = []
        # Each view has a recipe, its draws and the pixels of one image, first the reference's and then ours.
        for (recipe, _, (reference,)), (_, _, (ours,)), ratio in views:
            ops = ", ".join(type(op).__name__ for op in recipe.ops)
            words = f"{reference.shape[1]} x {reference.shape[2]}: {ops}"
            self._recipes.setdefault(words, Differences()).add(reference, ours, ratio)
            distance = float(np.sqrt(np.square(ours.astype(np.float32) - reference).mean()))
            found.append(Shown(distance, name, words, reference, ours))
        worst = max(found, key=lambda each: each.distance)
        self._worst = sorted([*self._worst, worst], key=lambda each: -each.distance)[:SHOWN]

    def html(self, path: str, report: ParityReport) -> str:
        """Returns the page, which needs no further file.

        Args:
            path: The set.
            report: The result of the comparison.
        """
        groups = {"All recipes": [(each.cells, each.within(report.bounds)) for each in report.buckets]}
        for words, differences in self._recipes.items():
            groups[words] = [(each.cells, True) for each in differences.figures() if each.images]
        page: Response = Renderer(path=path, style=_STYLE.read_text()).page(
            "parity.html",
            report=report,
            figures=FIGURES,
            groups=groups,
            worst=[each for each in self._worst if each.distance],
        )
        return bytes(page.body).decode()
