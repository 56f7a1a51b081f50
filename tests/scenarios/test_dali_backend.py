"""The DALI backend in a loader: what a loader does with any backend, and the same pixels and errors."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.decoders.dali import dali_decoder as dali_backend
from feeder.errors import BackendError, DecodeError
from feeder.loader.dataloader import DataLoader
from feeder.loader.options import ToDevice
from feeder.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    CutMix,
    GaussianBlur,
    Lambda,
    MixUp,
    Normalize,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    Resize,
)
from tests.loader import test_bad_samples, test_loader, test_resume
from tests.loader.device import test_device_feed

# ruff: noqa: F401 -- collected here again, with this module's shards and the loader of the fixture below
from tests.loader.device.test_device_feed import (
    test_bad_sample_is_raised_in_its_turn,
    test_batches_on_the_cpu_are_the_same,
    test_workers_end_when_an_iterator_with_a_device_is_let_go,
)
from tests.loader.fast import test_pool, test_replacement, test_shutdown
from tests.loader.fast.test_pool import (
    test_a_bug_in_a_worker_is_raised_with_its_traceback,
    test_worker_that_cannot_start_says_why,
)
from tests.loader.fast.test_replacement import (
    test_killing_any_worker_at_any_step_changes_nothing,
    test_sample_that_kills_every_worker_ends_with_an_error_that_names_it,
)
from tests.loader.fast.test_shutdown import test_stopped_worker_does_not_hold_up_closing
from tests.loader.test_bad_samples import (
    test_a_bad_sample_that_a_sampler_repeats_is_named_each_time,
    test_bad_sample_raises_by_name_and_the_next_batch_follows,
    test_nothing_but_bad_samples_is_an_error_even_when_skipping,
    test_skipped_samples_have_the_same_substitutes_whatever_the_workers,
    test_unreadable_files_of_a_folder_are_skipped_too,
)
from tests.loader.test_loader import (
    test_an_explicit_sampler_replaces_order_and_rank_split,
    test_break_and_iterating_again,
    test_copied_loader_works,
    test_iterator_of_a_loader_that_is_gone,
    test_length_of_loader_and_iterator,
    test_ranks_take_equal_batches_and_share_the_epoch,
    test_same_pixels_and_order_whatever_the_workers,
    test_two_iterators_at_once,
    test_what_a_sampler_repeats_is_augmented_anew_each_time,
    test_what_comes_after_the_crop_is_drawn_anew_for_each_repeat_too,
    test_worker_init_fn_runs_in_every_worker,
)
from tests.loader.test_resume import (
    test_resume_with_an_explicit_sampler_skips_its_batches,
    test_resume_with_other_world_sizes_sees_every_sample_once,
)
from tests.scenarios import test_frameworks
from tests.support.batches import copied_epoch, same_batches
from tests.support.dali_loader import RECIPE, DaliLoader
from tests.support.loader_data import write_shards
from tests.support.warm_python import run_warm

pytest.importorskip("nvidia.dali", reason="DALI is not installed")


# What kernel 1 does not do comes before and after it.
NOISY = Compose(
    [
        RandomResizedCrop(20),
        RandomAffine(20, (0.1, 0.1), interpolation="bilinear"),
        ColorJitter(0.2, 0.2, 0.2, 0.1),
        GaussianBlur(3),
        RandomCrop(16, 2),
        Normalize([0.5] * 3, [0.25] * 3),
        RandomErasing(0.5, value="random"),
    ]
)


@pytest.fixture(autouse=True)
def _with_dali(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        test_bad_samples,
        test_device_feed,
        test_frameworks,
        test_loader,
        test_pool,
        test_replacement,
        test_resume,
        test_shutdown,
    ):
        monkeypatch.setattr(module, "DataLoader", DaliLoader)
        if hasattr(module, "write_shards"):
            monkeypatch.setattr(module, "write_shards", functools.partial(write_shards, jpegs=True))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 50, jpegs=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_pixels_are_the_other_backends_and_labels_and_fields_too(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index", "key"))
    loader = DaliLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)
    batches = copied_epoch(loader)
    assert [len(batch[0]) for batch in batches] == [8] * 6 + [2]
    for batch, other in zip(batches, DataLoader(dataset, batch_size=8, shuffle=True, backend="pillow"), strict=True):
        assert batch[0].dtype == torch.float32
        assert (batch[0] - other[0]).abs().mean() < 1.5 / 255 / 0.25
        assert torch.equal(batch[1], other[1])
        assert batch[3] == other[3]
    stats = loader.stats()
    assert (stats["backend"], stats["dali_images"], stats["cpu_images"]) == ("dali", 33, 17)


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_after_every_step(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "num_workers": workers}
    running, states = DaliLoader(dataset, **options), []
    epoch = []
    for batch in running:
        epoch.append(tuple(x.clone() for x in batch))
        states.append(running.state_dict())
    for step, state in enumerate(states[:-1], 1):
        resumed = DaliLoader(dataset, **options)
        resumed.load_state_dict(state)
        assert same_batches(copied_epoch(resumed), epoch[step:])


@pytest.mark.parametrize(("workers", "device"), [(0, None), (2, None), (2, "cpu")])
def test_an_image_that_only_the_decoder_finds_bad(tmp_path: Path, workers: int, device: str | None) -> None:
    options: dict[str, Any] = {"batch_size": 8, "num_workers": workers, "device": device}
    good = ShardDataset(write_shards(tmp_path / "good", 40, jpegs=True), RECIPE, fields=("index", "key"))
    cut = ShardDataset(write_shards(tmp_path / "cut", 40, jpegs=True, cut=(10, 17)), RECIPE, fields=("index", "key"))
    expected = copied_epoch(DaliLoader(good, **options))
    iterator = iter(DaliLoader(cut, **options))
    assert same_batches([next(iterator)], expected[:1])
    for key, shard in (("00000010", "shard-000000.tar"), ("00000017", "shard-000001.tar")):
        with pytest.raises(DecodeError, match=key) as caught:
            next(iterator)
        assert caught.value.shard == shard
    assert same_batches(copied_epoch(iterator), expected[3:])
    again = iter(DaliLoader(cut, sampler=[10, 10], **(options | {"batch_size": 1})))
    for _ in range(2):
        with pytest.raises(DecodeError, match="00000010"):
            next(again)

    loader = DaliLoader(cut, on_error="skip", **options)
    batches, stats = copied_epoch(loader), loader.stats()
    assert [len(batch[0]) for batch in batches] == [8] * 5
    assert [entry["key"] for entry in stats["substitutions"]] == ["00000010", "00000017"]
    assert (stats["skipped"], stats["dali_images"] > 0, stats["redone_images"] > 0) == (2, True, True)
    for entry in stats["substitutions"]:
        batch, row = batches[entry["position"] // 8], entry["position"] % 8
        substitute = entry["substitute"]
        assert substitute not in (10, 17)
        assert batch[1][row] == substitute % 7
        assert batch[2][row] == substitute
        assert batch[3][row] == f"{substitute:08d}"
        # The same pixels as those of the sample itself in its own place.
        assert torch.equal(batch[0][row], expected[substitute // 8][0][substitute % 8])
    for row in range(40):
        if row not in (10, 17):
            difference = batches[row // 8][0][row % 8] - expected[row // 8][0][row % 8]
            assert difference.abs().max() <= 1.01 / 255 / 0.25  # a level, as their batch may have been redone


@pytest.mark.parametrize("workers", [0, 2])
def test_held_batches_never_change(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE)
    loader = DaliLoader(dataset, batch_size=4, num_workers=workers, persistent_workers=workers > 0)
    held = list(loader)  # warns of nothing: they stand in memory of their own
    copies = [tuple(x.clone() for x in batch) for batch in held]
    for _ in range(2):
        for _ in loader:
            pass
    assert same_batches(held, copies)
    assert same_batches(held, copied_epoch(DaliLoader(dataset, batch_size=4)))


def test_two_loaders_at_once_train_and_validation(shards: Path) -> None:
    train = ShardDataset(shards, RECIPE)
    validation = ShardDataset(shards, Compose([Resize(20), CenterCrop(16)]))
    options: dict[str, Any] = {"batch_size": 8, "num_workers": 1}
    first, second = (
        copied_epoch(DaliLoader(train, shuffle=True, **options)),
        copied_epoch(DaliLoader(validation, **options)),
    )
    loaders = DaliLoader(train, shuffle=True, **options), DaliLoader(validation, **options)
    pairs = list(zip(*loaders, strict=True))
    assert same_batches([a for a, _ in pairs], first)
    assert same_batches([b for _, b in pairs], second)
    loaders[0].set_epoch(0)
    half = iter(loaders[0])
    assert same_batches([next(half) for _ in range(3)], first[:3])
    loaders[1].set_epoch(0)
    assert same_batches(copied_epoch(loaders[1]), second)
    loaders[1].close()
    assert same_batches(copied_epoch(half), first[3:])


@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_trains_and_validates_with_two_loaders(shards: Path, tmp_path: Path, workers: int) -> None:
    """Epoch after epoch, with a last partial batch, a sanity check that is broken off, and limited epochs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test_frameworks.test_lightning_sees_every_sample_of_every_epoch(shards, tmp_path, "shards", workers)


