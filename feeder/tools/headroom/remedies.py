"""Changes of a loader that would make a training loop faster, with predicted rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from feeder.dataset.subset import as_feeder
from feeder.decoders.decoder import View
from feeder.decoders.device.fused import split_for_device
from feeder.system.text import count
from feeder.tools.headroom.fit import Fit
from feeder.tools.thresholds import NOTICEABLE_GAIN, NOTICEABLE_WAIT

if TYPE_CHECKING:
    from feeder.loader.dataloader import DataLoader

__all__ = ["Remedy", "remedies"]

_SHARE_WORTH_A_TRY = 0.1
_MOST_WORKERS = 256
_SEEKABLE_IMAGES = 32


@dataclass(frozen=True)
class Remedy:
    """A change that would make the loop faster.

    Attributes:
        text: The change in words: "7 workers".
        rate: Predicted samples/s.
        closes: True if the step would then hardly wait.
        setting: The loader's argument and its value, if the change is one.
    """

    text: str
    rate: float
    closes: bool
    setting: tuple[str, int] | None = None


def remedies(loader: DataLoader[Any], fit: Fit) -> Iterator[Remedy]:
    """Yields the changes to try, each with its predicted rate.

    Args:
        loader: The loader.
        fit: The fitted model.
    """

    def remedy(text: str, rate: float, setting: tuple[str, int] | None = None) -> Remedy:
        return Remedy(text, rate, rate >= (1 - NOTICEABLE_WAIT) * fit.step_rate, setting)

    best = _workers_needed(fit)
    if best is not None:
        yield remedy(count(best, "worker"), fit.predict(workers=best), ("num_workers", best))
    factor = _seekable_gain(loader)
    if factor is not None:
        yield remedy("seekable shards", fit.predict(scale={"decode": factor}))
    total = sum(fit.costs_s.values())
    if fit.costs_s.get("read", 0.0) >= _SHARE_WORTH_A_TRY * total:
        yield remedy("faster storage", fit.predict(scale={"read": 0.0}))
    if fit.workers and fit.busy_share < 0.9:
        prefetch = 2 * (loader.prefetch_factor or 2)
        yield remedy(f"prefetch_factor={prefetch}", fit.steady_rate(), ("prefetch_factor", prefetch))


def _workers_needed(fit: Fit) -> int | None:
    """Returns the fewest workers with which the step hardly waits, or beyond which more workers gain nothing."""
    best, rate = None, fit.fed_rate
    for workers in range(fit.workers + 1, _MOST_WORKERS + 1):
        predicted = fit.predict(workers=workers)
        if predicted <= 1.01 * rate and best is not None:
            break
        if predicted > rate:
            best, rate = workers, predicted
        if rate >= (1 - NOTICEABLE_GAIN) * fit.ceiling:
            break
    return best


def _seekable_gain(loader: DataLoader[Any]) -> float | None:
    """Measures how seekable images would change the cost of decoding, on some of the dataset's images.

    Returns:
        The factor; None if the images are seekable, or if feeder's CPU kernels do not decode them.
    """
    dataset = as_feeder(loader.dataset)
    if dataset is None or loader.stats().get("backend") != "cpu":
        return None
    try:
        from feeder._native import Unsupported, transcode
        from feeder.decoders.native import CpuDecoder
    except ImportError:
        return None
    reader = dataset.reader
    ids = np.unique(np.linspace(0, len(reader) - 1, _SEEKABLE_IMAGES).astype(np.int64))
    encoded = reader.read(ids)
    kept, before, after = [], [], []
    for row, buffer in enumerate(encoded.buffers):
        if encoded.errors[row] is not None or bytes(buffer[:2]) != b"\xff\xd8":
            continue
        try:
            seekable = transcode(buffer, keep_metadata=True)
        except Unsupported:
            continue
        kept.append(row)
        before.append(bytes(buffer))
        after.append(seekable)
    if len(kept) < len(ids) / 2:
        return None
    rows = np.array(kept)
    views = []
    for number, recipe in enumerate(dataset.recipe.views):
        recipe = recipe if recipe.has_bucket else recipe.at(None, 0)
        size = recipe.output_size
        if size is None or recipe.draws_from_boxes:
            return None
        draws = recipe.draw(loader.seed or 0, 0, ids[rows] + number * len(reader), encoded.sizes[rows])
        if loader.device is not None and (split := split_for_device(recipe)) is not None:  # the device does the rest
            recipe, draws = split.cpu, split.draws(draws)
        views.append(View(recipe, draws, np.empty((len(kept), 3, *size), recipe.storage_dtype)))
    decoder = CpuDecoder(fidelity=loader.fidelity)
    times: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(3):
        for which, buffers in enumerate((before, after)):
            decoder.decode_views(buffers, encoded.orientations[rows], views)
            times[which].append(int(decoder.spent_ns[:, 0].sum()))
    factor = min(times[1]) / max(1, min(times[0]))
    return factor if factor < 1 - NOTICEABLE_WAIT else None
