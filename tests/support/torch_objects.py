"""Checks of ``feeder.from_torch`` beside torchvision's own objects: ``... with_torchvision torch_objects.py FOLDER``.

All run in one process, as the import of torchvision takes seconds. Each gets an empty folder; FOLDER/results.json has
the traceback of each, or None.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torch.utils.data import ConcatDataset, Dataset, Subset

import feeder
from feeder.dataset.foreign import convertible
from tests.support.images import encode, pixels
from tests.support.shard_sets import samples_of

CHECKS: dict[str, Callable[[Path], None]] = {}


def check(function: Callable[[Path], None]) -> Callable[[Path], None]:
    CHECKS[function.__name__] = function
    return function


def tree(root: Path, samples: int = 6, classes: tuple[str, ...] = ("ant", "bee")) -> Path:
    """Class folders of images in all modes that torchvision's loader turns into RGB."""
    kinds = ("RGB", "L", "RGBA", "P", "CMYK", "RGB")
    for number in range(samples):
        mode = kinds[number % len(kinds)]
        path = root / classes[number % len(classes)] / f"{number}.{'jpg' if mode == 'CMYK' else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = pixels(number, 40, 30)
        if mode == "RGBA":
            image.putalpha(pixels(number + 100, 40, 30).convert("L"))
        path.write_bytes(encode(image.convert(mode), "JPEG" if mode == "CMYK" else "PNG"))
    (root / classes[0] / "turned.jpg").write_bytes(encode(pixels(9, 40, 30), orientation=6, quality=95))
    return root


def tensors() -> Any:
    from torchvision.transforms import v2

    return v2.Compose([v2.ToImage(), v2.CenterCrop(24), v2.ToDtype(torch.float32, scale=True)])


def assert_like(ours: Any, theirs: Any) -> None:
    """The same samples, up to two levels of a decoder's rounding."""
    assert len(ours) == len(theirs)
    for i in range(len(theirs)):
        (image, target), (expected, label) = ours[i], theirs[i]
        assert (image.dtype, image.shape) == (expected.dtype, expected.shape), i
        assert (image.float() - expected.float()).abs().max() <= 2.01 / (255 if image.is_floating_point() else 1), i
        assert type(target) is type(label), i
        assert np.array_equal(target, label), i


def contents(out: Path) -> dict[str, tuple[bytes, int]]:
    """Image and label of each sample of a set, by its path in the source."""
    return {path: (data, label) for path, data, label in samples_of(out)}


def refused(make: Callable[[], object], *words: str) -> None:
    with pytest.raises(TypeError) as error:
        make()
    assert all(word in str(error.value) for word in (*words, "return feeder.Encoded(path), label")), error.value


def opened(path: str) -> Image.Image:
    return Image.open(path).convert("RGB")


@check
def image_folder(folder: Path) -> None:
    """EXIF is ignored, and modes become RGB, as in theirs."""
    from torchvision.datasets import ImageFolder

    theirs = ImageFolder(str(tree(folder)), transform=tensors())
    ours = feeder.from_torch(theirs)
    assert_like(ours, theirs)
    assert ours.samples is theirs.samples
    assert ours.imgs is theirs.imgs
    assert ours.loader is theirs.loader
    assert (ours.classes, ours.class_to_idx, ours.targets) == (theirs.classes, theirs.class_to_idx, theirs.targets)
    assert ours.transform is theirs.transform
    assert ours.target_transform is None
    assert feeder.from_torch(ours) is ours
    loader = feeder.DataLoader(ours, batch_size=3, num_workers=1)
    assert loader.path == "fast"
    assert [label for _, labels in loader for label in labels.tolist()] == theirs.targets
    for workers in (0, 1):
        batches = list(torch.utils.data.DataLoader(ours, 3, num_workers=workers))
        assert [label for _, labels in batches for label in labels.tolist()] == theirs.targets


@check
def order_and_resume(folder: Path) -> None:
    from torchvision.datasets import ImageFolder

    ours = feeder.from_torch(ImageFolder(str(tree(folder, 20)), transform=tensors()))
    whole = [batch[0].clone() for batch in feeder.DataLoader(ours, 4, shuffle=True, seed=3)]
    begun, resumed = (feeder.DataLoader(ours, 4, shuffle=True, seed=3, num_workers=w) for w in (0, 1))
    iterator = iter(begun)
    next(iterator)
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    rest = [batch[0].clone() for batch in resumed]
    assert len(rest) == len(whole) - 1
    assert all(map(torch.equal, rest, whole[1:]))


@check
def bad_files(folder: Path) -> None:
    from torchvision.datasets import ImageFolder

    (tree(folder) / "ant" / "bad.png").write_bytes(b"no image")
    ours = feeder.from_torch(ImageFolder(str(folder), transform=tensors()))
    loader = feeder.DataLoader(ours, 4, on_error="skip")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert sum(len(images) for images, _ in loader) == len(ours)
    assert "ant/bad.png" in str(caught[0].message)
    assert loader.stats()["skipped"] == 1
    with pytest.raises(feeder.DecodeError, match=r"ant/bad\.png"):
        list(feeder.DataLoader(ours, 4))


