"""Changes of a loader that would make a training loop faster, with predicted rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feeder.dataset.subset import as_feeder
from feeder.system.text import count
from feeder.tools.encoding_gain import EncodingGain, encoding_gains
from feeder.tools.headroom.fit import Fit
from feeder.tools.thresholds import NOTICEABLE_GAIN, NOTICEABLE_WAIT

if TYPE_CHECKING:
    from feeder.loader.dataloader import DataLoader

__all__ = ["Remedy", "remedies"]

_SHARE_WORTH_A_TRY = 0.1
_MOST_WORKERS = 256


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
    for gain in _encoding_gains(loader):
        bytes_too = f" ({gain.size:.2f} times the bytes)" if gain.encoding == "packed" else ""
        yield remedy(f"{gain.encoding} shards{bytes_too}", fit.predict(scale={"decode": gain.decode}))
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


def _encoding_gains(loader: DataLoader[Any]) -> list[EncodingGain]:
    dataset = as_feeder(loader.dataset)
    if dataset is None or loader.stats().get("backend") != "cpu":
        return []
    return encoding_gains(dataset, seed=loader.seed or 0, fidelity=loader.fidelity, on_device=loader.device is not None)
