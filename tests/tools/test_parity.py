"""The certificate: its figures are right, and a backend that is off does not pass."""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from feeder import transforms as T
from feeder.decoders import registry
from feeder.decoders.decoder import DecodeResult, View
from feeder.decoders.pillow.pillow_decoder import PillowDecoder
from feeder.errors import ArgumentError, DecodeError, SourceError
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from feeder.tools.parity.comparison import parity
from feeder.tools.parity.differences import BOUNDS, Differences, crop_ratio
from feeder.tools.parity.page import ParityPage
from tests.support.chart_parity import Chart, TargetFigures
from tests.support.conformance import encode, natural_image
from tests.support.loader_data import without_tables


class Off(PillowDecoder):
    """The reference with a fault."""

    name = "off"
    fault = ""

    def decode(self, buffers: Any, orientations: Any, views: Any, first_rows: Any = None) -> Any:
        result = super().decode(buffers, orientations, views, first_rows)
        for _, _, out in views:
            if self.fault == "shifted":
                out[...] = np.roll(out, 1, axis=-1)
            elif self.fault == "biased":
                out[:, 0] = np.minimum(out[:, 0], 254) + (np.arange(out.shape[-1]) % 5 == 0)
            elif self.fault == "spiky":
                out[..., ::20, ::20] ^= 32
            elif self.fault == "one" and bytes(buffers[0]).endswith(b"odd"):
                out[..., 4:12, 4:12] ^= 8
        if self.fault == "picky":
            return DecodeResult([DecodeError("don't like it") for _ in result.errors])
        return result


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    for i in range(6):
        folder = root / f"class-{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.jpg").write_bytes(encode(natural_image(i, 180, 260)))
    return root


@pytest.mark.parametrize("backend", ["pillow", "cpu"])
def test_a_right_backend_passes_on_a_folder_and_on_its_shards(images: Path, backend: str) -> None:
    if backend not in registry.available_decoders():
        pytest.skip(f"backend {backend!r} is not installed")
    shard(os.fspath(images), os.fspath(images.parent / "shards"))
    for path in (images, images.parent / "shards", images.parent / "shards" / "index.bin"):
        report = parity(os.fspath(path), backend=backend)
        assert report.passed, report.render()
        assert report.images == 6
        assert sum(bucket.images for bucket in report.buckets) == 30
        assert all(bucket.images for bucket in report.buckets[:3])
        assert report.backend == backend
        assert "passed" in report.render()
        assert json.loads(json.dumps(report.to_json(), allow_nan=False))["passed"] is True


def test_drafts_have_bounds_of_their_own(images: Path) -> None:
    fast, draft = (parity(os.fspath(images), backend="cpu", fidelity=fidelity) for fidelity in ("fast", "draft"))
    assert draft.passed, draft.render()
    assert draft.buckets[:2] == fast.buckets[:2]  # crops that are hardly larger than their output
    assert draft.buckets[2:] != fast.buckets[2:]
    assert draft.bounds.mean > fast.bounds.mean
    assert main(["parity", os.fspath(images), "--backend", "cpu", "--fidelity", "draft", "--quiet"]) == 0


def test_packed_images_are_compared(images: Path) -> None:
    shards = os.fspath(images.parent / "shards")
    shard(os.fspath(images), shards, ShardOptions(encode=EncodeOptions("packed")))
    report = parity(shards, backend="cpu")
    assert report.passed, report.render()
    assert (report.images, report.unreadable) == (6, 0)


@pytest.mark.parametrize("fidelity", ["fast", "exact"])
def test_dali_passes_on_seekable_shards(images: Path, fidelity: str) -> None:
    if "dali" not in registry.available_decoders():
        pytest.skip("DALI is not installed")
    shards = os.fspath(images.parent / "shards")
    shard(os.fspath(images), shards)
    report = parity(shards, backend="dali", fidelity=fidelity)
    assert report.passed, report.render()
    assert (report.backend, report.device) == ("dali", "cpu")


