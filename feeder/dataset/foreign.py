"""The samples of other libraries' datasets: their files and targets, as the object has them. Imports none of them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from feeder.dataset.folder_reader import FolderReader
from feeder.decoders.image_header import PILLOW_FORMATS, ImageInfo, image_info
from feeder.decoders.raw import is_raw, raw_pixels
from feeder.errors import DecodeError
from feeder.shard.source.image_file import read_image
from feeder.system.arrays import Int64s, Uint8s


@dataclass(frozen=True)
class Loaded(Sequence[Any]):
    """Values that a function makes of others when they are read."""

    load: Callable[[Any], Any]
    keys: Any

    def __getitem__(self, i: Any) -> Any:
        return self.load(self.keys[i])

    def __len__(self) -> int:
        return len(self.keys)


Files = Loaded | Iterable[str | os.PathLike[str]]


class ForeignReader(FolderReader):
    """Reads images in a given order, each with a target of any kind.

    Args:
        root: The folder that most of the files are in.
        files: N paths, of files that may lie anywhere; or encoded images, or ``.npy`` files of pixels.
        targets: N values. Integers are labels; any others are the field "target", and labels are -1.
        classes: Class names by label; None if they are not known.
        exif: Whether to apply EXIF orientation.

    Attributes:
        kind: The dataset's class, if its methods make the targets.
        row_names: Names of a row's values, if samples are rows.
        image_column: The one of these that is the image.
        mode: Pillow's mode of the images in rows; None: that of each file.
        change_rows: Changes a dict of lists of these values; None: they stay as they are.
        both: Makes a sample of a Pillow image and a target; None: see :func:`both_transforms`.
    """

    kind: type | None = None
    row_names: tuple[str, ...] = ()
    image_column: str | None = None
    mode: str | None = None
    change_rows: Callable[[Any], Any] | None = None
    both: Callable[[Any, Any], Any] | None = None

    def __init__(
        self, root: str, files: Files, targets: Sequence[Any], classes: list[str] | None = None, *, exif: bool = False
    ) -> None:
        self._loaded = files if isinstance(files, Loaded) else None
        prefix = os.path.join(root, "")
        names = map(str, range(len(targets))) if isinstance(files, Loaded) else (_below(prefix, file) for file in files)
        paths = [os.fsencode(name) for name in names]
        starts = np.cumsum([0, *map(len, paths)], dtype=np.uint64)

        labels = _labels(targets)
        self.targets = targets if labels is None else None
        super().__init__(
            os.path.abspath(root),
            np.frombuffer(b"".join(paths), np.uint8),
            starts,
            np.full(len(paths), -1, np.int64) if labels is None else labels,
            exif=exif,
            classes=classes,
        )

    def field(self, i: int, name: str) -> Any:
        """See :meth:`Reader.field`; "target" is the target, and "file" the bytes of an image that is not RGB."""
        if name == "file":
            data = self._read_image(i)[0]
            return None if self.mode == "RGB" or pillow_image(data).mode == "RGB" else data
        if name != "target":
            return super().field(i, name)
        return int(self.labels()[i]) if self.targets is None else self.targets[i]

    def encoded(self, i: int) -> bytes:
        """Returns the file of an image, or the ``.npy`` file of its pixels.

        Raises:
            OSError: if it can't be read.
            ValueError: if it is too large.
        """
        return read_image(os.path.join(self.root, self.path(i))) if self._loaded is None else self._loaded[i]

    def _read_image(self, i: int) -> tuple[bytes, ImageInfo]:
        if self._loaded is None:
            return super()._read_image(i)
        data = self._loaded[i]
        if not is_raw(data):
            return data, image_info(data)
        height, width = raw_pixels(data).shape[:2]
        return data, ImageInfo("npy", width, height, 1)


def _below(prefix: str, file: str | os.PathLike[str]) -> str:
    """Returns a file's path relative to a folder, or its absolute one if it lies elsewhere."""
    path = os.fspath(file)
    return path[len(prefix) :] if path.startswith(prefix) else os.path.abspath(path)


def _labels(targets: Sequence[Any]) -> Int64s | None:
    """Returns the targets as labels, int64 [N]; None if they are no integers."""
    if not isinstance(targets, (list, np.ndarray)) or not all(type(each) in (int, np.int64) for each in targets):
        return None
    return np.array(targets, np.int64)


