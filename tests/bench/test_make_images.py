"""The generated images: as large as photos, the same for the same seed, whole or absent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.make_images import make_image, make_images


def test_images_have_the_size_and_spread_of_photos(tmp_path: Path) -> None:
    make_images(tmp_path / "images", count=40, classes=4)
    paths = sorted((tmp_path / "images").rglob("*.jpg"))
    assert len(paths) == 40
    assert {path.parent.name for path in paths} == {f"class-{label:02d}" for label in range(4)}
    size_kb = np.array([path.stat().st_size / 1024 for path in paths])
    assert 80 < size_kb.mean() < 120
    assert size_kb.std() > 10
    planes = []
    for path in paths:
        with Image.open(path) as image:
            assert 0.7 * 500 * 375 < image.width * image.height < 1.5 * 500 * 375
            planes.append(np.asarray(image.convert("YCbCr"), np.float32).reshape(-1, 3).std(0))
    luma, cb, cr = np.mean(planes, 0)
    assert luma > 2.5 * max(cb, cr), "photos' colors vary far less than their brightness"


def test_images_follow_from_seed_and_number(tmp_path: Path) -> None:
    assert np.array_equal(make_image(3, seed=1), make_image(3, seed=1))
    assert not np.array_equal(make_image(3, seed=1)[:300, :300], make_image(3, seed=2)[:300, :300])
    make_images(tmp_path / "few", count=3, classes=2)
    make_images(tmp_path / "more", count=5, classes=2)
    for path in sorted((tmp_path / "few").rglob("*.jpg")):
        assert path.read_bytes() == (tmp_path / "more" / path.relative_to(tmp_path / "few")).read_bytes()


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="name another folder"):
        make_images(tmp_path, count=1)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_leaves_no_folder_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(index: int, path: Path, *, seed: int) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bench.make_images.encode_image", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make_images(tmp_path / "images", count=2)
    assert not (tmp_path / "images").exists()
    make_images(tmp_path / "images", count=2)
    assert all(path.read_bytes()[:2] == b"\xff\xd8" for path in (tmp_path / "images").rglob("*.jpg"))
