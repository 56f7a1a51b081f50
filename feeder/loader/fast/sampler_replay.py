"""An explicit sampler's epoch on the fast path: its batches, its state, and its replay when a run is resumed.

Note [Replay]
    A sampler is an iterator: to go on in the middle of an epoch, the epoch is begun again and what was handed out is
    passed over. So a state has the random states that the epoch began with, of every generator that is an attribute of
    the sampler, and of those global ones that it drew from for its first batch; these are lent to it for the first
    batch again. A digest of the ids says whether the replay gave the same. A sampler with a ``state_dict()`` keeps its
    place itself, as under torchdata's loader.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from feeder.errors import ArgumentError
from feeder.loader.random_state import RandomSource, get_state, global_sources, set_state
from feeder.loader.slots.image_slots import Samples
from feeder.loader.stateful import is_stateful
from feeder.system.arrays import Int64s
from feeder.system.checks import sample_numbers
from feeder.system.text import count

_DIGEST_BYTES = 8
_NOTHING = bytes(_DIGEST_BYTES)
_WRAPPED = ("sampler", "batch_sampler")


class _Mark(NamedTuple):
    """A place between two batches of the epoch.

    Attributes:
        digest: Of the ids of all batches before.
        samples: Number of samples in these.
        own: The sampler's own state there, None if it gives none; until the replay is over, its state at the beginning.
    """

    digest: bytes = _NOTHING
    samples: int = 0
    own: Any = None


class Replay:
    """The batches of an epoch of a batch sampler, from a place on.

    Args:
        sampler: The batch sampler.
        samples: Number of samples in the dataset.
        rank: This rank.
        start: Batches of the epoch that were handed out before.
        saved: What :meth:`state` gave then; None: nothing is known, and nothing is checked.

    Attributes:
        drawn: Names of the global generators that the first batch was drawn from.
    """

    def __init__(self, sampler: Any, samples: int, rank: int, start: int, saved: Mapping[str, Any] | None) -> None:
        self._sampler = sampler
        self._samples = samples
        self._rank = rank
        self._start = start
        self._saved = saved
        self._samplers = dict(_samplers(sampler))
        self._stateful = next((s for s in self._samplers.values() if is_stateful(s)), None)
        self._has_started = False  # True once the batches that were handed out before are passed over
        self._generators: dict[str, Any] = {}
        self._global: dict[str, Any] = {}
        self._handed_out = _Mark()  # the place behind the last batch that was handed out
        self._drawn_ahead: collections.deque[_Mark] = collections.deque()  # those behind the batches drawn since

    def __len__(self) -> int:
        """Batches of the whole epoch."""
        return len(self._sampler)

    @property
    def name(self) -> str:
        """The class of the innermost sampler."""
        return type([*self._samplers.values()][-1]).__name__

    @property
    def drawn(self) -> list[str]:
        return sorted(self._global)

    def batches(self) -> Iterator[Samples]:
        """Yields the samples of each batch.

        Raises:
            ArgumentError: if a batch is empty, or the sampler gives other samples than when the state was saved.
            IndexError: if a sample is out of range.
            TypeError: if a sample is no integer.
        """
        saved, size = self._saved, self._samples
        times = np.zeros(size, np.int64)  # how often each sample came
        number, mark = 0, _Mark()

        if saved is not None:
            self._restore(saved)
            if self._stateful is not None and saved.get("own") is not None:
                self._stateful.load_state_dict(saved["own"])
                number, mark = self._start, _Mark(bytes.fromhex(saved["digest"]), saved["samples"])

        mark = mark._replace(own=self._own_state())
        self._handed_out = mark
        self._generators = {path: get_state(source) for path, source in self._sources().items()}

        for batch in self._begin({} if saved is None else saved["global"]):
            ids = sample_numbers(batch)
            if not ids.size:
                raise ArgumentError(f"the batch sampler's batch {number} is empty; leave such batches out")
            if ids.min() < -size or ids.max() >= size:
                raise IndexError(f"the sampler gave samples {ids.min()} to {ids.max()}; the dataset has {size}")

            if number == self._start:
                self._check_start(mark.digest)
            ids = ids % size
            repeats = _repeats(ids, times)
            drawn = (ids + repeats * size).tobytes()
            digest = hashlib.blake2b(mark.digest + drawn, digest_size=_DIGEST_BYTES).digest()
            positions = mark.samples + np.arange(len(ids), dtype=np.int64)
            mark = mark._replace(digest=digest, samples=mark.samples + len(ids))

            number += 1
            if number > self._start:
                self._drawn_ahead.append(mark._replace(own=self._own_state()))
                yield Samples(positions, ids, repeats)
                continue

            # A batch that was handed out before the state was saved.
            self._handed_out = mark
            if saved is not None and saved["rank"] == self._rank and mark.samples > saved["samples"]:
                self._refuse(
                    f"{count(number, 'batch', 'batches')} from the beginning on make more than the "
                    f"{count(saved['samples'], 'sample')} handed out"
                )

        if number < self._start:
            given = count(number, "batch", "batches")
            self._refuse(f"the sampler gave {given}, and {self._start} were handed out before")
        if number == self._start:
            self._check_start(mark.digest)

    def handed_out(self) -> None:
        """Counts the next batch as handed out."""
        self._handed_out = self._drawn_ahead.popleft()

    def state(self) -> dict[str, Any]:
        """Returns the sampler's part of a state, to be saved beside the number of batches handed out.

        Returns:
            ``rank``; ``digest`` (hexadecimal) of the ``samples`` handed out; ``generators`` and ``global``: the random
            states at the epoch's beginning, by attribute and by package; ``own``: the sampler's state.
        """
        if not self._has_started and self._saved is not None:
            return dict(self._saved)
        generators, own = self._generators, self._handed_out.own
        if not self._has_started:
            generators = {path: get_state(source) for path, source in self._sources().items()}
            own = self._own_state()
        return {
            "rank": self._rank,
            "digest": self._handed_out.digest.hex(),
            "samples": self._handed_out.samples,
            "generators": generators,
            "global": self._global,
            "own": own,
        }

    def _own_state(self) -> Any:
        """Returns the sampler's state; None if it gives none: it is replayed then, and the digest tells."""
        with contextlib.suppress(Exception):
            return None if self._stateful is None else self._stateful.state_dict()
        return None

    def _sources(self) -> dict[str, RandomSource]:
        """Returns the generators that are attributes of the sampler, or of one that it wraps."""
        return {
            f"{path}{name}": value
            for path, sampler in self._samplers.items()
            for name, value in getattr(sampler, "__dict__", {}).items()
            if isinstance(value, RandomSource) and not isinstance(value, random.SystemRandom)
        }

    def _restore(self, saved: Mapping[str, Any]) -> None:
        """Gives the sampler's generators the states that the epoch began with."""
        if saved["rank"] != self._rank and (saved["generators"] or saved["global"]):
            self._refuse(f"it has the random state of rank {saved['rank']}, and this is rank {self._rank}")
        sources = self._sources()
        for path, state in saved["generators"].items():
            if path not in sources:
                self._refuse(f"its sampler had a random generator as {path!r}, and this one has none")
            self._set_state(sources[path], state, path)

    def _begin(self, states: Mapping[str, Any]) -> Iterator[Any]:
        """Yields what the sampler gives, its first batch drawn from these states of the global generators."""
        sources = global_sources()
        with self._lent(states):
            before = {name: get_state(source) for name, source in sources.items()}
            iterator = iter(self._sampler)
            first = next(iterator, None)
            if first is None and self._stateful is not None and self._start == 0:
                iterator = iter(self._sampler)  # its state was that of an epoch's end
                first = next(iterator, None)
            self._global = {name: state for name, state in before.items() if state != get_state(sources[name])}
        while first is not None:  # not by a for loop: for some samplers iter() of their iterator begins anew
            yield first
            first = next(iterator, None)

    def _set_state(self, source: RandomSource, state: Any, name: str) -> None:
        try:
            set_state(source, state)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            self._refuse(f"the state of the random generator {name!r} is another kind's, or damaged ({error})")

    @contextlib.contextmanager
    def _lent(self, states: Mapping[str, Any]) -> Iterator[None]:
        """Gives the global generators other states; at the end they get back those that they had."""
        sources = {name: source for name, source in global_sources().items() if name in states}
        kept = {name: get_state(source) for name, source in sources.items()}
        try:
            for name, source in sources.items():
                self._set_state(source, states[name], name)
            yield
        finally:
            for name, source in sources.items():
                set_state(source, kept[name])

    def _check_start(self, digest: bytes) -> None:
        """Compares the batches that were passed over, whose digest is given, with those that the state says."""
        saved = self._saved
        if saved is not None and saved["rank"] == self._rank and saved["digest"] != digest.hex():
            handed_out = count(self._start, "batch", "batches")
            self._refuse(f"of the {handed_out} handed out, the sampler gives other samples now")
        self._has_started = True

    def _refuse(self, reason: str) -> None:
        raise ArgumentError(
            f"this state does not fit the sampler, {self.name}: {reason}. Resume with its batch size, seed, epoch and, "
            "on each rank, its generator's state; or begin the epoch anew: loader.set_epoch(epoch), no load_state_dict"
        )