def _reader(dataset: Any, files: Files, targets: Sequence[Any], kind: type | None = None) -> ForeignReader:
    names = getattr(dataset, "classes", None)
    classes = list(names) if names and all(isinstance(name, str) for name in names) else None
    reader = ForeignReader(os.fspath(dataset.root), files, targets, classes)
    reader.kind = kind
    return reader


def _pairs(dataset: Any, name: str = "samples") -> ForeignReader:
    pairs = getattr(dataset, name)
    return _reader(dataset, [file for file, _ in pairs], [target for _, target in pairs])


def _files_and_labels(dataset: Any) -> ForeignReader:
    return _reader(dataset, dataset._image_files, dataset._labels)


def _cifar(dataset: Any) -> ForeignReader:
    return _reader(dataset, Loaded(_npy, dataset.data), dataset.targets)


def _npy(pixels: Uint8s) -> bytes:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(pixels))
    return file.getvalue()


def _coco(dataset: Any) -> ForeignReader:
    files = [os.path.join(dataset.root, each["file_name"]) for each in dataset.coco.loadImgs(dataset.ids)]
    return _reader(dataset, files, Loaded(dataset._load_target, dataset.ids), type(dataset))


def _voc_boxes(dataset: Any) -> ForeignReader:
    targets = Loaded(partial(_voc_target, dataset.parse_voc_xml), dataset.annotations)
    return _reader(dataset, dataset.images, targets, type(dataset))


def _voc_target(parse_voc_xml: Callable[[Any], Any], path: str) -> Any:
    from xml.etree.ElementTree import parse

    return parse_voc_xml(parse(path).getroot())


def _voc_masks(dataset: Any) -> ForeignReader:
    return _reader(dataset, dataset.images, Loaded(_opened, dataset.masks))


def _opened(path: str) -> Any:
    from PIL import Image

    return Image.open(path)


def pillow_image(data: bytes) -> Any:
    """Returns Pillow's image of a file, of which only the header is read yet.

    Raises:
        DecodeError: if it is none.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(data), formats=PILLOW_FORMATS)
    except UnidentifiedImageError as error:
        raise DecodeError(str(error)) from None


@dataclass(frozen=True)
class _Wrapped:
    """Makes the samples of a dataset that torchvision has wrapped for its v2 transforms.

    Args:
        dataset: What ``wrap_dataset_for_transforms_v2`` has returned.
    """

    dataset: Any

    def __call__(self, image: Any, numbered: tuple[int, Any]) -> Any:
        number, target = numbered
        sample = self.dataset._wrapper(number, (image, target))
        return sample if self.dataset.transforms is None else self.dataset.transforms(*sample)


def _numbered(targets: Any, number: int) -> tuple[int, Any]:
    return number, targets[number]


def _wrapped(dataset: Any) -> ForeignReader:
    inner = dataset._dataset
    reader = check_foreign(inner)(inner)
    reader.both = both_transforms(dataset)
    if reader.both is not None:
        reader.targets = Loaded(partial(_numbered, reader.targets), range(len(reader)))
    return reader


def has_plain_targets(dataset: Any) -> bool:
    """Returns True if a dataset's targets are made of numbers and text, which torchvision's ops leave alone."""
    return check_foreign(dataset) in (_coco, _voc_boxes)


def both_transforms(dataset: Any) -> Callable[[Any, Any], Any] | None:
    """Returns the function of image and target that a dataset has; None if it has none, or one of each."""
    both = getattr(dataset, "transforms", None)
    is_own = both is not None and getattr(both, "transform", both) is not getattr(dataset, "transform", None)
    if not is_own and not hasattr(dataset, "_wrapper"):
        return None

    maker = check_foreign(dataset)
    if maker is _wrapped:
        return _Wrapped(dataset) if check_foreign(dataset._dataset) in _WITH_BOTH else None
    return both if maker in _WITH_BOTH else None


def _check_timm(dataset: Any) -> None:
    is_usual = (dataset.load_bytes, dataset.input_img_mode, dataset.additional_features) == (False, "RGB", None)
    if type(dataset.reader).__name__ != "ReaderImageFolder" or not is_usual:
        raise _refusal(f"this {type(dataset).__name__} is none of RGB images in class folders")


def _timm(dataset: Any) -> ForeignReader:
    reader = dataset.reader
    return ForeignReader(os.fspath(reader.root), [file for file, _ in reader.samples], [k for _, k in reader.samples])


def image_columns(dataset: Any) -> list[str]:
    """Returns the columns of a Hugging Face dataset that hold images to decode; those of other datasets are none."""
    form = getattr(dataset, "format", None)
    features = {name: dataset.features[name] for name in form["columns"]} if isinstance(form, dict) else {}
    return [name for name, feature in features.items() if type(feature).__name__ == "Image" and feature.decode]


def _image_column(dataset: Any) -> str:
    for name in image_columns(dataset):
        if dataset.features[name].mode in (None, "RGB"):
            return name
    raise _refusal("this dataset has no Image column to decode, of the mode RGB or of its files' modes")


def _row_format(dataset: Any, image: str) -> tuple[dict[str, Any], Callable[[Any], Any] | None]:
    """Returns the format to read a row's other values in, and what the dataset makes of a dict of lists of all."""
    form, options = dataset.format["type"], dataset.format["format_kwargs"]
    if form in (None, "custom"):
        return {}, options.get("transform")
    formatter = sys.modules["datasets"].formatting.get_formatter(form, **options)
    if not hasattr(formatter, "recursive_tensorize"):  # of tables, whose rows are read as dicts
        return {}, None
    return {"type": form} | options, partial(_formatted, image, formatter)


