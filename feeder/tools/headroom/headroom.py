"""headroom: how much faster a training loop could go, what holds it up, and what would change that."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from feeder.errors import ArgumentError
from feeder.loader.device.nested import map_tensors
from feeder.loader.generic.meters import batch_rows
from feeder.loader.trial import step_rate
from feeder.system.cores import cores
from feeder.system.processes import cpu_seconds_by_process
from feeder.text import count
from feeder.tools.headroom.fit import Fit
from feeder.tools.noticeable import NOTICEABLE_GAIN, NOTICEABLE_WAIT
from feeder.tools.training.training_state import Snapshot

if TYPE_CHECKING:
    from feeder.loader.dataloader import DataLoader

__all__ = ["Headroom", "Remedy", "headroom"]

_WORK = ("read", "draw", "cut", "decode", "transform", "fetch", "collate", "write")
_SHARE_WORTH_A_TRY = 0.1
_HAND_OUT_SHARE = 0.1  # of the step's time: less is not the loader's fault
_MOST_WORKERS = 256
_FIRST_BATCHES = 2  # of an epoch, which workers make while they start
_SEEKABLE_IMAGES = 32


@dataclass(frozen=True)
class Remedy:
    """Something that would make the loop faster.

    Attributes:
        text: What, in words: "7 workers".
        rate: Samples/s that it is predicted to give.
        closes: Whether the step would then hardly wait.
        setting: The loader's argument and its value, where it is one.
    """

    text: str
    rate: float
    closes: bool
    setting: tuple[str, int] | None = None


@dataclass(frozen=True)
class Headroom:
    """What :func:`headroom` found; as text, a sentence or two.

    Attributes:
        fit: What was measured.
        input_bound_share: By how much the step is slower for its input, 0-1.
        limit: The stage that holds the loop up: of :meth:`feeder.DataLoader.stats`, "step", "prefetch" (workers are
            idle and the step waits), or "hand out" (what the loader does in the caller's process).
        remedies: Best first.
        path_reason: Why a loader of a feeder dataset goes without the fast path, and the way out; else None.
    """

    fit: Fit
    input_bound_share: float
    limit: str
    remedies: tuple[Remedy, ...] = ()
    path_reason: str | None = None

    def __str__(self) -> str:
        if self.path_reason is None:
            return self._verdict()
        return f"{self._verdict()}. The loader runs torch's path, not feeder's fast one: {self.path_reason}"

    def _verdict(self) -> str:
        fit = self.fit
        if self.limit == "step":
            return (
                f"the step takes {fit.fed_rate:,.0f} images/s of {fit.step_rate:,.0f} that it could: it is the limit; "
                f"the loader alone gives {fit.loader_rate:,.0f}"
            )
        where = {
            "prefetch": "too few batches are made ahead",
            "hand out": "what the loader does in the training process is the limit",
        }.get(self.limit, f"{self.limit} {_on(fit.workers)} is the limit")
        text = (
            f"the step could take {fit.step_rate:,.0f} images/s, gets {fit.fed_rate:,.0f}: input-bound "
            f"{self.input_bound_share:.0%} of the time; {where}"
        )
        closing = [remedy.text for remedy in self.remedies if remedy.closes]
        partial = [remedy for remedy in self.remedies if not remedy.closes]
        if closing:
            return f"{text}; {' or '.join(closing)} would close it"
        if partial:
            parts = " or ".join(f"{remedy.text} ({remedy.rate:,.0f} images/s)" for remedy in partial)
            return f"{text}; {parts} would help, and nothing tried closes it"
        return text


def headroom(
    loader: DataLoader[Any],
    step: Callable[[Any], Any],
    *,
    seconds: float = 15.0,
    restore: Sequence[Any] = (),
) -> Headroom:
    """Measures how much faster a training step could go if it never waited for its input, and says what would help.

    The step runs first on one repeated batch, then on the loader's batches; between the two the loader runs alone.
    Random state, the loader's place and what ``restore`` names are put back.

    Args:
        loader: The loader; not in the middle of an epoch that is to go on. Its workers are ended.
        step: Trains on one batch, copies to the device and all.
        seconds: For all of it, about; startup comes on top.
        restore: Modules, and objects with state_dict and load_state_dict such as optimizers, that the step changes.

    Raises:
        ArgumentError: if the loader is none of feeder's or has no batch, or for what can't be restored.
    """
    if not hasattr(loader, "stage_words"):
        raise ArgumentError(f"loader must be a feeder.DataLoader, got {type(loader).__name__}")
    if not seconds > 0:
        raise ArgumentError(f"seconds must be more than 0, got {seconds}")
    device = "cuda" if torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]
    snapshot = Snapshot(restore, torch.device(device))
    place = loader.state_dict()
    view, loader.progress = loader.progress, False
    try:
        batch = map_tensors(next(_batches(loader)), torch.Tensor.clone)  # which holds no slot
        loader.close()
        alone = step_rate(step, batch, 0.25 * seconds)
        drained = _run(loader, None, 0.25 * seconds)
        fed = _run(loader, step, 0.5 * seconds)
        fit = _fit(loader, alone, drained, fed)
        return dataclasses.replace(_judged(loader, fit), path_reason=loader.stats()["path_reason"])
    finally:
        loader.close()
        loader.progress = view
        loader.load_state_dict(place)
        snapshot.put_back()


@dataclass
class _Run:
    """Sums over a run, the first batches of every epoch left out; seconds."""

    samples: int = 0
    made: float = 0.0
    elapsed_s: float = 0.0
    step_s: float = 0.0
    next_s: float = 0.0
    waited_s: float = 0.0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    stages_s: dict[str, float] = dataclasses.field(default_factory=dict)


def _run(loader: DataLoader[Any], step: Callable[[Any], Any] | None, seconds: float) -> _Run:
    run = _Run()
    began = time.perf_counter()
    while run.elapsed_s < seconds and (run.samples == 0 or time.perf_counter() - began < 4 * seconds):
        _epoch(loader, step, seconds - run.elapsed_s, run)
    loader.close()
    return run


def _epoch(loader: DataLoader[Any], step: Callable[[Any], Any] | None, seconds: float, run: _Run) -> None:
    clock = time.perf_counter
    batches = iter(loader)
    rows = 0
    skipped = min(_FIRST_BATCHES, len(loader) - 1) if hasattr(loader.dataset, "__len__") else _FIRST_BATCHES
    for number in range(skipped):
        batch = next(batches, None)
        if batch is None:
            if number == 0:
                raise ArgumentError("the loader has no batch: the dataset is empty, or smaller than one with drop_last")
            return
        if step is not None:
            step(batch)
    _synchronize()
    before, cpu = loader.stats(), cpu_seconds_by_process()
    started = clock()
    next_s = step_s = 0.0
    while True:
        asked = clock()
        batch = next(batches, None)
        given = clock()
        next_s += given - asked
        if batch is None:
            break
        rows += batch_rows(batch)
        if step is not None:
            step(batch)
        step_s += clock() - given
        if clock() - started >= seconds:
            break
    _synchronize()
    run.elapsed_s += clock() - started
    after, cpu_after = loader.stats(), cpu_seconds_by_process()
    del batch
    _add(run, before, after, rows)
    run.next_s += next_s
    run.step_s += step_s
    run.cpu_s += sum(cpu_after[pid] - cpu[pid] for pid in cpu_after.keys() & cpu.keys())


def _add(run: _Run, before: dict[str, Any], after: dict[str, Any], rows: int) -> None:
    def change(stage: str, key: str) -> int:
        none = {key: 0}
        return int(after["stages"].get(stage, none)[key]) - int(before["stages"].get(stage, none)[key])

    run.samples += rows
    run.waited_s += (after["waited_ns"] - before["waited_ns"]) / 1e9
    run.busy_s += (after["busy_ns"] - before["busy_ns"]) / 1e9
    handed = after["batches"] - before["batches"]
    if change("transform", "count"):
        run.made += change("transform", "count")
    elif change("fetch", "count") and handed:
        run.made += change("fetch", "count") * (after["samples"] - before["samples"]) / handed
    else:
        run.made += rows
    for stage in _WORK:
        run.stages_s[stage] = run.stages_s.get(stage, 0.0) + change(stage, "total_ns") / 1e9


def _fit(loader: DataLoader[Any], alone: float, drained: _Run, fed: _Run) -> Fit:
    workers, samples, made = loader.num_workers, max(1, fed.samples), max(1.0, fed.made)
    in_trainer = loader._fast is not None and loader._fast.decoder is not None
    costs = {
        name: spent / made
        for name, spent in fed.stages_s.items()
        if spent > 0 and not (in_trainer and name == "decode")  # of the caller's time, and not of the workers'
    }
    # Threads of one worker work at a time: a stage's time is theirs together, the worker's is less.
    known, busy = sum(costs.values()), fed.busy_s / made
    if known > busy > 0:
        costs = {name: cost * busy / known for name, cost in costs.items()}
    elif busy > known:
        costs["other"] = busy - known
    busy_share = fed.busy_s / max(1e-9, fed.elapsed_s * max(1, workers))
    own = fed.next_s - (fed.waited_s if workers else fed.busy_s)
    return Fit(
        step_rate=alone,
        fed_rate=fed.samples / max(1e-9, fed.elapsed_s),
        loader_rate=drained.samples / max(1e-9, drained.elapsed_s),
        workers=workers,
        costs_s=costs,
        step_s=fed.step_s / samples,
        hand_out_s=max(0.0, own) / samples,
        waited_share=min(1.0, (fed.waited_s if workers else fed.busy_s) / max(1e-9, fed.elapsed_s)),
        busy_share=min(1.0, busy_share),
        cpu_s=fed.cpu_s / samples,
        cores=cores().usable,
    )


def _judged(loader: DataLoader[Any], fit: Fit) -> Headroom:
    bound = max(0.0, 1 - fit.fed_rate / fit.step_rate)
    if fit.waited_share < NOTICEABLE_WAIT or bound < NOTICEABLE_WAIT:
        is_handing_out = bound >= NOTICEABLE_WAIT and fit.hand_out_s > _HAND_OUT_SHARE * fit.step_s
        return Headroom(fit, bound, "hand out" if is_handing_out else "step")
    slowest = max(fit.costs_s, key=lambda name: fit.costs_s[name], default="other")
    idle = fit.workers > 0 and fit.busy_share < 0.5
    remedies = sorted(_remedies(loader, fit), key=lambda remedy: -remedy.rate)
    worth = tuple(remedy for remedy in remedies if remedy.rate > (1 + NOTICEABLE_WAIT) * fit.fed_rate)
    return Headroom(fit, bound, "prefetch" if idle else slowest, worth)


def _remedies(loader: DataLoader[Any], fit: Fit) -> Iterator[Remedy]:
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
    """The fewest workers more with which the step hardly waits, else those after which more give nothing."""
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
    """What the cost of decoding would be multiplied with if the images were seekable, measured on some of them; None
    if they are, or it is not this process's kernels that decode."""
    path = loader._fast
    if path is None or path.backend != "cpu" or path.decoder is not None:
        return None
    try:
        from feeder._native import Unsupported, transcode
        from feeder.decode.native import CpuDecoder
    except ImportError:
        return None
    work = path.work
    ids = np.unique(np.linspace(0, len(work.reader) - 1, _SEEKABLE_IMAGES).astype(np.int64))
    encoded = work.reader.read(ids)
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
    size = work.recipe.output_size
    if size is None:
        return None
    recipe, draws = work.recipe, work.recipe.draw(work.seed, 0, ids[rows], encoded.sizes[rows])
    if work.split is not None:  # the device does the rest
        recipe, draws = work.split.cpu, work.split.draws(draws)
    out = np.empty((len(kept), 3, *size), np.uint8 if work.split is not None else recipe.storage_dtype)
    decoder = CpuDecoder(fidelity=work.fidelity)
    times: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(3):
        for which, buffers in enumerate((before, after)):
            decoder.decode(buffers, encoded.orientations[rows], recipe, draws, out)
            times[which].append(int(decoder.spent_ns[:, 0].sum()))
    factor = min(times[1]) / max(1, min(times[0]))
    return factor if factor < 1 - NOTICEABLE_WAIT else None


def _batches(loader: DataLoader[Any]) -> Iterator[Any]:
    for batch in loader:
        yield batch
        return
    raise ArgumentError("the loader has no batch: the dataset is empty, or smaller than one with drop_last")


def _on(workers: int) -> str:
    if not workers:
        return "in the training process (num_workers=0)"
    return f"on {count(workers, 'worker')}"


def _synchronize() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