def test_lightning_resumes_in_the_middle_of_an_epoch(shards: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test_frameworks.test_lightning_resumes_in_the_middle_of_an_epoch(shards, tmp_path, "shards")


def test_closing_in_any_order_at_any_time_ends_well(shards: Path) -> None:
    loaders = [DaliLoader(ShardDataset(shards, RECIPE), batch_size=8, num_workers=k) for k in (0, 1)]
    iterators = [iter(loader) for loader in loaders]
    first = [next(iterator) for iterator in iterators]
    loaders[1].close()
    del iterators[0]
    loaders[0].close()
    loaders[0].close()
    with pytest.raises(StopIteration):
        next(iterators[0])
    for loader, batch in zip(loaders, first, strict=True):
        loader.set_epoch(0)
        assert same_batches([next(iter(loader))], [batch])


@pytest.mark.parametrize("recipe", [RECIPE, NOISY], ids=["in the same pass", "after the noise"])
@pytest.mark.parametrize("mix", [MixUp(), CutMix()], ids=str)
def test_batches_are_mixed_and_the_substitutes_too(tmp_path: Path, mix: Any, recipe: Compose) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 16, jpegs=True, cut=(10,)), recipe)
    options: dict[str, Any] = {"batch_size": 8, "on_error": "skip"}
    loader = DaliLoader(dataset, mix=mix, memory_format=torch.channels_last, device="cpu", **options)
    iterator = iter(DaliLoader(dataset, mix=mix, device="cpu", batch_size=8))
    whole = next(iterator)[0]
    with pytest.raises(DecodeError, match="00000010"):
        next(iterator)
    for step, (batch, (labels, others, weight)) in enumerate(loader):
        if step == 0:
            torch.testing.assert_close(batch, whole, atol=1e-5, rtol=0)
            plain = list(DaliLoader(dataset, **options))
        assert batch.is_contiguous(memory_format=torch.channels_last)
        drawn = mix.draw(0, 0, 8 * step, 16, 16)
        torch.testing.assert_close(batch, drawn.apply(plain[step][0]), atol=1e-5, rtol=0)
        assert torch.equal(labels, plain[step][1])
        assert torch.equal(others, labels.roll(1))
        assert weight == drawn.label_weight