def _formatted(image: str, formatter: Any, rows: dict[str, Any]) -> dict[str, Any]:
    return rows | formatter.recursive_tensorize({image: rows[image]}) if hasattr(rows[image][0], "getbands") else rows


def _huggingface(dataset: Any) -> ForeignReader:
    columns, name = tuple(dataset.format["columns"]), _image_column(dataset)
    form, change = _row_format(dataset, name)
    stored = dataclasses.replace(dataset.features[name], decode=False)
    images = dataset.with_format(None).select_columns(name).cast_column(name, stored)
    others = [each for each in columns if each != name]
    rest: Any = dataset.with_format(**form).select_columns(others)
    reader = ForeignReader(
        "", Loaded(partial(_cell, name), images), rest if others else Loaded(dict, [()] * len(images)), exif=True
    )

    reader.row_names = columns
    reader.image_column = name
    reader.mode = stored.mode
    reader.change_rows = change
    return reader


def _cell(name: str, row: Any) -> bytes:
    """Returns the file in an Image column's value."""
    value = row[name]
    return read_image(value["path"]) if value["bytes"] is None else value["bytes"]


_OWN_PAIRS = partial(_pairs, name="_samples")
# Readers by the class whose dataset[i] reads the samples.
_KINDS: dict[str, Callable[[Any], ForeignReader]] = {
    "torchvision.datasets.folder.DatasetFolder": _pairs,
    "torchvision.datasets.gtsrb.GTSRB": _OWN_PAIRS,
    "torchvision.datasets.imagenette.Imagenette": _OWN_PAIRS,
    "torchvision.datasets.rendered_sst2.RenderedSST2": _OWN_PAIRS,
    "torchvision.datasets.stanford_cars.StanfordCars": _OWN_PAIRS,
    "torchvision.datasets.clevr.CLEVRClassification": _files_and_labels,
    "torchvision.datasets.dtd.DTD": _files_and_labels,
    "torchvision.datasets.fgvc_aircraft.FGVCAircraft": _files_and_labels,
    "torchvision.datasets.flowers102.Flowers102": _files_and_labels,
    "torchvision.datasets.food101.Food101": _files_and_labels,
    "torchvision.datasets.sun397.SUN397": _files_and_labels,
    "torchvision.datasets.cifar.CIFAR10": _cifar,
    "torchvision.datasets.coco.CocoDetection": _coco,
    "torchvision.datasets.voc.VOCDetection": _voc_boxes,
    "torchvision.datasets.voc.VOCSegmentation": _voc_masks,
    "datasets.arrow_dataset.Dataset": _huggingface,
    "timm.data.dataset.ImageDataset": _timm,
    "torchvision.tv_tensors._dataset_wrapper.VisionDatasetTVTensorWrapper": _wrapped,
}
_DERIVED = {"CIFAR100", "CocoCaptions", "ImageFolder", "ImageNet"}
TORCHVISION_KINDS = _DERIVED | {kind.rpartition(".")[2] for kind in _KINDS if kind.startswith("torchvision.datasets.")}
_CHECKS: dict[Any, Callable[[Any], object]] = {
    _huggingface: _image_column,
    _timm: _check_timm,
    _wrapped: lambda dataset: check_foreign(dataset._dataset),
}
_WITH_BOTH = (_coco, _voc_boxes, _voc_masks)  # read ``transforms``, which torchvision makes of the two others
_LOADERS = ("torchvision.datasets.folder.default_loader", "torchvision.datasets.folder.pil_loader")


