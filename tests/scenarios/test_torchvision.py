"""torchvision itself, which feeder follows, and fastai.vision, which imports it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from feeder import transforms
from feeder.dataset.folders import FolderDataset
from tests.golden import cases_of, target_arrays, target_cases, torchvision_arrays
from tests.support.images import encode, pixels
from tests.support.loader_data import write_shards
from tests.support.with_torchvision import run_with_torchvision

_COMPARED = """
import inspect, json, sys
from pathlib import Path
import torchvision
from torchvision.transforms import v2
from feeder import transforms
from tests.golden import make_targets, make_torchvision
from tests.scenarios.test_torchvision import parameters

folder = Path(sys.argv[1])
make_torchvision.main(str(folder / "golden.npz"))
make_targets.main(str(folder / "targets.npz"))
ops = {name: getattr(v2, name) for name in transforms.__all__ if inspect.isclass(getattr(v2, name, None))}
found = torchvision.datasets.ImageFolder(str(folder / "tree"))
resize = transforms.Resize((8, 8), v2.InterpolationMode.BICUBIC)
theirs = {
    "golden": str(folder / "golden.npz"),
    "targets": str(folder / "targets.npz"),
    "parameters": {name: parameters(op) for name, op in ops.items()},
    "tree": str(folder / "tree"),
    "classes": found.classes,
    "samples": found.samples,
    "enums": [resize == transforms.Resize((8, 8), "bicubic"), *(
        transforms.AutoAugment(policy) == transforms.AutoAugment(policy.value) for policy in v2.AutoAugmentPolicy
    )],
}
(folder / "theirs.json").write_text(json.dumps(theirs))
"""


def parameters(op: Any) -> list[list[str]]:
    """Name, default and kind of each."""
    found = inspect.signature(op).parameters.values()
    return [[p.name, str(getattr(p.default, "value", p.default)).removeprefix("torch."), p.kind.name] for p in found]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of torchvision, all of one process, as its import takes seconds."""
    folder = tmp_path_factory.mktemp("torchvision")
    for name in ("b/1.png", "b/sub/2.png", "A/3.PNG", "10/.4.jpg", "9/5.webp", "é/6.jpg", "hidden/7.jpeg"):
        path = folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels(1), "PNG"))
    for name in ("b/notes.txt", "A/x.jpg.part", "beside.jpg"):
        (folder / "tree" / name).write_bytes(b"no image")
    (folder / "compared.py").write_text(_COMPARED)
    run_with_torchvision(folder / "compared.py", folder)
    return json.loads((folder / "theirs.json").read_text())


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield key
            yield from _leaves(item)
    else:
        yield value


def test_golden_file_is_what_this_torchvision_gives(theirs: dict[str, Any]) -> None:
    with np.load(theirs["golden"]) as arrays:
        found, expected = dict(arrays), torchvision_arrays()
    assert found.keys() == expected.keys()
    for name in found.keys() - {"cases"}:
        # Pillow makes the pixels, or pillow-simd, which rounds otherwise.
        np.testing.assert_allclose(found[name].astype(float), expected[name], atol=2 if name == "pixels" else 1e-5)
    cases = zip(*(_leaves(json.loads(str(each["cases"]))) for each in (found, expected)), strict=True)
    for one, other in cases:
        # torch.linspace differs in the last bits from CPU to CPU.
        assert one == (pytest.approx(other, rel=1e-5, abs=1e-6) if isinstance(other, float) else other)


def _same_boxes(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Boxes after SanitizeBoundingBoxes: one that ends at the edge of the canvas may lie beyond it by the last bit."""
    fewer, more = sorted((one, other), key=len)
    close = np.isclose(fewer[:, None], more[None], rtol=1e-5, atol=1e-5).all(axis=2)
    return len(more) - len(fewer) <= 1 and bool(close.any(axis=1).all())


def test_golden_targets_are_what_this_torchvision_gives(theirs: dict[str, Any]) -> None:
    """Up to the last bits of torch's sines and matrices, which differ from CPU to CPU."""
    with np.load(theirs["targets"]) as arrays:
        found, expected = dict(arrays), target_arrays()
    assert found.keys() == expected.keys()
    assert json.loads(str(found["draws"])) == json.loads(str(expected["draws"]))
    for name in found.keys() - {"cases", "draws", "masks", "floats"}:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)
    for one, other in zip(cases_of(found), target_cases(), strict=True):
        assert (one.size, one.steps, one.expected.keys()) == (other.size, other.steps, other.expected.keys())
        for name, value in other.expected.items():
            if name == "mask":  # a pixel halfway between two goes either way
                assert (one.expected[name] != value).sum() <= 1
            elif "SanitizeBoundingBoxes" in str(other.steps) and name != "points":
                assert _same_boxes(one.expected[name], value)
            else:
                np.testing.assert_allclose(one.expected[name], value, rtol=1e-5, atol=1e-5)


