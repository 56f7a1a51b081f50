"""On a GPU: DeviceLog never waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from bench.gpu import train
from feeder import DeviceLog

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Any wait for the GPU that torch knows of is an error."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_no_step_waits_and_values_are_what_item_gives(no_waiting: None) -> None:
    rows: list[tuple[int, dict[str, Any]]] = []

    def sink(step: int, values: Mapping[str, Any]) -> None:
        rows.append((step, dict(values)))

    generator = torch.Generator("cuda").manual_seed(0)
    losses = torch.rand(200, generator=generator, device="cuda")
    log = DeviceLog(sink, every=8)
    other = torch.cuda.Stream()
    for step in range(200):
        # A log may be used on one stream after the other, as around a graph's capture.
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other if step // 20 % 2 else torch.cuda.current_stream()):
            log.write(step, loss=losses[step], count=torch.full((), step, device="cuda"))
        torch.cuda.current_stream().wait_stream(other)
    torch.cuda.set_sync_debug_mode("default")
    log.close()
    assert rows == [(step, {"loss": loss, "count": step}) for step, loss in enumerate(losses.tolist())]


def test_no_step_of_the_measured_training_waits() -> None:
    trainer, images = train.Trainer(), next(train.resident())[:8]
    trainer.labels = trainer.labels[:8]
    for _ in range(3):
        trainer.step(images)
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.step(images)
    finally:
        torch.cuda.set_sync_debug_mode("default")
