"""MixUp and CutMix on a batch: torchvision's images and labels, drawn from seed, epoch and step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feeder import transforms
from feeder.errors import ArgumentError
from feeder.transforms import (
    CutMix,
    MixUp,
)
from feeder.transforms.op import Uniforms
from tests.golden import torchvision_arrays


def test_mixup_is_that_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = torchvision_arrays()
    images = torch.from_numpy(arrays["mixing_input"])
    labels = torch.tensor([5, 6, 7])
    for lam in (0.3, 0.95):
        monkeypatch.setattr(transforms.mixing, "beta", lambda *_, lam=lam: lam)
        mixed, (a, b, weight) = MixUp()(images, labels, seed=0, epoch=0, step=0)
        np.testing.assert_allclose(mixed.numpy(), arrays[f"mixup_{lam}"], atol=1e-6)
        assert (a.tolist(), b.tolist(), weight) == ([5, 6, 7], [7, 5, 6], lam)
    np.testing.assert_array_equal(images.numpy(), arrays["mixing_input"])


def test_cutmix_is_that_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = torchvision_arrays()
    images = torch.from_numpy(arrays["mixing_input"])
    for lam in (0.3, 0.95):
        monkeypatch.setattr(transforms.mixing, "beta", lambda *_, lam=lam: lam)
        # The golden rectangle is about (20, 3) in an image of 24 x 8.
        monkeypatch.setattr(transforms.mixing, "Uniforms", lambda *_: lambda count: np.array([[20.5 / 24, 3.5 / 8]]))
        mixed, (_, _, weight) = CutMix()(images, torch.arange(3), seed=0, epoch=0, step=0)
        np.testing.assert_array_equal(mixed.numpy(), arrays[f"cutmix_{lam}"])
        assert weight == pytest.approx(float(arrays[f"cutmix_lam_{lam}"]))


def test_mixed_labels_of_num_classes_are_those_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = torchvision_arrays()
    images = torch.from_numpy(arrays["mixing_input"])
    for lam in (0.3, 0.95):
        monkeypatch.setattr(transforms.mixing, "beta", lambda *_, lam=lam: lam)
        mixed, shares = MixUp(num_classes=3)(images, torch.arange(3), seed=0, epoch=0, step=0)
        assert isinstance(shares, torch.Tensor)
        assert shares.dtype == torch.float32
        np.testing.assert_array_equal(shares.numpy(), arrays[f"mixup_labels_{lam}"])
        assert torch.equal(mixed, MixUp()(images, torch.arange(3), seed=0, epoch=0, step=0)[0])


@pytest.mark.parametrize("op", [MixUp, CutMix])
def test_mixed_labels_of_num_classes_are_the_others_as_shares(op: type[transforms.BatchOp]) -> None:
    images, labels = torch.zeros(4, 3, 8, 8), torch.tensor([2, 0, 0, 4])
    for step in range(5):
        _, (own, others, weight) = op()(images, labels, seed=0, epoch=0, step=step)
        _, shares = op(num_classes=5)(images, labels, seed=0, epoch=0, step=step)
        expected = torch.zeros(4, 5)
        for row in range(4):
            expected[row, own[row]] += weight
            expected[row, others[row]] += 1.0 - weight
        torch.testing.assert_close(shares, expected)
        logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.cross_entropy
        by_hand = weight * loss(logits, own) + (1.0 - weight) * loss(logits, others)
        torch.testing.assert_close(loss(logits, shares), by_hand)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, 5])
def test_labels_that_num_classes_has_no_place_for_are_named(wrong: int) -> None:
    images, labels = torch.zeros(2, 3, 8, 8), torch.tensor([0, wrong])
    with pytest.raises(ArgumentError, match=f"CutMix with num_classes=5 takes labels from 0 to 4, got {wrong}"):
        CutMix(num_classes=5)(images, labels, seed=0, epoch=0, step=0)
    with pytest.raises(ArgumentError, match=r"class numbers \[N\], got \[2, 5\]"):
        CutMix(num_classes=5)(images, torch.zeros(2, 5), seed=0, epoch=0, step=0)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
@pytest.mark.parametrize("op", [MixUp(), CutMix()], ids=str)
def test_mixing_keeps_the_memory_format(op: transforms.BatchOp, dtype: torch.dtype, device: str) -> None:
    """Tensors without memory tell what a GPU would give; there torch's roll gives another format."""
    images = torch.zeros((4, 3, 8, 6), dtype=dtype, device=device).to(memory_format=torch.channels_last)
    mixed, _ = op(images, torch.arange(4), seed=0, epoch=0, step=0)
    assert mixed.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("op", [MixUp(alpha=0.2), CutMix()])
def test_mixing_depends_on_seed_epoch_and_step_only(op: transforms.BatchOp) -> None:
    images = (torch.arange(4 * 3 * 64 * 64) % 251).to(torch.uint8).reshape(4, 3, 64, 64)
    labels = torch.arange(4)

    def run(seed: int = 1, epoch: int = 2, step: int = 3) -> tuple[torch.Tensor, float]:
        mixed, (_, _, lam) = op(images, labels, seed=seed, epoch=epoch, step=step)
        return mixed, lam

    first, lam = run()
    assert first.dtype == torch.uint8
    assert torch.equal(run()[0], first)
    lams = {run(**{name: value})[1] for name in ("seed", "epoch", "step") for value in range(10, 20)}
    assert len(lams - {lam}) > 10


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 3.0])
def test_mixing_weights_follow_the_beta_distribution(alpha: float) -> None:
    lams = np.array([transforms.mixing.beta(alpha, Uniforms(0, 0, np.array([step]), 9)) for step in range(1500)])
    assert ((lams >= 0.0) & (lams <= 1.0)).all()
    assert abs(lams.mean() - 0.5) < 0.04
    variance = 1.0 / (4.0 * (2.0 * alpha + 1.0))
    assert abs(lams.var() / variance - 1.0) < 0.12


def test_mixing_refuses_shapes_that_do_not_fit() -> None:
    with pytest.raises(ArgumentError, match="N labels"):
        MixUp()(torch.zeros(4, 3, 2, 2), torch.zeros(3), seed=0, epoch=0, step=0)