def test_parameters_and_defaults_are_those_of_this_torchvision(theirs: dict[str, Any]) -> None:
    assert len(theirs["parameters"]) > 30
    without = {"Lambda": ["types"], "MixUp": ["labels_getter"], "CutMix": ["labels_getter"]}
    further = {"Resize": [["cover", "False", "KEYWORD_ONLY"]]}
    further["Lambda"] = [["on", "array", "KEYWORD_ONLY"], ["keeps_shape", "True", "KEYWORD_ONLY"]]
    without |= {"SanitizeBoundingBoxes": ["labels_getter"], "SanitizeKeyPoints": ["labels_getter"]}
    for name, expected in theirs["parameters"].items():
        kept = [each for each in expected if each[0] not in without.get(name, ())]
        assert parameters(getattr(transforms, name)) == kept + further.get(name, []), name
    assert all(theirs["enums"])


def test_folder_has_the_classes_and_samples_of_this_torchvision(theirs: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="left out 1 unfinished"):
        ours = FolderDataset(theirs["tree"], fields=("path",))
    assert ours.classes == theirs["classes"]
    assert [[ours[i][2], ours[i][1]] for i in range(len(ours))] == theirs["samples"]


_FASTAI = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")  # theirs
import torch
from fastai.vision.all import *
import feeder
from feeder import transforms as T

torch.set_num_threads(1)
shards, folder = map(Path, sys.argv[1:])

class Seen(Callback):
    def before_fit(self):
        self.seen = []

    def before_batch(self):
        self.seen.append((self.training, self.yb[0].tolist()))

def fit(loaders):
    body = nn.Sequential(ConvLayer(3, 8, stride=2), ConvLayer(8, 512, stride=2))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), Flatten(), nn.Linear(512, 7))
    seen = Seen()
    loss = CrossEntropyLossFlat()
    learner = Learner(loaders, nn.Sequential(body, head), loss, metrics=accuracy, cbs=[seen], path=folder)
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(2, 0.01)
    measured, batches = learner.recorder.values[-1][2], seen.seen  # both begin anew with get_preds
    predictions, targets = learner.get_preds(dl=loaders.valid)
    assert predictions.shape == (50, 7)
    assert abs(measured - (predictions.argmax(1) == targets).float().mean()) < 1e-6
    return batches, targets.tolist()

train, valid = (
    feeder.ShardDataset(shards, T.Compose([crop, T.ToDtype(torch.float32, scale=True)]))
    for crop in (T.RandomResizedCrop(32), T.Resize((32, 32)))
)
ours = feeder.DataLoader(train, 8, True, num_workers=1), feeder.DataLoader(valid, 8, num_workers=1)
assert [loader.path for loader in ours] == ["fast", "fast"]
results = [fit(ImageDataLoaders(*ours)), fit(ImageDataLoaders.from_dsets(train, valid, bs=8, num_workers=1))]
options = {"pretrained": False, "n_out": 7, "normalize": False, "loss_func": CrossEntropyLossFlat()}
learner = vision_learner(ImageDataLoaders(*ours), models.squeezenet1_1, **options)
assert learner.get_preds(dl=ours[1])[0].shape == (50, 7)
(folder / "results.json").write_text(json.dumps(results))
"""


@pytest.mark.slow
def test_fastai_vision_fits_from_feeders_loader_and_from_its_own(tmp_path: Path) -> None:
    """Over the same datasets. Its own loader leaves the last incomplete batch of training out."""
    pytest.importorskip("fastai")
    shards = write_shards(tmp_path / "shards", 50)
    (tmp_path / "fit.py").write_text(_FASTAI)
    run_with_torchvision(tmp_path / "fit.py", shards, tmp_path)
    labels = [i % 7 for i in range(50)]
    for (seen, targets), trained in zip(json.loads((tmp_path / "results.json").read_text()), (50, 48), strict=True):
        assert targets == labels
        steps = -(-trained // 8)
        assert [training for training, _ in seen] == 2 * (steps * [True] + 7 * [False])
        for first in (0, steps + 7):
            parts = [
                [i for _, batch in part for i in batch] for part in (seen[first:][:steps], seen[first + steps :][:7])
            ]
            assert len(parts[0]) == trained
            assert parts[0] != labels[:trained]
            assert trained < 50 or sorted(parts[0]) == sorted(labels)
            assert parts[1] == labels