def test_static_buffers_and_decoded_batches(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE)
    plain = list(DaliLoader(dataset, batch_size=8))
    loader = DaliLoader(dataset, batch_size=8, device=ToDevice("cpu", static_buffers=True), num_workers=1)
    addresses = set()
    for (batch, labels), (expected, wanted) in zip(loader, plain, strict=True):
        addresses.add(batch.data_ptr())
        assert torch.equal(batch, expected)
        assert torch.equal(labels, wanted)
    assert len(addresses) == 1


def test_a_script_without_a_main_guard_that_closes_nothing_ends_well(shards: Path) -> None:
    script = f"""
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop
loader = DataLoader(ShardDataset({str(shards)!r}, RandomResizedCrop(8)), 10, num_workers=2, backend="dali")
iterator = iter(loader)
print(len(next(iterator)[1]), len(next(iterator)[1]))
"""
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}  # of workers; DALI's dependencies have some
    result = run_warm(["-W", "ignore", "-c", script], capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, "10 10\n", "")


def test_a_state_says_that_the_run_decodes_on_a_gpu(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dali_backend.DaliDecoder] = []
    init = dali_backend.DaliDecoder.__init__

    def noted(self: dali_backend.DaliDecoder, **options: Any) -> None:
        init(self, **options)
        made.append(self)

    monkeypatch.setattr(dali_backend.DaliDecoder, "__init__", noted)
    loader = DataLoader(ShardDataset(shards, RECIPE), batch_size=8, backend="dali")
    assert "decoded_on" not in loader.state_dict()
    made[-1].device = torch.device("cuda", 0)
    assert loader.state_dict()["decoded_on"] == "cuda"


