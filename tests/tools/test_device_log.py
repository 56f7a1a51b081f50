"""DeviceLog: the same scalars as ``.item()``, later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import feeder
from feeder import CsvWriter, DeviceLog

_VALUES = {
    "float32": lambda step: torch.tensor(step / 3),
    "bfloat16": lambda step: torch.tensor(step / 3, dtype=torch.bfloat16),
    "float64": lambda step: torch.tensor(step / 3, dtype=torch.float64),
    "int64": lambda step: torch.tensor([2**60 + step]),
    "bool": lambda step: torch.tensor(step % 2 == 0),
    "number": lambda step: 0.1 * step,
}


class Rows:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.closed = False

    def __call__(self, step: int, values: Mapping[str, Any]) -> None:
        self.rows.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("every", [1, 3, 10, 100])
def test_values_are_what_item_gives_at_every_step(every: int) -> None:
    sink, expected = Rows(), []
    with DeviceLog(sink, every=every) as log:
        for step in range(20, 43):
            values = {name: make(step) for name, make in _VALUES.items()}
            log.write(step, **values)
            row = {n: v.item() if isinstance(v, torch.Tensor) else v for n, v in values.items()}
            expected.append((step, row))
            for value in values.values():  # what becomes of a tensor afterwards must not matter
                if isinstance(value, torch.Tensor):
                    value.zero_()
    assert sink.rows == expected
    assert [[type(v) for v in row.values()] for _, row in sink.rows] == [
        [type(v) for v in row.values()] for _, row in expected
    ]
    assert [list(row) for _, row in sink.rows] == [list(_VALUES)] * 23
    assert sink.closed


def test_an_interval_is_handed_over_when_the_next_one_ends() -> None:
    sink = Rows()
    log = DeviceLog(sink, every=4)
    handed_over = []
    for step in range(13):
        log.write(step, loss=torch.tensor(float(step)))
        handed_over.append(len(sink.rows))
    assert handed_over == [0] * 7 + [4] * 4 + [8] * 2
    log.flush()
    assert [step for step, _ in sink.rows] == list(range(13))
    log.write(13, loss=torch.tensor(13.0))
    log.close()
    log.close()
    assert sink.rows[-1] == (13, {"loss": 13.0})


def test_the_graph_of_a_loss_is_not_kept() -> None:
    class Hook:
        """Lives as long as the graph that it hangs on."""

        def __call__(self, gradient: torch.Tensor) -> None:
            pass

    hook = Hook()
    hidden = 2 * torch.ones(1, requires_grad=True)
    hidden.register_hook(hook)
    loss = hidden.sum()
    alive = weakref.ref(hook)
    log = DeviceLog(sink := Rows())
    log.write(0, loss=loss)
    del hidden, loss, hook
    gc.collect()
    assert alive() is None
    log.close()
    assert sink.rows == [(0, {"loss": 2.0})]


def test_the_rest_is_handed_over_when_the_loop_fails() -> None:
    sink = Rows()

    def run() -> None:
        with DeviceLog(sink) as log:
            log.write(0, loss=torch.tensor(1.5))
            raise KeyError("a bug in the loop")

    with pytest.raises(KeyError):
        run()
    assert (sink.rows, sink.closed) == ([(0, {"loss": 1.5})], True)


def test_sinks_are_closed_when_one_of_them_fails(tmp_path: Path) -> None:
    def broken(step: int, values: Mapping[str, Any]) -> None:
        raise OSError("no space left")

    last = Rows()
    log = DeviceLog(broken, last)
    log.write(0, loss=torch.tensor(1.0))
    with pytest.raises(OSError, match="no space left"):
        log.close()
    assert last.closed


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": torch.ones(2), "rate": 0.1}, r"loss must have one element, got shape \(2,\)"),
        ({"loss": torch.tensor(1.0)}, r"expected the values \['loss', 'rate'\], got \['loss'\]"),
        ({"loss": torch.tensor(1), "rate": 0.1}, r"loss was a torch.float32 tensor.*is torch.int64 now"),
        ({"loss": 1.0, "rate": 0.1}, r"loss was a torch.float32 tensor.*is float now"),
    ],
)
def test_what_does_not_fit_the_ring_is_refused(values: dict[str, Any], message: str) -> None:
    log = DeviceLog()
    log.write(0, loss=torch.tensor(1.0), rate=0.1)
    with pytest.raises(feeder.ArgumentError, match=message):
        log.write(1, **values)


def test_bad_arguments_and_a_closed_log_are_refused() -> None:
    with pytest.raises(feeder.ArgumentError, match="every must be an integer of 1 or more"):
        DeviceLog(every=0)
    log = DeviceLog()
    log.close()
    with pytest.raises(feeder.ArgumentError, match="is closed"):
        log.write(0, loss=torch.tensor(1.0))


def test_csv_has_a_row_for_each_step_and_exact_values(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with DeviceLog(CsvWriter(path), every=2) as log:
        for step in range(3):
            log.write(step, loss=torch.tensor(step / 3, dtype=torch.float64), seen=torch.tensor(step))
    assert path.read_text().splitlines() == ["step,loss,seen", "0,0.0,0", f"1,{1 / 3},1", f"2,{2 / 3},2"]


def test_csv_goes_on_where_a_run_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n0,0.5\n1,0.25\n2,0.125\n3,0.0")
    with DeviceLog(CsvWriter(path, resume_at=2)) as log:
        log.write(2, loss=torch.tensor(7.0))
    assert path.read_text() == "step,loss\n0,0.5\n1,0.25\n2,7.0\n"
    with (
        pytest.raises(feeder.ArgumentError, match=r"has the columns \['step', 'loss'\]"),
        DeviceLog(CsvWriter(path, resume_at=3)) as log,
    ):
        log.write(3, accuracy=torch.tensor(7.0))
    CsvWriter(tmp_path / "new.csv", resume_at=5).close()
    assert (tmp_path / "new.csv").read_text() == ""
