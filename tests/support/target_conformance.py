"""The check that a backend's images and the targets of the same draws show the same places."""

from __future__ import annotations

import io

from feeder import transforms as T
from feeder.decoders.decoder import Decoder
from tests.support.chart_parity import TARGET_RECIPES, Chart, compare_targets

__all__ = ["check_targets_on"]

_PLAIN_CROP = (T.RandomCrop((90, 100)), T.RandomHorizontalFlip())


def check_targets_on(decoder: Decoder, extension: str) -> None:
    """Holds images in all orientations against masks, boxes and keypoints of the same draws.

    Args:
        decoder: The backend; recipes that it refuses are left out.
        extension: Format of the images, "jpeg" or "png".
    """
    charts = [Chart(120, 160, orientation) for orientation in range(1, 9)]
    encode = Chart.jpeg if extension == "jpeg" else _png
    figures = compare_targets(decoder, charts, (_PLAIN_CROP, *TARGET_RECIPES), seed=3, encode=encode)
    assert figures.passed, figures
    assert set(figures.refused) <= {"RandomCrop", "RandomZoomOut"}, figures  # by DALI
    assert figures.images == (1 + len(TARGET_RECIPES) - len(figures.refused)) * len(charts), figures


def _png(chart: Chart) -> bytes:
    file = io.BytesIO()
    chart.image().save(file, "PNG")
    return file.getvalue()