@check
def transform_that_is_set(folder: Path) -> None:
    """On either object, and for both parts of a split: from the next epoch on."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    theirs = ImageFolder(str(tree(folder)), transform=tensors())
    kinds: Any = torch.utils.data
    train, valid = kinds.random_split(theirs, [4, 3])
    ours = feeder.from_torch(theirs)
    parts = [feeder.from_torch(each) for each in (train, valid)]
    assert [len(each) for each in parts] == [4, 3]
    assert parts[0].indices == train.indices
    loaders = [feeder.DataLoader(each, 2, num_workers=1) for each in (ours, *parts)]
    assert [loader.path for loader in loaders] == 3 * ["fast"]

    running = iter(loaders[0])
    assert next(running)[0].shape[-1] == 24
    smaller = v2.Compose([v2.PILToTensor(), v2.CenterCrop(16)])
    parts[1].dataset.transform = smaller
    assert theirs.transform is smaller
    assert ours.transform is smaller
    assert {images.shape[-1] for images, _ in running} == {24}
    for loader in loaders:
        assert {(images.shape[-1], images.dtype) for images, _ in loader} == {(16, torch.uint8)}
    assert_like(ours, theirs)
    assert_like(parts[0], train)
    ours.transform = tensors()
    assert_like(parts[1], valid)
    with pytest.raises(feeder.ArgumentError, match="expected a transform"):
        ours.transform = 3
    ours.transform = tensors()
    ours.transform.transforms.insert(2, v2.CenterCrop(12))
    assert_like(parts[1], valid)
    assert next(iter(loaders[0]))[0].shape[-1] == 12
    assert loaders[0].stats()["respawns"] == 0


@check
def target_transforms(folder: Path) -> None:
    """Of any type, as default_collate has them."""
    from torchvision.datasets import ImageFolder

    tree(folder)
    for change in (str, float, lambda y: y + 1, lambda y: {"a": torch.tensor([y, 1.5])}, lambda y: (y, np.float32(y))):
        theirs = ImageFolder(str(folder), transform=tensors(), target_transform=change)
        ours = feeder.from_torch(theirs)
        expected = [targets for _, targets in torch.utils.data.DataLoader(theirs, 4)]
        for workers in (0, 1):
            found = [targets for _, targets in feeder.DataLoader(ours, 4, num_workers=workers)]
            assert repr(found) == repr(expected), (found, expected)
        collated = feeder.DataLoader(ours, 7, collate_fn=list, num_workers=1)
        assert repr([target for _, target in next(iter(collated))]) == repr([theirs[i][1] for i in range(7)])


@check
def draws_of_target_transforms(folder: Path) -> None:
    """By (seed, epoch, sample); the caller's generators stay as they are."""
    from torchvision.datasets import ImageFolder

    theirs = ImageFolder(str(tree(folder)), transform=tensors(), target_transform=lambda y: torch.rand(()).item())
    ours = feeder.from_torch(theirs)
    loaders = [feeder.DataLoader(ours, size, seed=5, num_workers=workers) for size, workers in ((7, 0), (2, 1))]
    epochs = [[torch.cat([targets for _, targets in loader]) for _ in range(2)] for loader in loaders]
    assert torch.equal(epochs[0][0], epochs[1][0])
    assert len(set(epochs[0][0].tolist() + epochs[0][1].tolist())) == 14
    with pytest.raises(feeder.ArgumentError, match="mixes images and labels"):
        feeder.DataLoader(ours, 7, mix=feeder.transforms.MixUp())
    padded = feeder.DataLoader(ours, 7, sizes=feeder.PadToBatch())
    assert [len(entry) for entry in next(iter(padded))] == [7, 7, 7]


@check
def timms_dataset(folder: Path) -> None:
    if importlib.util.find_spec("timm") is None:
        return
    from timm.data import ImageDataset

    theirs = ImageDataset(str(tree(folder)), transform=tensors())
    ours = feeder.from_torch(theirs)
    assert_like(ours, theirs)
    assert ours.filename(0) == theirs.filename(0)
    theirs.input_img_mode = "L"
    refused(lambda: feeder.from_torch(theirs), "ImageDataset")