def read_foreign(dataset: Any) -> ForeignReader:
    """Returns a reader of the samples that a dataset has now.

    Raises:
        TypeError: see :func:`check_foreign`.
    """
    return check_foreign(dataset)(dataset)


def check_foreign(dataset: Any) -> Callable[[Any], ForeignReader]:
    """Returns the function that makes a reader of a dataset's samples.

    Raises:
        TypeError: for a dataset of a kind that is not taken, and for one that reads or counts samples in its own way.
    """
    kind, owner = type(dataset).__name__, _owner(dataset, "__getitem__")
    if isinstance(dataset, Mapping):
        first = next(iter(dataset), None)
        raise TypeError(f"{kind} holds several datasets: give feeder.from_torch one of them, such as {first!r}")
    if any(each.__name__ == "IterableDataset" for each in type(dataset).__mro__):
        raise TypeError(
            f"{kind} has no samples by number, as feeder.from_torch needs them: load it without streaming, or let it "
            "`yield feeder.Encoded(path), label` where it opened the image, and give it to feeder.DataLoader"
        )
    library = owner.partition(".")[0]
    if owner == "timm.data.dataset.AugMixDataset":
        raise TypeError(
            "AugMixDataset, of num_aug_splits, makes several images of each: leave it out, and make them by "
            "feeder.transforms.Views, which has a recipe for each"
        )
    if owner not in _KINDS:
        own = library not in ("datasets", "timm", "torchvision", "")
        raise _refusal(f"{kind} has a __getitem__ of its own" if own else f"{kind} is not taken yet")
    refuse_overridden(dataset, library)

    loader = getattr(dataset, "loader", None)
    if loader is not None and f"{loader.__module__}.{getattr(loader, '__qualname__', '')}" not in _LOADERS:
        raise _refusal(f"{kind} has a loader of its own, {getattr(loader, '__qualname__', loader)}")

    _CHECKS.get(_KINDS[owner], bool)(dataset)
    return _KINDS[owner]


def convertible(dataset: Any) -> str | None:
    """Returns the class's name of a dataset that ``feeder.from_torch`` takes, or a part of one; None of any other."""
    while f"{type(dataset).__module__}.{type(dataset).__qualname__}" == "torch.utils.data.dataset.Subset":
        dataset = dataset.dataset
    with contextlib.suppress(TypeError):
        check_foreign(dataset)
        return type(dataset).__name__
    return None


def refuse_overridden(dataset: Any, library: str) -> None:
    """Raises TypeError for a dataset with a method that reads or counts samples, of another package than this one."""
    for method in ("__getitem__", "__getitems__", "__len__", "_load_image"):
        if _owner(dataset, method).partition(".")[0] not in ("", library):
            raise _refusal(f"{type(dataset).__name__} has a {method} of its own")


def _owner(dataset: Any, method: str) -> str:
    """Returns the full name of the class that a method of a dataset is defined by; "" if there is no such method."""
    owner = next((each for each in type(dataset).__mro__ if method in vars(each)), None)
    return "" if owner is None else f"{owner.__module__}.{owner.__qualname__}"


def _refusal(what: str) -> TypeError:
    """Returns the error for a dataset whose samples would have to be guessed.

    Args:
        what: The obstacle, in words.
    """
    return TypeError(
        f"{what}, and feeder.from_torch does not guess what it reads: let a __getitem__ `return feeder.Encoded(path), "
        "label` where it opened the image, and give that dataset to feeder.DataLoader"
    )