def check_replay_state(state: Any) -> None:
    """Raises ArgumentError unless it is what :meth:`Replay.state` gave."""
    kinds = {"rank": int, "digest": str, "samples": int, "generators": Mapping, "global": Mapping}
    if not isinstance(state, Mapping) or not all(isinstance(state.get(name), kind) for name, kind in kinds.items()):
        raise ArgumentError(f"this state is damaged: expected a sampler's state with {', '.join(kinds)}, got {state!r}")


def _samplers(sampler: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields a sampler and those that it wraps, each after its path of attributes."""
    seen: set[int] = set()
    while id(sampler) not in seen:
        seen.add(id(sampler))
        yield path, sampler
        for name in _WRAPPED:
            inner = getattr(sampler, "__dict__", {}).get(name)
            if inner is not None and not isinstance(inner, str):
                break
        else:
            return
        sampler, path = inner, f"{path}{name}."


def _repeats(ids: Int64s, times: Int64s) -> Int64s:
    """Returns for each of a batch's ids how often it came before, int64 [N].

    Args:
        ids: int64 [N].
        times: int64 [samples], how often each sample came before the batch; counted on.
    """
    order = np.argsort(ids, kind="stable")
    ordered, again = ids[order], np.zeros(len(ids), np.int64)
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    again[order] = np.arange(len(ids)) - np.repeat(starts, np.diff(starts, append=len(ids)))
    repeats: Int64s = times[ids] + again
    np.add.at(times, ids, 1)
    return repeats
