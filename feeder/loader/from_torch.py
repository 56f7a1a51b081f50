"""Torch's datasets and loaders as feeder's, in one call."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.utils.data
from torch.utils.data import ConcatDataset, Dataset, RandomSampler, SequentialSampler, Subset

from feeder.dataset.base import FeederDataset
from feeder.dataset.converted import ConvertedDataset, conversion_of, converted
from feeder.dataset.foreign import check_foreign, image_columns, refuse_overridden
from feeder.decoders.programs import has_programs
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.options import DEFAULT_PREFETCH
from feeder.transforms import Recipe, Views
from feeder.transforms.torchvision_recipes import Conversion, OpReport, convert, recipe_of

_BY_PILLOW = "Pillow runs it in this place, and with it all ops that follow the first crops and resizes"
_NATIVE_PLACES = "see docs/transforms.md for what the kernels run"
_SAME = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)

_SPEED = (
    "All of it is native. Of ImageNet's photos such recipes gave at least 4.7 times torchvision's images a second on "
    "one core, 7.2 times from seekable shards and 10.9 times from packed ones."
)


def from_torch(obj: Any, *, strict: bool = False, transform: Any = None) -> Any:
    """Returns a dataset of another library as feeder's, or torch's loader as feeder's with the same arguments.

    Images are read, decoded and augmented natively; samples, labels, classes and transforms are the object's own. It
    takes torchvision's ``ImageFolder``, ``DatasetFolder`` with torchvision's image loader, and what derives from them,
    such as ``ImageNet``; ``Flowers102`` and other classes of image files; ``CIFAR10`` and ``CIFAR100``;
    ``CocoDetection``, ``VOCDetection`` and ``VOCSegmentation``, also wrapped for v2's transforms; Hugging Face datasets
    with an ``Image`` column; and ``Subset``, ``ConcatDataset`` and ``random_split`` of these. timm's ``PrefetchLoader``
    stays what it is, around feeder's loader.

    The result is a torch Dataset with their length, samples, labels and order; its images differ from theirs by the
    draws alone. EXIF orientation is theirs: ignored by torchvision. Samples are those of the moment of conversion.
    Attributes that feeder's datasets lack are read from theirs. A ``transform`` that is set, on either object, holds
    from the next sample on, and from the next epoch of a loader. Ops without a counterpart run in Python, with all that
    follow them, and a line of the log names them.

    Args:
        obj: The dataset or loader. One that is feeder's already is returned as it is.
        strict: True to refuse a transform of which a part would run in Python.
        transform: A transform in place of the dataset's, torchvision's or feeder's.

    Raises:
        TypeError: if samples would have to be guessed: ``__getitem__``, ``__len__`` or the loader of images is the
            user's own, or the kind of dataset is not taken. ``return feeder.Encoded(path), label`` is then the way.
        ArgumentError: for an op that torchvision itself refuses in its place; with ``strict``, for one that would run
            in Python, with a line for each op.
    """
    if isinstance(obj, torch.utils.data.DataLoader):
        return _converted_loader(obj, transform, strict)
    if (inner := _prefetched(obj)) is not None:
        if transform is not None and getattr(recipe_of(transform), "output_dtype", "uint8") != "uint8":
            raise ArgumentError(
                "timm's PrefetchLoader normalizes and erases on the device: leave ToDtype, Normalize and RandomErasing "
                "out of the transform, or make the loader with use_prefetcher=False"
            )
        ours = copy.copy(obj)
        ours.loader = _converted_loader(inner, transform, strict)
        return ours
    return converted(obj, transform, strict=strict)


def _prefetched(obj: Any) -> Any:
    """Returns the loader in timm's ``PrefetchLoader``; None for any other object."""
    is_timms = (type(obj).__module__, type(obj).__name__) == ("timm.data.loader", "PrefetchLoader")
    return obj.loader if is_timms else None


def _converted_loader(loader: Any, transform: Any, strict: bool) -> Any:
    dataset = converted(loader.dataset, transform, strict=strict)
    if isinstance(loader, DataLoader):
        return loader if dataset is loader.dataset else type(loader)(**(loader.options() | {"dataset": dataset}))
    for method in ("__iter__", "_get_iterator", "__len__"):
        if getattr(type(loader), method) is not getattr(torch.utils.data.DataLoader, method):
            name = type(loader).__name__
            way_out = "give feeder.from_torch its dataset, and the result to feeder.DataLoader"
            if name == "MultiEpochsDataLoader":
                way_out = "leave use_multi_epochs_loader out; persistent_workers keeps workers between epochs too"
            raise TypeError(f"{name} has a {method} of its own, which feeder does not guess: {way_out}")
    return DataLoader(dataset, **options_of(loader), **_order(loader))