@check
def timms_prefetcher(folder: Path) -> None:
    """It normalizes what it gets; feeder's loader stands in its place inside."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    T = feeder.transforms

    class PrefetchLoader:  # like timm's, without a device
        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for images, labels in self.loader:
                yield images.float().sub(127.5).div(64), labels

        @property
        def dataset(self) -> Any:
            return self.loader.dataset

    PrefetchLoader.__module__ = "timm.data.loader"
    dataset = ImageFolder(str(tree(folder)), v2.Compose([v2.Resize((16, 16)), v2.PILToTensor()]))
    theirs = PrefetchLoader(torch.utils.data.DataLoader(dataset, batch_size=4))
    ours = feeder.from_torch(theirs)
    assert type(ours.loader) is feeder.DataLoader
    assert type(theirs.loader) is torch.utils.data.DataLoader
    assert feeder.explain(theirs).is_native
    for (images, labels), (expected, their_labels) in zip(ours, theirs, strict=True):
        assert (images - expected).abs().max() <= 1.01 / 64
        assert torch.equal(labels, their_labels)

    def fast_collate(samples: Any) -> Any:
        raise AssertionError("feeder makes the same batches itself")

    class Mixing:  # as timm's FastCollateMixup
        mixup_enabled = True

        def __call__(self, samples: Any) -> Any:
            images, labels = torch.utils.data.default_collate(samples)
            return images * self.mixup_enabled, labels

    fast_collate.__module__ = "timm.data.loader"
    alike = feeder.from_torch(PrefetchLoader(torch.utils.data.DataLoader(dataset, 4, collate_fn=fast_collate)))
    assert [labels.tolist() for _, labels in alike] == [labels.tolist() for _, labels in theirs]

    mixed = feeder.from_torch(PrefetchLoader(torch.utils.data.DataLoader(dataset, 4, collate_fn=Mixing())))
    assert isinstance(mixed.loader.collate_fn, Mixing)
    assert next(iter(mixed.loader))[0].max() > 0
    mixed.loader.collate_fn.mixup_enabled = False
    assert mixed.loader.collate_fn.mixup_enabled is False

    class AugMixDataset(torch.utils.data.Dataset[Any]):  # as timm's
        def __getitem__(self, i: int) -> Any:
            return dataset[i]

    AugMixDataset.__module__, AugMixDataset.__qualname__ = "timm.data.dataset", "AugMixDataset"
    with pytest.raises(TypeError, match=r"num_aug_splits.*feeder\.transforms\.Views"):
        feeder.from_torch(AugMixDataset())
    assert next(iter(mixed.loader))[0].max() == 0

    class MultiEpochsDataLoader(torch.utils.data.DataLoader[Any]):
        def __iter__(self) -> Any:
            return super().__iter__()

    with pytest.raises(TypeError, match="leave use_multi_epochs_loader out"):
        feeder.from_torch(PrefetchLoader(MultiEpochsDataLoader(dataset)))

    recipe = [T.Resize((16, 16)), T.ToDtype("float32", scale=True)]
    with pytest.raises(feeder.ArgumentError, match="PrefetchLoader normalizes and erases on the device"):
        feeder.from_torch(theirs, transform=recipe)
    other = feeder.from_torch(theirs, transform=[T.Resize((8, 8))])
    assert next(iter(other))[0].shape == (4, 3, 8, 8)


@check
def overridden_methods(folder: Path) -> None:
    from torchvision.datasets import DatasetFolder, ImageFolder

    class Indexed(ImageFolder):  # type: ignore[misc]
        def __getitem__(self, i: int) -> Any:
            return (*super().__getitem__(i), i)

    class Short(ImageFolder):  # type: ignore[misc]
        def __len__(self) -> int:
            return 2

    class Even(ImageFolder):  # type: ignore[misc]
        def find_classes(self, directory: Any) -> Any:
            return ["bee"], {"bee": 5}

    class Listed(ImageFolder):  # type: ignore[misc]
        @staticmethod
        def make_dataset(directory: Any, *arguments: Any, **options: Any) -> Any:
            return [(str(folder / "bee" / "1.png"), 7)]

    class Own(Dataset[Any]):
        def __getitem__(self, i: int) -> Any: ...

    class Half(Subset[Any]):
        def __len__(self) -> int:
            return 1

    tree(folder)
    refused(lambda: feeder.from_torch(Indexed(str(folder))), "Indexed", "__getitem__")
    refused(lambda: feeder.from_torch(Short(str(folder))), "Short", "__len__")
    refused(lambda: feeder.from_torch(Own()), "Own", "__getitem__")
    refused(lambda: feeder.from_torch(Subset(Own(), [0])), "Own", "__getitem__")
    refused(lambda: feeder.from_torch(Half(ImageFolder(str(folder)), [0])), "Half", "__len__")
    refused(lambda: feeder.from_torch(ImageFolder(str(folder), loader=opened)), "loader", "opened")
    changed = ImageFolder(str(folder))
    changed.loader = opened
    refused(lambda: feeder.from_torch(changed), "loader")
    for theirs in (Even(str(folder), transform=tensors()), Listed(str(folder), transform=tensors(), allow_empty=True)):
        assert_like(feeder.from_torch(theirs), theirs)
    loader = ImageFolder(str(folder)).loader
    theirs = DatasetFolder(str(folder), loader, extensions=(".jpg",), transform=tensors(), allow_empty=True)
    assert_like(feeder.from_torch(theirs), theirs)


@check
def other_folder_classes(folder: Path) -> None:
    """Files in an order of their own, which may lie anywhere."""
    from torchvision.datasets import DTD, Flowers102

    files = sorted(tree(folder / "elsewhere").rglob("*.*"), reverse=True)
    for kind in (DTD, Flowers102):
        theirs: Any = kind.__new__(kind)
        vars(theirs).update({"root": folder / "root", "_image_files": files, "_labels": list(range(len(files)))})
        theirs.loader = theirs.__init__.__func__.__defaults__[-1]
        theirs.transform, theirs.target_transform = tensors(), None
        assert_like(feeder.from_torch(theirs), theirs)


@check
def arrays_in_memory(folder: Path) -> None:
    from torchvision.datasets import CIFAR10, CIFAR100

    for kind in (CIFAR10, CIFAR100):
        theirs: Any = kind.__new__(kind)
        theirs.data = np.stack([np.asarray(pixels(i, 32, 32)) for i in range(9)])
        theirs.root, theirs.targets = str(folder), [*range(9)]
        theirs.transform, theirs.target_transform = tensors(), None
        ours = feeder.from_torch(theirs)
        assert_like(ours, theirs)
        loader = feeder.DataLoader(ours, 4, num_workers=1)
        assert loader.path == "fast"
        assert all(torch.equal(images[0], theirs[int(labels[0])][0]) for images, labels in loader)


@check
def coco(folder: Path) -> None:
    """Annotations as theirs, read in the worker; v2's ops of both leave them alone, and are native."""
    from torchvision.datasets import CocoCaptions, CocoDetection
    from torchvision.transforms import v2

    tree(folder / "images", 3)
    files = sorted(path.relative_to(folder / "images").as_posix() for path in (folder / "images").rglob("*.*"))
    images = [{"id": 10 - i, "file_name": name, "height": 30, "width": 40} for i, name in enumerate(files)]
    common = {"category_id": 1, "bbox": [1, 2, 3, 4]}
    boxes = [{"id": i, "image_id": 10 - i % 3, "caption": str(i)} | common for i in range(5)]
    listed = {"images": images, "annotations": boxes, "categories": [{"id": i, "name": str(i)} for i in range(2)]}
    (folder / "instances.json").write_text(json.dumps(listed))
    for kind, change in ((CocoDetection, None), (CocoCaptions, None), (CocoDetection, len)):
        theirs = kind(str(folder / "images"), str(folder / "instances.json"), tensors(), change)
        ours = feeder.from_torch(theirs)
        assert len(ours) == len(theirs) == 4
        assert [ours[i][1] for i in range(4)] == [theirs[i][1] for i in range(4)]
        assert all((ours[i][0] - theirs[i][0]).abs().max() < 0.01 for i in range(4))
        loader = feeder.DataLoader(ours, 4, num_workers=1, collate_fn=list)
        assert [target for _, target in next(iter(loader))] == [theirs[i][1] for i in range(4)]
    values = v2.RandomApply([v2.RandomHorizontalFlip(1.0)], 1.0)
    joint = v2.Compose([v2.ToImage(), v2.Resize((24, 24)), values, v2.ToDtype(torch.float32, scale=True)])
    theirs = CocoDetection(str(folder / "images"), str(folder / "instances.json"), transforms=joint)
    assert feeder.explain(theirs).is_native
    ours = feeder.from_torch(theirs)
    assert [ours[i][1] for i in range(4)] == [theirs[i][1] for i in range(4)]
    assert all((ours[i][0] - theirs[i][0]).abs().max() < 0.01 for i in range(4))


