"""From measurements that are known to the verdict and the advice."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from feeder.tools.instrument.hooks import LoaderHooks
from feeder.tools.instrument.record import (
    TRAINER_DECODE,
    Fetch,
    LoaderRecord,
    NextCall,
    ProcessRecord,
    Sample,
)
from feeder.tools.profile.advice import Proposal
from feeder.tools.profile.analysis import analyse, render

MS = 1_000_000


def loader(
    waits_ms: list[float],
    step_ms: float,
    *,
    workers: int = 0,
    start_ms: float = 0,
    epoch: int = 0,
    trained: bool = True,
    made_ms: float = 0,
    **options: object,
) -> LoaderRecord:
    """A loader whose batches of 10 come after these waits, each followed by a step of that length."""
    record = LoaderRecord("train.py:9", "torch", workers, 10, True, False)
    for name, value in options.items():
        setattr(record, name, value)
    extend(record, waits_ms, step_ms, start_ms=start_ms, epoch=epoch, trained=trained, made_ms=made_ms)
    return record


def extend(
    record: LoaderRecord,
    waits_ms: list[float],
    step_ms: float,
    *,
    start_ms: float,
    epoch: int,
    trained: bool = True,
    made_ms: float = 0,
) -> float:
    record.made_ns.append((int(start_ms * MS), int((start_ms + made_ms) * MS)))
    now = start_ms + made_ms
    for at, wait in enumerate(waits_ms):
        record.batches.append(NextCall(int(now * MS), int((now + wait) * MS), 10, epoch, trained and at > 0))
        now += wait + step_ms
    record.batches.append(NextCall(int(now * MS), int(now * MS), 0, epoch, trained))
    return now


def process(*loaders: LoaderRecord, cores: float = 0, gpu: float | None = None) -> ProcessRecord:
    end = max((loader.batches[-1].got_ns for loader in loaders), default=MS)
    reading: dict[int, float | None] = {} if gpu is None else {0: gpu}
    samples = [Sample(at, cores / 2, cores / 2, reading) for at in range(MS, end + 1, max(1, end // 20))]
    return ProcessRecord(0, end, list(loaders), samples)


def fetches(count: int, total_ms: float, cpu: float, queued: float) -> list[Fetch]:
    """Batches that took so long in the data set, so much of it computing or queued, and a tenth more in collate."""
    dataset = int(total_ms * MS)
    return [Fetch(n * dataset, dataset, int(cpu * dataset), int(queued * dataset), dataset // 10) for n in range(count)]


def test_a_loop_that_makes_its_batches_itself_is_told_to_try_as_many_workers_as_its_step_needs() -> None:
    record = loader([30.0] * 21, 10, fetches=fetches(21, 27, 1.0, 0.0))
    found = analyse(process(record), cores=8)
    assert found.bound == "input"
    assert found.input_share == pytest.approx(0.75)
    assert found.images_s == pytest.approx(250)
    (advice,) = found.advice[:1]
    # Three workers make a batch of 29.7 ms in less than the step of 10 ms; no number makes 40 ms less than 10.
    assert (advice.title, advice.proposal) == ("num_workers=3", Proposal(3))
    assert advice.gain is None
    assert advice.expected() == "at most 4.00x: the step alone takes 10 ms of 40 ms"
    assert "Input-bound: 250 images/s in training, waiting for data 75%" in found.headline()


@pytest.mark.parametrize("validations", [1, 3])
def test_a_loader_that_trains_and_validates_is_judged_by_its_training(validations: int) -> None:
    record = loader([30.0] * 21, 10)
    end = record.batches[-1].got_ns / MS
    for epoch in range(1, 1 + validations):
        end = extend(record, [1.0] * 21, 100, start_ms=end, epoch=epoch, trained=False)
    found = analyse(process(record), cores=8)
    assert "Input-bound: 250 images/s in training, waiting for data 75%" in found.headline()
    assert (found.loaders[0].batches, found.loaders[0].epochs) == (20, 1)


def test_one_core_can_not_do_both_at_once() -> None:
    record = loader([30.0] * 21, 10, fetches=fetches(21, 27, 1.0, 0.0))
    assert [a.title for a in analyse(process(record), cores=1).advice] == [
        "Make each image cheaper: feeder shard, feeder.DataLoader"
    ]


def test_batches_that_wait_for_storage_want_more_workers_than_there_are_cores() -> None:
    record = loader([30.0] * 21, 10, fetches=fetches(21, 27, 0.1, 0.0))
    (advice,) = analyse(process(record), cores=2).advice
    # Three of them make a batch of 29.7 ms in less than the step of 10 ms, and take 3 ms of a core for it.
    assert advice.proposal == Proposal(3)


def test_a_loop_that_hardly_waits_is_compute_bound() -> None:
    found = analyse(process(loader([1.0] * 21, 99, workers=4)), cores=8)
    assert (found.bound, found.advice) == ("compute", [])
    assert found.input_share == pytest.approx(0.01)


def test_busy_workers_beside_free_cores() -> None:
    record = loader([30.0] * 21, 10, workers=2, fetches=fetches(21, 70, 1.0, 0.0))
    found = analyse(process(record, cores=3.0), cores=8)
    (advice,) = found.advice
    assert advice.proposal == Proposal(7)


def test_all_cores_taken_leave_cheaper_images() -> None:
    record = loader([30.0] * 21, 10, workers=8, fetches=fetches(21, 280, 0.6, 0.4))
    found = analyse(process(record, cores=8.0), cores=8)
    (advice,) = found.advice
    assert "feeder shard" in advice.title
    assert advice.most == pytest.approx(4.0)
    assert advice.proposal == Proposal(8, "shards")
    assert "60% computing, 40% waiting for a core, 0% for storage" in found.stage


@pytest.mark.parametrize("busy", [0.1, 0.9])
@pytest.mark.parametrize("step_ms", [0, 0.01])
def test_a_loop_that_does_nothing_with_its_batches_is_promised_no_factor(step_ms: float, busy: float) -> None:
    record = loader([30.0] * 21, step_ms, workers=8, fetches=fetches(21, 230 * busy, 1.0, 0.0))
    found = analyse(process(record, cores=8.0), cores=8)
    assert {advice.expected() for advice in found.advice} == {"no bound: the step takes hardly any time"}


def test_workers_that_wait_for_cores_that_others_have() -> None:
    record = loader([30.0] * 21, 10, workers=2, fetches=fetches(21, 70, 0.2, 0.8))
    (advice,) = analyse(process(record, cores=0.5), cores=8).advice
    assert advice.title.startswith("More cores")
    assert "wait for a core 80%" in advice.text


def test_workers_that_wait_for_storage() -> None:
    record = loader([30.0] * 21, 10, workers=4, fetches=fetches(21, 140, 0.1, 0.1))
    (advice,) = analyse(process(record, cores=0.5), cores=8).advice
    assert advice.proposal == Proposal(8)
    assert "wait for storage 80%" in advice.text


def test_idle_workers_and_a_waiting_loop() -> None:
    record = loader([30.0] * 21, 10, workers=4, fetches=fetches(21, 20, 1.0, 0.0))
    (advice,) = analyse(process(record, cores=0.5), cores=8).advice
    assert "prefetch_factor" in advice.title


@pytest.mark.parametrize("decode_ms", [0, 25])
def test_decoding_in_the_training_process_is_none_of_the_workers_time(decode_ms: float) -> None:
    """Workers are busy half the time; if what the caller decodes were theirs, they would seem busy throughout."""
    stages = {"read": int(21 * 40 * MS), TRAINER_DECODE: int(21 * decode_ms * MS)}
    record = loader([30.0] * 21, 10, workers=2, stage_ns=stages)
    found = analyse(process(record, cores=2), cores=8)
    assert found.loaders[0].workers_busy == pytest.approx(0.5, rel=0.05)
    (advice,) = found.advice
    if decode_ms:
        assert "Less to decode" in advice.title
        assert advice.most == pytest.approx(40 / (40 - 25 * 21 / 20), rel=0.01)
        assert advice.because == "the rest takes 14 ms a batch"
        assert "decode in the training process 38%" in found.stage
    else:
        assert "prefetch_factor" in advice.title


@pytest.mark.parametrize("in_trainer", [False, True])
def test_decoding_in_the_training_process_is_told_apart(in_trainer: bool, tmp_path: Path) -> None:
    class Loader:
        def stats(self) -> dict[str, Any]:
            stages = {name: {"total_ns": 3} for name in ("read", "decode", "consumer")}
            return {"stages": stages, "bottleneck": None} | ({"redone_images": 7} if in_trainer else {})

    meter, each, record = LoaderHooks(str(tmp_path)), Loader(), loader([30.0] * 3, 10)
    meter.records[each] = record
    meter.note_stats(each)
    assert record.stage_ns == {"read": 3, TRAINER_DECODE if in_trainer else "decode": 3}


@pytest.mark.parametrize(("wait_ms", "most"), [(30.0, 4.0), (0.1, 1.01)])
def test_a_feeder_dataset_without_the_fast_path_is_named_with_the_way_out(
    tmp_path: Path, wait_ms: float, most: float
) -> None:
    class Loader:
        def stats(self) -> dict[str, Any]:
            return {"stages": {}, "path": "generic", "path_reason": "batch_size is None: give batch_size"}

    meter, each, record = LoaderHooks(str(tmp_path)), Loader(), loader([wait_ms] * 21, 10, workers=8)
    meter.records[each] = record
    meter.note_stats(each)
    found = analyse(process(record), cores=8)
    (advice,) = [advice for advice in found.advice if advice.title == "feeder's fast path"]
    assert advice.text.endswith("batch_size is None: give batch_size.")
    assert advice.most == pytest.approx(most, rel=0.01)
    assert "give batch_size" in render(found, None, 200)


def test_a_dataset_that_feeder_takes_as_it_is_is_named_first() -> None:
    record = loader([30.0] * 21, 10, workers=8, convertible="ImageFolder")
    native, shards = analyse(process(record), cores=8).advice[-2:]
    assert native.title == "feeder.DataLoader(feeder.from_torch(dataset), ...)"
    assert native.text.startswith("This ImageFolder reads")
    assert [native.proposal, shards.proposal] == [Proposal(8, "files"), Proposal(8, "shards")]


@pytest.mark.parametrize(("cpu", "source"), [(0.9, "shards"), (0.1, None)])
def test_shards_of_files_that_storage_is_waited_for_are_not_tried(cpu: float, source: Literal["shards"] | None) -> None:
    record = loader([30.0] * 21, 10, fetches=fetches(21, 27, cpu, 0.0), convertible="ImageFolder")
    titles = {advice.title: advice for advice in analyse(process(record), cores=8).advice}
    shards = titles["Make each image cheaper: feeder shard, feeder.DataLoader"]
    assert shards.proposal == (None if source is None else Proposal(3, source))
    assert titles["feeder.DataLoader(feeder.from_torch(dataset), ...)"].proposal == Proposal(3, "files")


def test_the_starts_of_epochs_are_worth_persistent_workers() -> None:
    record = loader([1.0] * 10, 99, workers=4, made_ms=500)
    for epoch in range(1, 4):
        start = record.batches[-1].got_ns / MS
        extend(record, [501.0] + [1.0] * 9, 99, start_ms=start, epoch=epoch, made_ms=500)
    found = analyse(process(record), cores=8)
    assert found.main is not None
    assert found.main.epoch_start_s == pytest.approx(3.0, rel=0.01)
    (advice,) = found.advice  # neither more workers nor more batches ahead: but for the starts nothing waits
    assert (found.bound, advice.title) == ("input", "persistent_workers=True")
    assert advice.most == pytest.approx(found.main.total_s / (found.main.total_s - 3.0), rel=0.01)
    assert advice.because.startswith("the starts took 3.0 of ")
    kept = loader([1.0] * 10, 99, workers=4, persistent=True)
    extend(kept, [51.0] + [1.0] * 9, 99, start_ms=kept.batches[-1].got_ns / MS, epoch=1)
    assert analyse(process(kept), cores=8).advice == []


def test_the_gpu_sets_a_bound_to_what_waiting_costs() -> None:
    waits = loader([30.0] * 21, 10, workers=2)
    assert analyse(process(waits, gpu=0.4), 8).input_share == pytest.approx(0.6)
    assert analyse(process(waits, gpu=0.95), 8).bound == "compute"
    steps = loader([1.0] * 21, 99, workers=2)
    (advice,) = analyse(process(steps, gpu=0.5), 8).advice
    assert "Keep the GPU supplied" in advice.title
    assert advice.expected() == "at most 2.00x: the GPU is busy 50% already"


@pytest.mark.parametrize(
    ("threads", "busy", "is_named"),
    [(8, 8, True), (8, 5, True), (8, 4, False), (64, 5, False), (4, 8, False), (0, 8, False)],
)
def test_most_of_torchs_threads_must_compute_before_they_are_too_many(threads: int, busy: int, is_named: bool) -> None:
    record = process(loader([1.0] * 21, 99, workers=2))
    record.torch_threads = threads
    record.busy_threads = busy
    titles = [advice.title for advice in analyse(record, cores=4).advice]
    assert titles == ["OMP_NUM_THREADS=4, or torch.set_num_threads(4)"] * is_named


def test_evaluation_inside_a_step_is_not_part_of_the_step() -> None:
    train = loader([10.0] * 4, 100)
    evaluate = loader([10.0] * 4, 10, start_ms=130, trained=False)  # ends at 210, in the second step of 120 to 220
    evaluate.place = "train.py:20"
    found = analyse(process(train, evaluate), 8)
    assert [times.trains for times in found.loaders] == [True, False]
    assert found.main is found.loaders[0]
    assert found.loaders[0].step_s == pytest.approx((100 - 80 + 100 + 100) / 1e3, abs=1e-3)


@pytest.mark.parametrize(
    ("trained", "said"), [(0, "no backward() was seen"), (9, "in 9 of 20 batches backward() was seen")]
)
def test_an_evaluation_says_how_often_backward_was_seen(trained: int, said: str) -> None:
    record = loader([10.0] * 20, 10, trained=False)
    record.batches[1 : 1 + trained] = [call._replace(trained=True) for call in record.batches[1 : 1 + trained]]
    assert f" images/s in evaluation ({said}), waiting" in analyse(process(record), 8).headline()


def test_two_loaders_in_one_step_do_not_count_each_others_waits() -> None:
    first, second = loader([10.0] * 5, 70), loader([20.0] * 5, 60, start_ms=10)
    for times in analyse(process(first, second), 8).loaders:
        assert times.step_s / times.batches == pytest.approx(0.05, abs=0.006)


def test_loaders_one_after_another_have_steps_of_their_own() -> None:
    record = loader([30.0] * 21, 10)
    after = loader([30.0] * 21, 10, start_ms=1000)
    assert analyse(process(record, after), cores=8).input_share == pytest.approx(0.75, abs=0.01)


def test_the_first_batch_of_the_run_does_not_count() -> None:
    found = analyse(process(loader([5000.0] + [1.0] * 10, 99, workers=2)), 8)
    assert found.bound == "compute"


@pytest.mark.parametrize("loaders", [[], [loader([10.0], 5)], [loader([], 5)]])
def test_too_little_is_said(loaders: list[LoaderRecord]) -> None:
    found = analyse(process(*loaders), 8)
    assert found.bound is None
    assert "nothing to measure" in found.headline() or "too little" in found.headline()
    assert render(found, "absent").startswith("No loader")