def test_what_dali_cant_run_is_refused_when_the_loader_is_built(shards: Path) -> None:
    for op, reason in ((Lambda(abs), "it is a function"), (RandomRotation(9, expand=True), "with expand=True")):
        recipe = Compose([RandomResizedCrop(16), op, CenterCrop(16)])
        with pytest.raises(BackendError, match=f"'dali' can't run {type(op).__name__}: {reason}.*backend='cpu'"):
            DataLoader(ShardDataset(shards, recipe), backend="dali")


@pytest.mark.parametrize(
    "ops",
    [
        [ColorJitter(0.4, 0.4, 0.4), Normalize([0.5] * 3, [0.25] * 3), RandomErasing(1.0)],
        [RandAugment(), *NOISY.transforms[1:], RandomHorizontalFlip()],
    ],
    ids=["one pass", "batched ops"],
)
def test_ops_after_the_crop_are_the_same_whatever_the_workers_and_after_a_resume(shards: Path, ops: list[Any]) -> None:
    dataset = ShardDataset(shards, Compose([RandomResizedCrop(16), RandomHorizontalFlip(), *ops]))
    expected = copied_epoch(DaliLoader(dataset, 8))
    running = DaliLoader(dataset, 8, num_workers=2)
    iterator = iter(running)
    assert same_batches([next(iterator)], expected[:1])
    resumed = DaliLoader(dataset, 16, num_workers=1)  # other images lie together in a batch
    resumed.load_state_dict(running.state_dict())
    rest = torch.cat([batch[0] for batch in resumed])
    assert torch.equal(rest, torch.cat([batch[0] for batch in expected[1:]]))
    assert same_batches(copied_epoch(iterator), expected[1:])


@pytest.mark.parametrize("other", ["cpu", "pillow"])
def test_ops_after_the_crop_give_the_other_backends_pixels(shards: Path, other: str) -> None:
    dataset = ShardDataset(shards, NOISY)
    loader, expected = (DataLoader(dataset, 10, backend=name) for name in ("dali", other))
    for (found, _), (wanted, _) in zip(loader, expected, strict=True):
        assert (found - wanted).abs().mean() < 1.5 / 255 / 0.25
    assert loader.stats()["dali_images"] == 33


def test_a_missing_dali_is_one_line_with_the_remedy(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(BackendError, match=r"pip install 'feeder-data\[dali-cuda13\]'") as caught:
        DataLoader(ShardDataset(shards, RECIPE), backend="dali")
    assert "\n" not in str(caught.value)


def test_auto_takes_dali_for_a_gpu_only_and_says_so(
    shards: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    dataset = ShardDataset(shards, RECIPE)
    assert DataLoader(dataset).stats()["backend"] == "cpu"
    assert DataLoader(dataset, device="cpu").stats()["backend"] == "cpu"
    assert "backend 'auto' is 'cpu'" in caplog.text
    asked = []

    def on_the_cpu(*, device: str, **options: Any) -> Any:
        asked.append(device)
        return made(**options)

    made = dali_backend.DaliDecoder
    monkeypatch.setattr(dali_backend, "DaliDecoder", on_the_cpu)
    monkeypatch.setattr("feeder.loader.options.ToDevice.target", lambda to_device: torch.device("cuda", 1))
    assert DataLoader(dataset, device="cuda:1").stats()["backend"] == "dali"
    assert asked == ["cuda:1"]
    assert "backend 'auto' is 'dali'" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_decoded_on_the_gpu_stay_as_they_are(tmp_path: Path, workers: int) -> None:
    """Against the CPU's pipeline, with a bad image, on a slowed stream, all of them held."""
    good = ShardDataset(write_shards(tmp_path / "good", 48, jpegs=True), RECIPE, fields=("index",))
    cut = ShardDataset(write_shards(tmp_path / "cut", 48, jpegs=True, cut=(10, 31)), RECIPE, fields=("index",))
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers, "on_error": "skip"}
    for dataset, bad in ((good, 0), (cut, 2)):
        expected = copied_epoch(DaliLoader(dataset, **options))
        loader = DaliLoader(dataset, device="cuda", memory_format=torch.channels_last, **options)
        held = []
        for batch in loader:
            torch.cuda._sleep(20_000_000)
            held.append((*batch, batch[0].clone()))
        assert loader.stats()["skipped"] == bad
        for (found, labels, index, copy), (wanted, *rest) in zip(held, expected, strict=True):
            assert found.is_cuda
            assert found.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(found, copy)
            assert torch.equal(labels.cpu(), rest[0])
            assert torch.equal(index.cpu(), rest[1])
            assert (found.cpu() - wanted).abs().mean() < 1.5 / 255 / 0.25
        loader.close()