def same_sample(ours: Any, theirs: Any) -> None:
    """The same types and values, up to two levels of a decoder's rounding."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
    if isinstance(ours, (dict, tuple, list)):
        pairs = zip(*(each.values() if isinstance(each, dict) else each for each in (ours, theirs)), strict=True)
        for pair in pairs:
            same_sample(*pair)
    elif isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        level = 2 / 255 if type(ours).__name__ == "Image" else 0
        assert (ours.float() - theirs.float()).abs().max() <= level
    else:
        assert ours == theirs


@check
def transforms_of_both(folder: Path) -> None:
    """Of image and target, wrapped for torchvision's v2 or not: in Python behind the native decode, by keyed draws."""
    from torchvision.datasets import CocoDetection, ImageFolder, VOCSegmentation, wrap_dataset_for_transforms_v2
    from torchvision.transforms import v2

    tree(folder / "images", 3)
    files = sorted(path.relative_to(folder / "images").as_posix() for path in (folder / "images").rglob("*.*"))
    images = [{"id": 10 - i, "file_name": name, "height": 30, "width": 40} for i, name in enumerate(files)]
    boxes = [{"id": i, "image_id": 10 - i % 3, "category_id": 1, "bbox": [1, 2, 30, 20]} for i in range(5)]
    file = folder / "instances.json"
    file.write_text(json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "1"}]}))

    plain = [v2.ToImage(), v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32, scale=True)]
    for ops in (plain, [v2.RandomZoomOut(p=1.0, side_range=(2, 2)), *plain[::2]], None):
        transforms = None if ops is None else v2.Compose(ops)
        theirs = wrap_dataset_for_transforms_v2(CocoDetection(str(folder / "images"), str(file), transforms=transforms))
        (native, joint) = feeder.explain(theirs).lines
        assert (native.how, joint.how, joint.name) == ("native", "python", "transforms")
        ours = pickle.loads(pickle.dumps(feeder.from_torch(theirs)))
        if ops is plain:
            for i in range(len(theirs)):
                same_sample(ours[i], theirs[i])
    assert isinstance(ours[0][0], Image.Image)
    with pytest.raises(feeder.ArgumentError, match="transforms"):
        feeder.from_torch(theirs, strict=True)
    with pytest.raises(feeder.ArgumentError, match="before it is wrapped"):
        feeder.from_torch(theirs, transform=v2.ToImage())

    def moved(image: Any, target: Any) -> Any:
        return v2.functional.pil_to_tensor(image)[:, :20, :20], torch.rand(()).item() + len(target)

    ours = feeder.from_torch(CocoDetection(str(folder / "images"), str(file), transforms=moved))
    loaders = [feeder.DataLoader(ours, n, seed=5, num_workers=w, collate_fn=list) for n, w in ((4, 0), (1, 1))]
    assert [loader.path for loader in loaders] == ["fast", "fast"]
    drawn = [[[target for batch in loader for _, target in batch] for _ in range(2)] for loader in loaders]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0][0] + drawn[0][1])) == 8
    with pytest.raises(feeder.ArgumentError, match="give a collate_fn"):
        list(feeder.DataLoader(ours, 2, sizes=feeder.PadToBatch()))

    sized = v2.Compose([v2.ToImage(), v2.Resize((24, 24)), v2.ToDtype(torch.float32, scale=True)])
    wrapped = wrap_dataset_for_transforms_v2(ImageFolder(str(folder / "images"), transform=sized))
    assert feeder.explain(wrapped).is_native
    assert_like(feeder.from_torch(wrapped), wrapped)

    masks: Any = VOCSegmentation.__new__(VOCSegmentation)
    Image.fromarray(np.arange(1200, dtype=np.uint8).reshape(30, 40)).save(folder / "mask.png")
    masks.root, masks.images, masks.targets = str(folder), [str(folder / "images" / files[0])], [folder / "mask.png"]
    masks.transform = masks.target_transform = None
    masks.transforms = v2.Compose([v2.RandomRotation((9, 9)), v2.ToImage()])
    same_sample(feeder.from_torch(masks)[0], masks[0])
    wrapped = wrap_dataset_for_transforms_v2(masks)
    same_sample(feeder.from_torch(wrapped)[0], wrapped[0])


@check
def pascal_voc(folder: Path) -> None:
    from torchvision.datasets import VOCDetection, VOCSegmentation

    root = folder / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "Annotations", "ImageSets/Segmentation", "ImageSets/Main"):
        (root / name).mkdir(parents=True)
    for i in range(3):
        (root / "JPEGImages" / f"{i}.jpg").write_bytes(encode(pixels(i, 40, 30)))
        pixels(i + 50, 40, 30).convert("P").save(root / "SegmentationClass" / f"{i}.png")
        box = f"<bndbox><xmin>{i}</xmin></bndbox>"
        xml = f"<annotation><object><name>a</name>{box}</object><object><name>b</name></object></annotation>"
        (root / "Annotations" / f"{i}.xml").write_text(xml)
    for name in ("Segmentation", "Main"):
        (root / "ImageSets" / name / "train.txt").write_text("0\n1\n2\n")
    theirs = VOCSegmentation(str(folder), transform=tensors(), target_transform=np.array)
    assert_like(feeder.from_torch(theirs), theirs)
    found = [masks for _, masks in feeder.DataLoader(feeder.from_torch(theirs), 2, num_workers=1)]
    assert all(map(torch.equal, found, [masks for _, masks in torch.utils.data.DataLoader(theirs, 2)]))
    boxes = VOCDetection(str(folder), transform=tensors())
    ours = feeder.from_torch(boxes)
    assert [ours[i][1] for i in range(3)] == [boxes[i][1] for i in range(3)]
    assert "xmin" in str(ours[0][1])


@check
def subsets_and_concatenations(folder: Path) -> None:
    from torchvision.datasets import ImageFolder

    transform = tensors()
    first, second = (ImageFolder(str(tree(folder / name, n)), transform=transform) for name, n in (("a", 4), ("b", 6)))
    theirs: Any = ConcatDataset([Subset(first, [3, 1, 1]), second])
    ours = feeder.from_torch(theirs)
    assert_like(ours, theirs)
    assert feeder.from_torch(ours) is ours
    loader = feeder.DataLoader(ours, 4, num_workers=1)
    assert loader.path == "fast"
    assert torch.cat([labels for _, labels in loader]).tolist() == [label for _, label in theirs]


