"""The identity of an order: the values that states of one run, and its ranks, have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from feeder.errors import ArgumentError
from feeder.order.lanes import Lanes
from feeder.order.mixture_order import MixtureOrder
from feeder.order.sample_order import Order, Shuffle, Window


def order_identity(order: Order, fingerprint: str) -> dict[str, Any]:
    """Returns the values that states and ranks of one order have in common, as JSON takes them."""
    shuffle: Any = order.shuffle
    if isinstance(shuffle, Window):
        shuffle = shuffle.samples
    elif isinstance(shuffle, Lanes):
        shuffle = {"lanes": shuffle.count, "window": shuffle.window, "block": shuffle.block}
    mixture = {"mixture": order.shares.identity()} if isinstance(order, MixtureOrder) else {}
    return {
        **mixture,
        "seed": order.seed,
        "shuffle": shuffle,
        "samples": order.samples,
        "fingerprint": fingerprint,
    }


def resumed_order(
    order: Order, given: Shuffle, state: Mapping[str, Any], make: Callable[[Shuffle], Order | None] | None
) -> Order:
    """Returns the order of the run that a state is of: in lanes, with the block of the run's first loader.

    Args:
        order: The loader's order.
        given: The way to shuffle; lanes with a block of their own are not changed.
        state: The state, which :func:`check_identity` checks afterwards.
        make: Returns the loader's order by another way to shuffle, None if it can't have that; if the caller left it to
            feeder by ``shuffle=True``, which stands for lanes or for a full shuffle. None: not left to feeder.
    """
    saved = state.get("shuffle")
    if make is not None:
        shuffle = saved_shuffle(saved)
        if shuffle == order.shuffle or not (shuffle is True or isinstance(shuffle, Lanes)):
            return order
        return make(shuffle) or order
    block = saved.get("block") if isinstance(saved, Mapping) else None
    if not isinstance(given, Lanes) or given.block is not None or type(block) is not int or block < 1:
        return order
    return order.with_shuffle(dataclasses.replace(given, block=block))


def saved_shuffle(saved: Any) -> Shuffle | None:
    """Returns the way to shuffle that :func:`order_identity` has written; None for anything else."""
    if isinstance(saved, bool):
        return saved
    try:
        if isinstance(saved, int):
            return Window(saved)
        if isinstance(saved, Mapping) and type(saved.get("block")) is int:
            return Lanes(saved.get("lanes"), saved.get("window"), saved["block"])  # type: ignore[arg-type]
    except ArgumentError:
        pass
    return None


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raises ArgumentError if a state is of another order than this loader's.

    Sets on the Hub, as ``hub``, are named where the samples differ; equal samples may lie anywhere.
    """
    saved, own = map(set_version, (state, identity))
    if saved != own:
        raise ArgumentError(
            f"this state is of version {saved} of the set, this loader's is version {own}; open the set with "
            f"ShardDataset(path, version={saved})"
        )
    if state.get("fingerprint") != identity["fingerprint"]:
        _check_places(state.get("hub"), identity.get("hub"))
    _check_sources(state.get("mixture"), identity.get("mixture"))
    for name, value in identity.items():
        if name != "hub" and state.get(name) != value:
            raise ArgumentError(
                f"this state does not fit: its {name} is {state.get(name)!r}, this loader's is {value!r}; resume "
                "with the dataset and arguments that it was saved with"
            )


def _check_places(saved: Any, own: Any) -> None:
    """Names the first set on the Hub that is not at the state's commit."""
    if isinstance(saved, Mapping) and isinstance(own, Mapping):  # a mixture's sets, by name
        for name in own:
            _check_places(saved.get(name), own[name])
    elif isinstance(saved, list) and isinstance(own, list):
        for had, has in zip(saved, own, strict=False):
            if had != has:
                raise ArgumentError(f"this state was made at {had}, and the dataset is at {has}: open {had}")


def _check_sources(saved: Any, own: Any) -> None:
    """Refuses the state of a mixture for other sources, naming one, or for no mixture, and the reverse."""
    if (saved is None) != (own is None):
        had, has = ("a Mixture" if each is not None else "no Mixture" for each in (saved, own))
        raise ArgumentError(
            f"this state is of {had}, and this loader's dataset is {has}: resume with the state's dataset"
        )
    before = saved.get("sources") if isinstance(saved, Mapping) else None
    if own is None or not isinstance(before, Mapping):
        return
    if saved.get("batch") != own.get("batch"):
        had, has = (f"batches of {each['batch']}" if each.get("batch") else "mixed batches" for each in (saved, own))
        raise ArgumentError(
            f"this state is of a Mixture in {had}, and this loader has {has}, of all ranks: with batching='per_source' "
            "batch_size times world_size must stay, or begin an epoch with loader.set_epoch(epoch)"
        )

    now, none = own["sources"], (0, 0)
    # Sources of other sizes come first: they may change the shares of all.
    for name in sorted({*before, *now}, key=lambda name: (before.get(name, none)[0] == now.get(name, none)[0], name)):
        there, here = before.get(name), now.get(name)
        if there == here:
            continue
        if there is None or here is None:
            what = f"{name!r} was {'added' if there is None else 'removed'}, so the Mixture differs"
        else:
            first, then = (f"has {size:,} samples of it with a share of {share:.6g}" for size, share in (there, here))
            what = f"{name!r} of the Mixture differs: the state {first}, this loader {then}"
        raise ArgumentError(
            f"source {what}; resume with the state's sources, or begin an epoch with loader.set_epoch(epoch)"
        )


def set_version(values: Mapping[str, Any]) -> int:
    """Returns the version of the set that a state or an :func:`order_identity` is of; 1 where it names none."""
    fingerprint = values.get("fingerprint")
    version = fingerprint.partition(".")[2] if isinstance(fingerprint, str) else ""
    return int(version) if version.isdecimal() else 1