def options_of(loader: Any) -> dict[str, Any]:
    """Returns the arguments of a loader of torch's for feeder's; its dataset, order and batches are left out."""
    options = {name: getattr(loader, name) for name in _SAME}
    function = loader.collate_fn
    own = torch.utils.data.default_convert if loader.batch_sampler is None else torch.utils.data.default_collate
    does_as_torchs = f"{function.__module__}.{getattr(function, '__name__', '')}" == "timm.data.loader.fast_collate"
    if not does_as_torchs and function is not own:
        options["collate_fn"] = function
    if loader.prefetch_factor != DEFAULT_PREFETCH:
        options["prefetch_factor"] = loader.prefetch_factor
    return options


def _order(loader: Any) -> dict[str, Any]:
    """Returns the arguments by which the order and the batches of a loader of torch's were chosen."""
    sampler, batches = loader.sampler, loader.batch_sampler
    if loader.batch_size is None and batches is not None:
        return {"batch_sampler": batches}

    own: dict[str, Any] = {"sampler": sampler}
    if type(sampler) is SequentialSampler:
        own = {}
    elif type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source):
        own = {"shuffle": True} if sampler.generator is loader.generator else own
    return own | {"batch_size": loader.batch_size, "drop_last": loader.drop_last}


@dataclass(frozen=True)
class Explanation:
    """The parts of an object, and the way in which each would run; ``print`` shows them in 80 columns.

    Attributes:
        lines: A line for each dataset, target transform and op, in order, with ``name``, ``how`` ("native", "python" or
            "refused"), ``reason`` and ``way_out``. "python" are Pillow's, too.
    """

    lines: tuple[OpReport, ...]

    @property
    def is_native(self) -> bool:
        """True if nothing runs in Python, and nothing is refused."""
        return all(line.how == "native" for line in self.lines)

    def __str__(self) -> str:
        width = max((len(line.name) for line in self.lines), default=0)
        found = []
        for line in self.lines:
            found.append(f"{line.name:{width}}  {line.how}")
            text = "; ".join(part for part in (line.reason, line.way_out) if part)
            found += textwrap.wrap(text, 80, initial_indent="    ", subsequent_indent="    ")
        if found and self.is_native:
            found += textwrap.wrap(_SPEED, 80)
        return "\n".join(found)


def explain(obj: Any) -> Explanation:
    """Says what :func:`from_torch` would make of an object, and converts nothing.

    Args:
        obj: A dataset, a loader, or a transform alone.
    """
    return Explanation(tuple(_lines(obj)))


def _op_lines(conversion: Conversion) -> list[OpReport]:
    """Returns the lines of a transform's ops, of which one says so where Pillow runs them in place of the kernels."""
    lines = list(conversion.lines)
    are_native = [has_programs(Recipe(ops)) for ops in conversion.steps]
    if are_native and not are_native[-1]:
        first = max((number for number, native in enumerate(are_native) if native), default=-1) + 1
        lines[first] = OpReport(lines[first].name, "python", _BY_PILLOW, _NATIVE_PLACES)
    return lines


def _lines(obj: Any) -> Iterator[OpReport]:
    name, theirs = type(obj).__name__, obj.theirs if isinstance(obj, ConvertedDataset) else obj
    if isinstance(obj, torch.utils.data.DataLoader) or _prefetched(obj) is not None:
        yield from _lines(obj.dataset)
    elif isinstance(theirs, FeederDataset):
        yield OpReport(name, "native")
    elif isinstance(obj, (list, torch.nn.Module)) or not (
        isinstance(theirs, Dataset) or hasattr(theirs, "__getitem__")
    ):
        yield from _op_lines(convert(obj))
    else:
        try:
            if isinstance(obj, Subset | ConcatDataset):
                refuse_overridden(obj, "torch")
                parts = obj.datasets if isinstance(obj, ConcatDataset) else [obj.dataset]
                yield from (line for part in parts for line in _lines(part))
                return
            check_foreign(theirs)
        except TypeError as refusal:
            yield OpReport(name, "refused", str(refusal))
            return

        yield OpReport(type(theirs).__name__, "native")
        given = obj.given if isinstance(obj, ConvertedDataset) else None
        is_ours = isinstance(getattr(obj, "transform", None), Recipe | Views)
        yield from [] if is_ours else _op_lines(conversion_of(theirs, given))
        for column in image_columns(theirs)[1:]:
            yield OpReport(column, "python", "Pillow decodes further image columns")
        form = getattr(theirs, "format", None)
        if isinstance(form, dict) and form["type"] == "custom":
            yield OpReport(
                "set_transform", "python", "it is a function of rows", "the image's ops run natively as transform="
            )
        if getattr(theirs, "target_transform", None) is not None:
            yield OpReport("target_transform", "python", "it is a function of targets")