@check
def pickles(folder: Path) -> None:
    from torchvision.datasets import ImageFolder

    theirs = ImageFolder(str(tree(folder)), transform=tensors())
    ours = feeder.from_torch(theirs)
    ours[0]
    again = pickle.loads(pickle.dumps(ours))
    assert_like(again, theirs)
    assert again.samples == theirs.samples
    for name in ("samples", "loader", "targets"):
        with pytest.raises(AttributeError, match=name):
            setattr(again, name, None)
    again.notes = "ours"
    assert again.notes == "ours"
    assert not hasattr(again, "missing")


@check
def relative_root(folder: Path) -> None:
    """Workers that have another current folder find the files."""
    import os

    from torchvision.datasets import ImageFolder

    tree(folder / "root")
    os.chdir(folder)
    theirs = ImageFolder("root", transform=tensors())
    ours = feeder.from_torch(theirs)
    os.chdir("/")
    assert ours.column("path")[0] == str(folder / theirs.samples[0][0])
    assert ours.column("key")[0] == "ant/0.png"
    assert len(list(feeder.DataLoader(ours, 7, num_workers=1))) == 1


@check
def another_transform(folder: Path) -> None:
    from torchvision.datasets import ImageFolder

    theirs = ImageFolder(str(tree(folder)), transform=tensors())
    ours = feeder.from_torch(theirs, transform=feeder.transforms.CenterCrop(8))
    assert ours[0][0].shape == (3, 8, 8)
    assert theirs[0][0].shape == (3, 24, 24)
    ours.transform = feeder.transforms.CenterCrop(4)
    assert ours[0][0].shape == (3, 4, 4)
    assert theirs[0][0].shape == (3, 24, 24)


@check
def loaders(folder: Path) -> None:
    from torchvision.datasets import ImageFolder

    theirs = ImageFolder(str(tree(folder)), transform=tensors())
    kinds: Any = torch.utils.data
    generator = torch.Generator().manual_seed(3)
    options = {"num_workers": 1, "drop_last": True, "generator": generator, "prefetch_factor": 3, "pin_memory": False}
    ours = feeder.from_torch(kinds.DataLoader(theirs, 2, shuffle=True, **options))
    given = ours.options()
    assert type(ours) is feeder.DataLoader
    assert ours.path == "fast"
    assert {name: given[name] for name in ("batch_size", "shuffle", *options) if name in given} == {
        name: value for name, value in ({"batch_size": 2, "shuffle": True} | options).items() if name != "pin_memory"
    }
    assert len(list(ours)) == 3
    assert feeder.from_torch(ours) is ours

    plain = feeder.from_torch(kinds.DataLoader(theirs, 3))
    assert torch.cat([labels for _, labels in plain]).tolist() == theirs.targets
    assert plain.options().keys() == {"dataset", "batch_size", "seed"}
    weighted = kinds.WeightedRandomSampler([1.0, *6 * [0.0]], 4)
    sampled = feeder.from_torch(kinds.DataLoader(theirs, 2, sampler=weighted, collate_fn=len))
    assert list(sampled) == [2, 2]
    assert sampled.sampler is weighted
    batches = kinds.BatchSampler(kinds.SequentialSampler(theirs), 3, True)
    assert len(list(feeder.from_torch(kinds.DataLoader(theirs, batch_sampler=batches)))) == 2
    apart = kinds.DataLoader(theirs, 3, collate_fn=kinds.default_convert)
    assert [[label for _, label in batch] for batch in feeder.from_torch(apart)] == [
        [label for _, label in batch] for batch in apart
    ]
    kept = feeder.from_torch(feeder.DataLoader(theirs, 3, drop_last=True))
    assert kept.path == "fast"
    assert kept.drop_last
    assert kept.batch_size == 3


