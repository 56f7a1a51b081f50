"""The collate function that a loader shows, and the errors of a loader of torch's that takes it in its place.

Note [Loaders made of another's attributes]
    Accelerate's ``prepare()``, Ray's ``prepare_data_loader()`` and others make a loader of torch's from the attributes
    of the given one. They read those that torch's loader has, so feeder's options are lost without a word. All of them
    take the collate function, whose first call in torch's loader is the first that a feeder loader hears of it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from torch.utils.data._utils.fetch import _BaseDatasetFetcher

from feeder.errors import ArgumentError
from feeder.system.warning import warn

_WAY_OUT = (
    "Leave the loader as it is, without Ray's prepare_data_loader(), Accelerate's prepare() and their like: it splits "
    "epochs by rank itself, and device= has its batches copied"
)


class ShownCollate:
    """A loader's collate function, which another feeder loader takes as it was given, and torch's loader may not call.

    Args:
        given: The loader's collate function.
        lost: Names of the loader's options that torch's loader lacks; none: a call in torch's loader warns.
    """

    def __init__(self, given: Callable[[Any], Any], lost: Sequence[str] = ()) -> None:
        self.given = given
        self.lost = lost
        self._has_warned = False

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # timm asks for the kind of its own function, and switches it off in later epochs
        return ShownCollate if inspect.isroutine(self.given) else type(self.given)

    def __reduce__(self) -> Any:  # by default the kind that it shows would be made anew
        return ShownCollate, (self.given, self.lost)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.given, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("given", "lost", "_has_warned"):
            vars(self)[name] = value
        else:
            setattr(self.given, name, value)

    def __call__(self, samples: Any) -> Any:
        """Returns the batch of some samples.

        Raises:
            ArgumentError: in a loader of torch's, naming the options that it lacks.
        """
        if not self._has_warned and _in_torchs_loader():
            made = "torch's loader was made from the attributes of a feeder loader"
            if self.lost:
                raise ArgumentError(f"{made}, {without(self.lost)}. {_WAY_OUT}")
            self._has_warned = True
            warn(f"{made}, without its order, speed, augmentation by seed and exact resume. {_WAY_OUT}")
        return self.given(samples)


def given_collate(collate_fn: Any) -> Any:
    """Returns a collate function as the caller gave it, also if a loader showed it."""
    return collate_fn.given if isinstance(collate_fn, ShownCollate) else collate_fn


def without(lost: Sequence[str]) -> str:
    """Returns words for the options that a loader of torch's lacks, which is made from a feeder loader's attributes."""
    words = f"without {', '.join(f'{name}=' for name in lost)}"
    return f"{words}, and would bring back what skip= leaves out" if "skip" in lost else words


def _in_torchs_loader() -> bool:
    """Returns True if torch's fetcher is among the callers; others call a collate function by hand."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not isinstance(frame.f_locals.get("self"), _BaseDatasetFetcher):
        frame = frame.f_back
    return frame is not None