FAULTS = ["shifted", "biased", "spiky", "picky"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_backend_that_is_off_does_not_pass(images: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "off", (f"{__name__}:Off", "none"))
    assert parity(os.fspath(images), backend="off").passed
    monkeypatch.setattr(Off, "fault", fault)
    report = parity(os.fspath(images), backend="off")
    assert not report.passed
    assert "NOT PASSED" in report.render()
    if fault == "picky":
        assert len(report.failures) == 6
        assert "class-1/1.jpg: don't like it" in report.render()
    else:
        assert "OUT OF BOUNDS" in report.render()


def test_the_page_shows_the_one_image_that_differs(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "off", (f"{__name__}:Off", "none"))
    odd = (images / "class-1/3.jpg").rename(images / "class-1/<script>.jpg")
    odd.write_bytes(odd.read_bytes() + b"odd")
    page = images.parent / "pages/parity.html"
    command = ["parity", os.fspath(images), "--backend", "off", "--html", os.fspath(page), "--quiet"]
    assert main(command) == 0
    assert "None differs." in page.read_text()
    assert "data:image" not in page.read_text()

    monkeypatch.setattr(Off, "fault", "one")
    code = main(command)
    text = page.read_text()
    assert ("Passed." in text) == (code == 0)
    assert [unescape(name) for name in re.findall("<h3><bdi>(.*)</bdi>", text)] == [os.fspath(odd)]
    assert len(re.findall("<th colspan.*: (?:Resize|RandomResizedCrop), ", text)) == 5
    named = dict(re.findall(r'src="data:image/png;base64,([^"]*)" alt="[^"]*"><figcaption>([^<]*)<', text))
    assert [*named.values()] == ["reference", "ours", "difference x 16 (grey = equal)"]
    reference, ours, shown = (np.asarray(Image.open(BytesIO(b64decode(each)))).astype(int) for each in named)
    difference = ours - reference
    assert (abs(difference[4:12, 4:12]) == 8).all()
    assert np.count_nonzero(difference) == difference[4:12, 4:12].size
    assert np.array_equal(shown, np.clip(128 + 16 * difference, 0, 255))
    assert not re.findall(r'(?:src|href)="(?!data:)|@import|url\(|<script', text)


def test_the_page_shows_the_images_that_differ_most_first(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.parity.page.SHOWN", 2)
    page = ParityPage()
    recipe = T.Recipe.of([T.CenterCrop(4)])
    draws = recipe.draw(0, 0, [0], [(4, 4)])
    for name, levels in (("a", 3), ("b", 9), ("c", 1), ("d", 5)):
        right, ours = (View(recipe, draws, np.full((1, 3, 4, 4), 100 + each, np.uint8)) for each in (0, levels))
        page.add(name, [(right, right, 1.0), (right, ours, 1.0)])
    report = parity(os.fspath(images), backend="pillow", images=1)
    assert re.findall("<h3><bdi>(.*)</bdi>", page.html("set", report)) == ["b", "d"]


def test_images_that_one_alone_decodes_are_on_the_page(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "off", (f"{__name__}:Off", "none"))
    monkeypatch.setattr(Off, "fault", "picky")
    page = images.parent / "parity.html"
    assert main(["parity", os.fspath(images), "--backend", "off", "--html", os.fspath(page), "--quiet"]) == 1
    text = unescape(page.read_text())
    assert "Not passed." in text
    assert text.count("class-1/1.jpg: don't like it") == 1


def test_a_page_that_can_not_be_written_is_refused_before_the_work(
    images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.tools.parity.comparison.parity", None)
    assert main(["parity", os.fspath(images), "--html", os.fspath(images)]) == 2
    assert f"{images}: can't be written: Is a directory; name another file" in capsys.readouterr().err


def test_images_that_the_cpu_decoded_in_the_backends_place_do_not_pass(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "dali" not in registry.available_decoders():
        pytest.skip("DALI is not installed")
    from feeder.decoders.dali.pipeline import DaliPipeline, PipelineError

    bad = (images / "class-0" / "0.jpg").read_bytes()
    (images / "class-0" / "bad.jpg").write_bytes(without_tables(bad))
    report = parity(os.fspath(images), backend="dali")
    assert report.redone == 0

    def fail(*_: object) -> None:
        raise PipelineError("no engine")

    monkeypatch.setattr(DaliPipeline, "collect", fail)
    report = parity(os.fspath(images), backend="dali", images=2)
    assert (report.images, report.redone, report.passed) == (2, 2, False)
    assert "'dali' failed on 2 images" in report.render()


def test_images_that_neither_can_decode_are_counted_and_passed_over(images: Path) -> None:
    whole = (images / "class-0" / "0.jpg").read_bytes()
    (images / "class-0" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (images / "class-0" / "text.jpg").write_text("no image")
    report = parity(os.fspath(images), backend="pillow")
    assert (report.images, report.unreadable) == (6, 2)
    assert report.passed
    assert "neither can decode 2 images" in report.render()


def test_nothing_to_compare_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "class-0").mkdir()
    (tmp_path / "class-0" / "text.jpg").write_text("no image")
    report = parity(os.fspath(tmp_path), backend="pillow")
    assert not report.passed
    assert "nothing was compared" in report.render()
    with pytest.raises(SourceError):
        parity(os.fspath(tmp_path / "missing"), backend="pillow")
    with pytest.raises(ArgumentError, match="1 or more"):
        parity(os.fspath(tmp_path), images=0)


def test_a_given_number_of_images_is_chosen_by_the_seed(images: Path) -> None:
    first, again = (parity(os.fspath(images), backend="pillow", images=3) for _ in range(2))
    assert first == again
    assert first.images == 3


def test_figures_are_those_of_the_differences() -> None:
    reference: npt.NDArray[np.uint8] = np.full((3, 10, 100), 100, np.uint8)
    found = reference.copy()
    found[0] += 2
    found[2, 0, :2] -= 50
    comparison = Differences()
    comparison.add(reference, found, 1.5)
    comparison.add(reference, reference, 4.0)
    below, low, middle, high = comparison.figures()
    assert (below.images, low.images, middle.images, high.images) == (0, 1, 0, 1)
    assert low.bias == (2.0, 0.0, -0.1)
    assert low.mean == pytest.approx((2 * 1000 + 2 * 50) / 3000)
    assert low.max == 50
    # 2 of 3,000 values differ by 50: fewer than 0.1 %.
    assert low.percentile_999 == 2
    assert (high.mean, high.max, high.percentile_999) == (0, 0, 0)
    assert not low.within(BOUNDS["fast"])
    assert below.within(BOUNDS["fast"])
    assert high.within(BOUNDS["exact"])
    with pytest.raises(ArgumentError):
        comparison.add(reference, found[:, :5], 1.0)


def test_the_ratio_is_the_geometric_mean_of_both_sides() -> None:
    assert crop_ratio(np.array([10.0, 20.0, 410.0, 120.0]), np.array([50, 50], np.int32)) == pytest.approx(4.0)


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_chart_shows_its_mask_boxes_and_keypoints(orientation: int) -> None:
    chart = Chart(120, 160, orientation)
    figures = TargetFigures()
    recipe = T.Recipe()
    draws = recipe.draw(0, 0, [0], [chart.upright_size])
    turned = chart.image().transpose(Image.Transpose.ROTATE_270) if orientation == 6 else chart.image()
    pixels = np.asarray(turned).transpose(2, 0, 1)
    figures.add(chart, pixels, recipe, draws, 0)
    assert (figures.mask_share, figures.box_px, figures.keypoints_off) == (0.0, 0.0, 0)
    assert (figures.boxes, figures.keypoints) == (3, 3)
    for fault in (np.roll(pixels, 3, axis=1), pixels[:, :, ::-1], pixels[::-1], np.zeros_like(pixels)):
        other = TargetFigures()
        other.add(chart, fault, recipe, draws, 0)
        assert not other.passed


def test_a_flat_folder_is_refused_with_the_command_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my photos").mkdir()
    (tmp_path / "my photos/1.jpg").touch()
    assert main(["parity", str(tmp_path / "my photos")]) == 1
    assert f"shard it first, without labels: feeder shard '{tmp_path}/my photos'\n" in capsys.readouterr().err