@check
def explanation(folder: Path) -> None:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    def blurred(image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.BLUR)

    class Own(ImageFolder):  # type: ignore[misc]
        def __getitem__(self, i: int) -> Any: ...

    ops = v2.Compose([v2.RandomResizedCrop(24), v2.Lambda(blurred), v2.ToImage()])
    theirs = ImageFolder(str(tree(folder)), transform=ops, target_transform=str)
    (folder / "ant" / "0.png").unlink()
    for obj in (theirs, Subset(theirs, [1]), torch.utils.data.DataLoader(theirs), feeder.from_torch(theirs)):
        found = feeder.explain(obj)
        assert [line.how for line in found.lines] == ["native", "native", "python", "python", "python"]
        assert [line.name for line in found.lines][::4] == ["ImageFolder", "target_transform"]
        assert not found.is_native
        assert max(map(len, str(found).splitlines())) <= 80
    assert [line.how for line in feeder.explain(ops).lines] == ["native", "python", "python"]
    native = v2.Compose([v2.RandomResizedCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    assert feeder.explain(ImageFolder(str(folder), transform=native)).is_native
    crop, bicubic = v2.RandomResizedCrop(24), v2.InterpolationMode.BICUBIC
    assert feeder.explain([v2.RandomResizedCrop(24, interpolation=bicubic), v2.ColorJitter(0.4)]).is_native
    assert feeder.explain([v2.RandomCrop(9, padding=4), v2.Pad(4), v2.ColorJitter(0.4)]).is_native
    reflected = v2.RandomCrop(9, padding=4, padding_mode="reflect"), v2.Pad(4, padding_mode="edge")
    for others in ([reflected[0]], [crop, reflected[1]], [v2.ColorJitter(0.4), crop]):
        lines = feeder.explain([*others, v2.RandomHorizontalFlip()]).lines
        assert [line.how for line in lines] == ["native"] * (len(others) - 1) + ["python", "native"]
        assert "Pillow runs it" in lines[len(others) - 1].reason
    (line,) = feeder.explain(Own(str(folder))).lines
    assert (line.name, line.how) == ("Own", "refused")
    assert "return feeder.Encoded(path), label" in line.reason
    views = feeder.transforms.Views([feeder.transforms.CenterCrop(8)])
    assert feeder.explain(ImageFolder(str(folder), transform=views)).is_native
    ours = feeder.from_torch(theirs)
    with pytest.raises(feeder.ArgumentError, match="Lambda"):
        feeder.from_torch(theirs, strict=True)
    assert ours[1][0].shape == (3, 24, 24)


@check
def pillow_images(folder: Path) -> None:
    """Of transforms that end with them; batches of feeder's loader have tensors."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    for transform in (None, v2.CenterCrop(20)):
        theirs = ImageFolder(str(tree(folder)), transform=transform)
        ours = feeder.from_torch(theirs)
        for i in range(len(theirs)):
            (image, label), (expected, target) = ours[i], theirs[i]
            assert (image.mode, image.size, label) == (expected.mode, expected.size, target)
            assert np.abs(np.array(image, int) - np.array(expected, int)).max() <= 2
    collated = feeder.DataLoader(ours, 4, collate_fn=list, num_workers=1)
    assert {image.size for samples in collated for image, _ in samples} == {(20, 20)}
    assert next(iter(feeder.DataLoader(ours, 4)))[0].shape == (4, 3, 20, 20)


@check
def hugging_face(folder: Path) -> None:
    """Rows and columns stay; EXIF is applied, as theirs; files in bytes and by path."""
    import datasets
    from torchvision.transforms import v2

    turned = encode(pixels(2, 40, 30), orientation=6, quality=95)
    (folder / "1.png").write_bytes(encode(pixels(1, 40, 30), "PNG"))
    images = [{"bytes": turned, "path": None}, {"bytes": None, "path": str(folder / "1.png")}]
    names = datasets.ClassLabel(names=["a", "b"])
    features = {"text": datasets.Value("string"), "photo": datasets.Image(), "label": names}
    rows = {"text": ["x", "y", "z"], "photo": [*images, images[0]], "label": [0, 1, 1]}
    theirs = datasets.Dataset.from_dict(rows, features=datasets.Features(features))

    ours = feeder.from_torch(theirs)
    for i in range(3):
        row, expected = ours[i], theirs[i]
        assert list(row) == list(expected)
        assert [row["text"], row["label"]] == [expected["text"], expected["label"]]
        assert np.abs(np.array(row["photo"], int) - np.array(expected["photo"], int)).max() <= 2
    assert ours.features == theirs.features
    assert ours.column_names == ["text", "photo", "label"]

    cut = feeder.from_torch(theirs, transform=tensors())
    for workers in (0, 1):
        loader = feeder.DataLoader(cut, 2, num_workers=workers)
        assert loader.path == "fast"
        batches = list(loader)
        assert [batch["text"] for batch in batches] == [["x", "y"], ["z"]]
        assert torch.cat([batch["label"] for batch in batches]).tolist() == [0, 1, 1]
        assert batches[0]["photo"].shape == (2, 3, 24, 24)
    assert torch.equal(cut[0]["photo"], cut[2]["photo"])

    def changed(batch: Any) -> Any:
        batch["pixels"] = [v2.functional.pil_to_tensor(image)[:, :8, :8] for image in batch.pop("photo")]
        return batch

    theirs.set_transform(changed)
    assert [line.how for line in feeder.explain(theirs).lines] == ["native", "python"]
    assert feeder.explain(theirs).lines[1].way_out == "the image's ops run natively as transform="
    ours = feeder.from_torch(theirs)
    for i in range(3):
        assert list(ours[i]) == list(theirs[i])
        assert (ours[i]["pixels"].int() - theirs[i]["pixels"].int()).abs().max() <= 2
    (samples,) = feeder.DataLoader(ours, 3, num_workers=1, collate_fn=list)
    assert [list(row) for row in samples] == 3 * [["text", "label", "pixels"]]
    refused(lambda: feeder.from_torch(theirs.with_format(None).remove_columns("photo")), "no Image column")
    assert feeder.explain(theirs.with_format(None).remove_columns("photo")).lines[0].how == "refused"


@check
def sizes_that_differ(folder: Path) -> None:
    """They are for a collate function, also that of torch's loader; without one the error is torch's."""
    import datasets
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    for number, side in enumerate((20, 30, 40)):
        (folder / "a").mkdir(exist_ok=True)
        (folder / f"a/{number}.png").write_bytes(encode(pixels(number, side, 30), "PNG"))
    files = ImageFolder(str(folder))
    paths = {"photo": [path for path, _ in files.samples], "label": [0, 1, 2]}
    rows = datasets.Dataset.from_dict(paths).cast_column("photo", datasets.Image())
    tensor = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    for kind in (feeder.DataLoader, torch.utils.data.DataLoader):
        for ours in (feeder.from_torch(rows), feeder.from_torch(rows, transform=tensor), feeder.from_torch(files)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch's path
                (samples,) = kind(ours, 3, collate_fn=list)
                assert [len(sample) for sample in samples] == [2, 2, 2]
                with pytest.raises((TypeError, RuntimeError, feeder.ArgumentError), match=r"default_collate|size"):
                    next(iter(kind(ours, 3)))


@check
def several_datasets_and_streams(folder: Path) -> None:
    import datasets

    tree(folder)
    parts = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"label": [0]})})
    with pytest.raises(TypeError, match=r"holds several datasets: give feeder.from_torch one of them, such as 'train'"):
        feeder.from_torch(parts)
    assert feeder.explain(parts).lines[0].how == "refused"

    class Own(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([])

    for stream in (datasets.IterableDataset.from_generator(lambda: iter([])), Own()):
        with pytest.raises(TypeError, match=r"no samples by number, .* `yield feeder.Encoded"):
            feeder.from_torch(stream)
        with pytest.raises(TypeError, match="no samples by number"):
            feeder.from_torch(torch.utils.data.DataLoader(stream))


@check
def modes_of_hugging_face(folder: Path) -> None:
    """Images of rows keep the modes of their files, and a further Image column is read as theirs."""
    import datasets

    modes = ("L", "RGBA", "P", "1", "LA", "RGB", "I;16")
    images = [pixels(i, 40, 30).convert("L" if mode == "I;16" else mode) for i, mode in enumerate(modes)]
    images[-1] = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50)
    photos = [{"bytes": encode(image, "PNG"), "path": None} for image in images]
    features = datasets.Features({"photo": datasets.Image(), "mask": datasets.Image(), "id": datasets.Value("int64")})
    rows = {"photo": photos, "mask": photos[::-1], "id": [*range(len(modes))]}
    theirs = datasets.Dataset.from_dict(rows, features=features)
    assert [line.how for line in feeder.explain(theirs).lines] == ["native", "python"]
    ours = feeder.from_torch(theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the 16 bits
        loader = feeder.DataLoader(ours, 4, collate_fn=list, num_workers=1)
        for found in ([ours[i] for i in range(len(modes))], [row for batch in loader for row in batch]):
            for row, mode, expected in zip(found, modes, theirs, strict=True):
                assert [row["photo"].mode, row["mask"].mode] == [mode, expected["mask"].mode]
                assert np.abs(np.array(row["photo"], int) - np.array(expected["photo"], int)).max() <= 2
                assert np.array_equal(row["mask"], expected["mask"])
        padded = feeder.from_torch(theirs.remove_columns("mask"))
        assert next(iter(feeder.DataLoader(padded, 4, sizes=feeder.PadToBatch())))["photo"].shape[:2] == (4, 3)
    theirs = theirs.remove_columns("mask")
    assert feeder.from_torch(theirs.cast_column("photo", datasets.Image(mode="RGB")))[0]["photo"].mode == "RGB"
    refused(lambda: feeder.from_torch(theirs.cast_column("photo", datasets.Image(mode="L"))), "mode RGB")


@check
def formats_of_hugging_face(folder: Path) -> None:
    """Rows hold tensors or arrays where theirs do, and batches those of torch's loader; of tables they are dicts."""
    import datasets

    photos = [{"bytes": encode(pixels(i, 40, 30).convert(mode), "PNG"), "path": None} for i, mode in enumerate("LLP1")]
    features = datasets.Features({"photo": datasets.Image(), "id": datasets.Value("int64")})
    rows = datasets.Dataset.from_dict({"photo": photos, "id": [*range(4)]}, features=features)
    for theirs in (
        rows.with_format("torch"),
        rows.with_format("torch", dtype=torch.float64),
        rows.with_format("numpy"),
    ):
        ours = pickle.loads(pickle.dumps(feeder.from_torch(theirs)))
        for i in range(4):
            assert list(map(repr, ours[i].values())) == list(map(repr, theirs[i].values()))
        loader: Any = torch.utils.data.DataLoader(Subset(theirs, [0, 1]), 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's path
            (found,), (expected,) = feeder.from_torch(loader), loader
        assert all(torch.equal(found[name], expected[name]) for name in ("photo", "id"))
    assert isinstance(feeder.from_torch(rows.with_format("arrow"))[0]["photo"], Image.Image)


@check
def shards_of_folders_and_arrays(folder: Path) -> None:
    """Files as they are; a subset of two concatenated; pixels in memory as PNG."""
    from torchvision.datasets import CIFAR10, ImageFolder

    theirs = ImageFolder(str(tree(folder / "a")), tensors())
    feeder.write_shards(theirs, folder / "whole", encode="keep")
    assert contents(folder / "whole") == {
        path: (Path(folder / "a" / path).read_bytes(), label)
        for path, label in ((str(Path(name).relative_to(folder / "a")), label) for name, label in theirs.samples)
    }
    assert feeder.ShardDataset(folder / "whole").classes == ["ant", "bee"]

    other = ImageFolder(str(tree(folder / "b")))
    half: Any = Subset(ConcatDataset([Subset(theirs, [1, 3]), other]), [1, 2, 4])
    feeder.write_shards(half, folder / "half", encode="keep")
    paths = ["0/" + Path(theirs.samples[3][0]).relative_to(folder / "a").as_posix()]
    paths += ["1/" + Path(other.samples[i][0]).relative_to(folder / "b").as_posix() for i in (0, 2)]
    assert list(contents(folder / "half")) == sorted(paths)
    feeder.write_shards(feeder.from_torch(theirs), folder / "ours", encode="keep")
    assert contents(folder / "ours") == contents(folder / "whole")
    names = [Path(name).relative_to(folder / "a").as_posix() for name, _ in theirs.samples]
    chosen: list[tuple[Any, list[str]]] = [  # as torch's: nothing is lost, and -1 is the last one
        (Subset(theirs, [-1, 0, 0]), [names[-1], names[0], f"{names[0]}#2"]),
        (ConcatDataset([theirs, theirs]), [*names, *(f"{name}#2" for name in names)]),
        (Subset(half, [-1, np.int64(-3)]), [paths[2], paths[0]]),
    ]
    for number, (subset, expected) in enumerate(chosen):
        feeder.write_shards(subset, folder / f"chosen{number}", encode="keep")
        found = contents(folder / f"chosen{number}")
        assert sorted(found) == sorted(expected)
        assert sorted(label for _, label in found.values()) == sorted(subset[i][1] for i in range(len(subset)))
    assert found[paths[2]] == contents(folder / "half")[paths[2]]
    with pytest.raises(IndexError):
        feeder.write_shards(Subset(theirs, [-len(theirs) - 1]), folder / "none")

    renamed = ImageFolder(str(tree(folder / "c", classes=("cow", "dog"))))
    with pytest.raises(feeder.ArgumentError, match="name their classes in different ways"):
        feeder.write_shards(ConcatDataset([theirs, renamed]), folder / "both")

    arrays = CIFAR10.__new__(CIFAR10)
    arrays.root, arrays.transform, arrays.target_transform = str(folder), None, None
    arrays.data, arrays.targets, arrays.classes = (
        np.stack([np.asarray(pixels(i, 32, 32)) for i in range(3)]),
        [2, 0, 1],
        [],
    )
    feeder.write_shards(arrays, folder / "arrays")
    dataset = feeder.ShardDataset(folder / "arrays")
    for image, label in (dataset[i] for i in range(3)):
        assert np.array_equal(image.permute(1, 2, 0), arrays.data[arrays.targets.index(label)])


@check
def shards_of_boxes_and_masks(folder: Path) -> None:
    """COCO's and Pascal VOC's datasets give what ``feeder shard`` makes of their files."""
    from torchvision.datasets import CocoDetection, VOCDetection, VOCSegmentation

    (folder / "images").mkdir()
    images = [{"id": 9 - i, "file_name": f"{i}.jpg", "height": 30, "width": 40} for i in range(3)]
    for i in range(3):
        (folder / "images" / f"{i}.jpg").write_bytes(encode(pixels(i, 40, 30)))
    boxes = [{"id": i, "image_id": 9 - i, "category_id": 4, "bbox": [1, 2, 3, 4]} for i in range(3)]
    listed = {"images": images, "annotations": boxes, "categories": [{"id": 4, "name": "cat"}]}
    (folder / "instances.json").write_text(json.dumps(listed))
    theirs = CocoDetection(str(folder / "images"), str(folder / "instances.json"))
    feeder.write_shards(Subset(theirs, [0, 2]), folder / "coco")
    dataset = feeder.ShardDataset(folder / "coco", fields=["path", "boxes.json"])
    assert dataset.classes == ["cat"]
    found = {entry[2]: json.loads(entry[3]) for entry in (dataset[i] for i in range(len(dataset)))}
    assert {path: (each["boxes"], each["image_id"]) for path, each in found.items()} == {
        "2.jpg": ([[1, 2, 4, 6]], 7),
        "0.jpg": ([[1, 2, 4, 6]], 9),
    }
    with pytest.raises(feeder.ArgumentError, match="comes twice"):
        feeder.write_shards(Subset(theirs, [0, -3]), folder / "twice")
    with pytest.raises(feeder.ArgumentError, match="add the others by feeder append"):
        feeder.write_shards(ConcatDataset([theirs, CocoDetection(theirs.root, str(folder / "instances.json"))]), "x")

    root = folder / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "Annotations", "ImageSets/Segmentation", "ImageSets/Main"):
        (root / name).mkdir(parents=True)
    sides = "".join(
        f"<{side}>{value}</{side}>" for side, value in zip(("xmin", "ymin", "xmax", "ymax"), (1, 1, 9, 9), strict=True)
    )
    for i in range(3):
        (root / "JPEGImages" / f"{i}.jpg").write_bytes(encode(pixels(i, 40, 30)))
        pixels(i + 50, 40, 30).convert("P").save(root / "SegmentationClass" / f"{i}.png")
        xml = f"<annotation><object><name>cat</name><bndbox>{sides}</bndbox></object></annotation>"
        (root / "Annotations" / f"{i}.xml").write_text(xml)
    for name in ("Segmentation", "Main"):
        (root / "ImageSets" / name / "train.txt").write_text("0\n2\n")
    feeder.write_shards(VOCSegmentation(str(folder)), folder / "masks")
    dataset = feeder.ShardDataset(folder / "masks", fields=["path", "masks.png"])
    expected = {f"{i}.jpg": (root / "SegmentationClass" / f"{i}.png").read_bytes() for i in (0, 2)}
    assert {entry[2]: entry[3] for entry in (dataset[i] for i in range(2))} == expected
    feeder.write_shards(VOCDetection(str(folder)), folder / "boxes")
    dataset = feeder.ShardDataset(folder / "boxes", fields=["boxes.json"])
    assert [json.loads(dataset[i][2]) for i in range(2)] == 2 * [{"boxes": [[0, 0, 9, 9]], "labels": [0]}]


@check
def shards_of_hugging_face(folder: Path) -> None:
    """The other columns are json, the class names theirs; formats and functions don't count."""
    import datasets

    (folder / "1.png").write_bytes(encode(pixels(1, 40, 30), "PNG"))
    images = [{"bytes": encode(pixels(0, 40, 30)), "path": None}, {"bytes": None, "path": str(folder / "1.png")}]
    names = datasets.ClassLabel(names=["a", "b"])
    features = {"text": datasets.Value("string"), "photo": datasets.Image(), "label": names}
    rows = {"text": ["x", "y"], "photo": images, "label": [1, 0]}
    theirs = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    theirs.set_transform(lambda batch: 1 / 0)
    feeder.write_shards(theirs, folder / "out", encode="keep")
    dataset = feeder.ShardDataset(folder / "out", fields=["json"])
    assert dataset.classes == ["a", "b"]
    assert sorted((label, row["text"]) for _, label, row in (dataset[i] for i in range(2))) == [(0, "y"), (1, "x")]
    assert sorted(data for data, _ in contents(folder / "out").values()) == sorted(
        [encode(pixels(0, 40, 30)), (folder / "1.png").read_bytes()]
    )
    feeder.write_shards(theirs.select_columns("photo"), folder / "alone", encode="keep")
    assert contents(folder / "alone").keys() == contents(folder / "out").keys()
    assert {label for _, label in contents(folder / "alone").values()} == {-1}


@check
def word_on_conversion(folder: Path) -> None:
    """Once for each kind, and for what can be converted only."""
    from torchvision.datasets import ImageFolder

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("feeder.loader.path_choice")
    log.addHandler(handler)
    log.setLevel(logging.INFO)

    class Mine(ImageFolder):  # type: ignore[misc]
        pass

    theirs = Mine(str(tree(folder)), transform=tensors())
    datasets: list[Any] = [theirs, Subset(theirs, [0]), ImageFolder(str(folder), loader=opened)]
    for dataset in datasets:
        assert feeder.DataLoader(dataset).path == "generic"
    assert [convertible(each) for each in datasets] == ["Mine", "Mine", None]
    assert len(said) == 1
    assert "feeder.from_torch(dataset)" in said[0]
    assert "Mine" in said[0]


def main(folder: Path) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", module="torchvision")
    results: dict[str, str | None] = {}
    for name, function in CHECKS.items():
        (folder / name).mkdir()
        try:
            function(folder / name)
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
