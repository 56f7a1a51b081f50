"""The CUDA backend, whose kernels a driver on the CPU runs: the CPU's pixels, and errors that name the way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from feeder import _native as native
from feeder import transforms as T
from feeder.decoders.cpu_decoder import CpuDecoder
from feeder.decoders.cuda import driver
from feeder.decoders.cuda.batch import PlannedImages, Uploaded, upload
from feeder.decoders.cuda.cuda_decoder import CudaDecoder, checked_device
from feeder.decoders.decoder import Decoder, View
from feeder.decoders.registry import available_decoders, get_decoder
from feeder.decoders.staged.staged import RowKind, Staged
from feeder.decoders.staged.trainer_decoder import LeftToCpu, Padding, StagedView
from feeder.errors import BackendError
from tests.support import conformance, cuda_driver, jpegs
from tests.support.conformance import MEAN, STD
from tests.support.cuda_checks import check_corpus, check_damaged, check_fixtures, decoder_on_gpu
from tests.support.cuda_driver import FakeDriver
from tests.support.dali_batches import finish
from tests.support.packed import packed

SIZE = (131, 170)  # of images: height, width
BASE = (T.RandomResizedCrop(40, scale=(0.2, 1.0)), T.RandomHorizontalFlip())
RECIPES: dict[str, tuple[T.Op, ...]] = {
    "uint8": BASE,
    "float32": (*BASE, T.ToDtype("float32"), T.Normalize(MEAN, STD)),
    "float16": (*BASE, T.Normalize(MEAN, STD), T.ToDtype("float16")),
    "bfloat16": (*BASE, T.Normalize(MEAN, STD), T.ToDtype("bfloat16")),
    "later ops": (*BASE, T.RandomErasing(1.0, value=9), T.Pad(2), T.Normalize(MEAN, STD)),
}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeDriver:
    return cuda_driver.install(monkeypatch, tmp_path)


def jpeg(kind: str = "4:2:0", seed: int = 0) -> bytes:
    return native.transcode(jpegs.jpeg(kind, SIZE[::-1], seed), keep_metadata=False, segment_px=32)


def damaged(data: bytes) -> bytes:
    """An image without the last bytes of its first segment, which only decoding shows."""
    at = data.index(b"\xff\xd0", jpegs.entropy_offset(data))
    return data[: at - 6] + data[at:]


def draw(recipe: T.Recipe, count: int, epoch: int = 0) -> T.Draws:
    return recipe.draw(5, epoch, np.arange(count), [SIZE] * count)


def run(decoder: Decoder, buffers: list[bytes], recipe: T.Recipe, epoch: int = 0) -> tuple[npt.NDArray[Any], list[Any]]:
    assert recipe.output_size is not None
    out = np.zeros((len(buffers), 3, *recipe.output_size), recipe.storage_dtype)
    draws = draw(recipe, len(buffers), epoch)
    return out, decoder.decode(buffers, np.ones(len(buffers), np.uint8), [View(recipe, draws, out)]).errors


def staged(decoder: CudaDecoder, buffers: list[bytes], recipe: T.Recipe, epoch: int = 0) -> Staged:
    batch, result = decoder.stager.stage(
        buffers, np.ones(len(buffers), np.uint8), [recipe], [draw(recipe, len(buffers), epoch)]
    )
    assert result.errors == [None] * len(buffers)
    return batch


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_it_conforms(check: Callable[[Decoder], None]) -> None:
    if check is conformance.check_exact:
        with pytest.raises(BackendError, match=r"has no fidelity 'exact'.*backend='cpu'"):
            get_decoder("cuda", fidelity="exact")
        return
    check(get_decoder("cuda"))


def test_drafts_are_fast_ones() -> None:
    recipe = T.Recipe.of([T.Resize((20, 20))])
    fast, draft = (run(get_decoder("cuda", fidelity=each), [jpeg()], recipe) for each in ("fast", "draft"))
    assert draft[1] == fast[1] == [None]
    np.testing.assert_array_equal(draft[0], fast[0])


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("order", [0, 1, 2], ids=["forward", "backward", "shuffled"])
def test_batches_of_all_kinds_are_those_of_the_cpu_backend(fake: FakeDriver, name: str, order: int) -> None:
    fake.describe(order=order)
    recipe = T.Recipe.of(RECIPES[name])
    buffers = [jpeg(kind, k) for k, kind in enumerate(("4:2:0", "4:4:4", "gray", "4:2:2", "rgb"))]
    buffers += [packed(data) for data in buffers] + [jpegs.jpeg(kind, SIZE[::-1]) for kind in ("progressive", "4:2:0")]
    decoder = CudaDecoder()
    found, errors = run(decoder, buffers, recipe)
    expected, none = run(CpuDecoder(), buffers, recipe)
    assert errors == none == [None] * len(buffers)
    if recipe.is_base_path:
        assert found.tobytes() == expected.tobytes()
    else:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert decoder.meters() == {"cuda_images": 11, "cpu_images": 1, "redone_images": 0}
    assert fake.launches == 5


@pytest.mark.parametrize(("box", "counts"), [((8, 16, 40, 48), (0, 1)), ((8, 16, 41, 48), (1, 0))])
def test_boxes_of_few_pixels_are_decoded_exactly_as_by_the_cpu_backend(
    box: tuple[int, int, int, int], counts: tuple[int, int]
) -> None:
    """Up to 1,024 pixels."""
    recipe, decoder = T.Recipe.of([T.Resize((40, 40))]), CudaDecoder()
    draws = replace(draw(recipe, 1), source_box=np.array([box], np.float64), support_box=np.array([box], np.int32))
    found, expected = np.zeros((2, 1, 3, 40, 40), np.uint8)
    for each, out in ((decoder, found), (CpuDecoder(), expected)):
        assert each.decode([jpeg()], np.ones(1, np.uint8), [View(recipe, draws, out)]).errors == [None]
    assert np.array_equal(found, expected)
    assert (decoder.cuda_images, decoder.cpu_images) == counts


def test_an_image_that_a_kernel_finds_damaged_gets_the_cpus_verdict() -> None:
    recipe = T.Recipe.of([T.Resize((40, 40))])
    wrong, good = damaged(jpeg()), jpeg(seed=1)
    decoder = CudaDecoder()
    images, late = finish(decoder, staged(decoder, [good, wrong], recipe), recipe, ())
    assert (late[0], type(late[1])) == (None, LeftToCpu)
    assert np.array_equal(images[0].numpy(), run(CpuDecoder(), [good], recipe)[0][0])
    found, errors = run(decoder, [good, wrong, good], recipe)
    expected, wanted = run(CpuDecoder(), [good, wrong, good], recipe)
    assert list(map(str, errors)) == list(map(str, wanted))
    assert [error is None for error in errors] == [True, False, True]
    assert np.array_equal(found[[0, 2]], expected[[0, 2]])
    assert decoder.redone_images == 2


def test_damage_anywhere_gets_the_cpus_verdict() -> None:
    check_damaged(CudaDecoder(), 40)


def test_fixtures_in_all_forms_are_decoded_as_by_the_cpu_backend() -> None:
    check_fixtures(CudaDecoder(), 4)


def test_damage_to_the_fuzz_corpus_gets_the_cpus_verdict() -> None:
    check_corpus(CudaDecoder(), 1)


def test_batches_are_started_ahead_and_finished_in_any_order_or_dropped(fake: FakeDriver) -> None:
    recipe, decoder = T.Recipe.of(BASE), CudaDecoder()
    buffers = [jpeg(seed=k) for k in range(3)]
    batches = [staged(decoder, buffers, recipe, epoch) for epoch in range(3)]
    expected = [run(CpuDecoder(), buffers, recipe, epoch)[0] for epoch in range(3)]
    assert [decoder.start(batch) for batch in batches] == [True, True, False]
    assert decoder.start(batches[1])  # nothing is started twice
    assert fake.launches == 2 * 3
    for number in (1, 0, 2):
        images, errors = finish(decoder, batches[number], recipe, ())
        assert errors == [None] * 3
        assert np.array_equal(images.numpy(), expected[number])
    assert decoder.start(batches[0])
    decoder.drop(batches[0])
    decoder.drop(batches[1])
    assert np.array_equal(finish(decoder, batches[0], recipe, ())[0].numpy(), expected[0])
    assert decoder.cuda_images == 12


def test_a_batch_that_the_gpu_has_no_memory_for_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    recipe, decoder = T.Recipe.of(BASE), CudaDecoder()
    batch = staged(decoder, [jpeg()], recipe)
    monkeypatch.setattr("feeder.decoders.cuda.cuda_decoder.PlannedImages", full)
    with pytest.raises(torch.OutOfMemoryError, match=r"no memory for 1 images, .* use a smaller batch_size"):
        decoder.start(batch)


def in_slots(staged: Staged, missing: int) -> Staged:
    """A batch as it comes out of a slot, where it lacks so many bytes of room for its payloads."""
    memory = np.zeros(staged.packed_bytes - missing, np.uint8)
    left_over = staged.pack(memory)
    assert bool(left_over) == (missing > 0)
    return Staged.unpack(memory, len(staged), left_over, staged.views)


def uploads(monkeypatch: pytest.MonkeyPatch) -> list[Uploaded]:
    """Copies to the device, from now on."""
    found: list[Uploaded] = []

    def noted(device: torch.device, plans: list[Any]) -> Uploaded:
        found.append(upload(device, plans))
        return found[-1]

    monkeypatch.setattr("feeder.decoders.cuda.cuda_decoder.upload", noted)
    return found


@pytest.mark.parametrize("missing", [0, 1])
def test_plans_of_all_views_and_parts_are_copied_once_as_they_lie_in_slots(
    monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """Behind pixels of an odd length, beside images that failed, and where the last payload of a part found no room."""
    sizes = (41, 24)
    recipes = [T.Recipe.of([T.RandomResizedCrop(size, scale=(0.2, 1.0)), T.RandomHorizontalFlip()]) for size in sizes]
    buffers = [jpegs.jpeg("progressive", SIZE[::-1]), jpeg(), b"", jpeg(seed=1), packed(jpeg(seed=2)), jpeg("gray")]
    count, bad = len(buffers), 2
    draws = [draw(recipe, count) for recipe in recipes]
    decoder, parts = CudaDecoder(), []
    for rows in (np.arange(3), np.arange(3, 6)):
        some, ones = [buffers[row] for row in rows.tolist()], np.ones(len(rows), np.uint8)
        batch, _ = decoder.stager.stage(some, ones, recipes, [each.take(rows) for each in draws])
        parts.append(in_slots(batch, missing))
    whole, copied = Staged.join(parts), uploads(monkeypatch)
    assert whole.rows["kind"][::2].tolist() == [RowKind.PIXELS, RowKind.PLAN, RowKind.FAILED, *[RowKind.PLAN] * 3]
    assert any(np.frombuffer(payload, np.uint8).ctypes.data % 4 for payload in whole.payloads if len(payload))
    images, errors = decoder.finish(whole, [StagedView(recipe, ()) for recipe in recipes])
    assert errors == [None] * count
    (one,) = copied
    assert len(one.plans) == 2 * 4
    assert (one.places % 4 == 0).all()
    assert len(native.upload_runs(one.plans)[1]) == (2 if missing == 0 else 4)
    for found, recipe in zip(images, recipes, strict=True):
        expected, errors = run(CpuDecoder(), buffers, recipe)
        assert [error is None for error in errors] == [row != bad for row in range(count)]
        good = np.arange(count) != bad
        assert np.array_equal(found.numpy()[good], expected[good])


BOXES = {"corner": (0, 0, 60, 50), "in it": (5, 5, 55, 42), "other": (110, 81, 170, 131), "few": (100, 90, 120, 112)}


@pytest.mark.parametrize(
    ("boxes", "owners", "of_the_plain_one"),
    [
        (("corner", "other", "whole", "few", "in it"), (0, 0, 0, 3, 0), (0, 0, 0, 3, 0)),
        (("corner", "other", "in it"), (0, 1, 0), (0, 0, 0)),
        (("few", "other"), (0, 1), (0, 1)),
    ],
    ids=["one holds the others", "far apart", "few pixels"],
)
def test_views_that_lie_close_together_are_decoded_once_and_have_the_cpus_pixels(
    fake: FakeDriver, boxes: tuple[str, ...], owners: tuple[int, ...], of_the_plain_one: tuple[int, ...]
) -> None:
    """A plain JPEG is decoded from its start on, and once where that can be."""
    fake.describe(order=2)
    recipe = T.Recipe.of([T.Resize((20, 24)), T.ToDtype("float16")])
    buffers = [jpeg(), packed(jpeg("4:4:4", 1)), jpeg("gray", 2), jpegs.jpeg("4:2:0", SIZE[::-1]), damaged(jpeg())]
    ones, views, plain, wrong = np.ones(len(buffers), np.uint8), len(boxes), 3, 4
    draws = []
    for name in boxes:
        box = np.array([BOXES.get(name, (0, 0, *SIZE[::-1]))] * len(buffers))
        drawn = draw(recipe, len(buffers))
        draws.append(replace(drawn, source_box=box.astype(np.float64), support_box=box.astype(np.int32)))
    decoder = CudaDecoder()
    batch, result = decoder.stager.stage(buffers, ones, [recipe] * views, draws)
    assert result.errors == [None] * len(buffers)
    for row in range(len(buffers)):
        own = of_the_plain_one if row == plain else owners
        assert (batch.owners[row * views :][:views] - row * views).tolist() == list(own)
    found, late = decoder.finish(in_slots(batch, 0), [StagedView(recipe, ())] * views)
    has_damage = "corner" in boxes
    assert [isinstance(error, LeftToCpu) for error in late] == [False] * wrong + [has_damage]
    assert decoder.redone_images == (owners.count(0) if has_damage else 0)
    for view, drawn in enumerate(draws):
        out = np.zeros((len(buffers), 3, 20, 24), np.float16)
        CpuDecoder().decode(buffers, ones, [View(recipe, drawn, out)])
        assert np.array_equal(found[view].numpy()[:wrong], out[:wrong])


def test_images_of_several_sizes_in_a_view_share_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, decoder, copied = T.Recipe.of([T.RandomShortestSize([30, 38])]), CudaDecoder(), uploads(monkeypatch)
    buffers, ones = [jpeg(seed=k) for k in range(6)], np.ones(6, np.uint8)
    draws = draw(recipe, 6)
    sizes = draws.output_size.tolist()
    batch, result = decoder.stager.stage(buffers, ones, [recipe], [draws])
    assert result.errors == [None] * 6
    padding = Padding(draws.output_size, (64, 64), 7)
    (images,), errors = decoder.finish(in_slots(batch, 0), [StagedView(recipe, (), padding=padding)])
    assert errors == [None] * 6
    assert (len({*map(tuple, sizes)}), len(copied)) == (2, 1)
    for row, (height, width) in enumerate(sizes):
        expected = np.zeros((1, 3, height, width), np.uint8)
        view = View(recipe, draws.take(np.array([row])), expected)
        assert CpuDecoder().decode([buffers[row]], ones[:1], [view]).errors == [None]
        assert np.array_equal(images[row, :, :height, :width].numpy(), expected[0])


@pytest.mark.parametrize("ends", ["dropped", "closed", "finished", "failed"])
def test_memory_of_a_batch_is_its_own_again_once_its_copies_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    waited: list[PlannedImages] = []
    faults = PlannedImages.faults

    def noted(planned: PlannedImages) -> Any:
        waited.append(planned)
        if ends == "failed" and len(waited) == 1:
            raise KeyboardInterrupt
        return faults(planned)

    monkeypatch.setattr(PlannedImages, "faults", noted)
    recipes, decoder = [T.Recipe.of(BASE), T.Recipe.of([T.Resize((20, 20))])], CudaDecoder()
    batch, _ = decoder.stager.stage([jpeg()], np.ones(1, np.uint8), recipes, [draw(recipe, 1) for recipe in recipes])
    views = [StagedView(recipe, ()) for recipe in recipes]
    assert decoder.start(batch)
    assert waited == []
    if ends == "dropped":
        decoder.drop(batch)
    elif ends == "closed":
        decoder.close()
    elif ends == "finished":
        decoder.finish(batch, views)
    else:
        with pytest.raises(KeyboardInterrupt):
            decoder.finish(batch, views)
    assert len(set(waited)) == 1
    waited.clear()
    decoder.drop(batch)
    assert waited == []


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"version": 12080}, r"driver 580 or newer, which is of CUDA 13.0, and this one is of CUDA 12.8.*update"),
        ({"capability": (7, 0)}, r"compute capability 7.5 or newer.*cuda:0 is of 7.0: use backend='dali' or 'cpu'"),
    ],
    ids=["driver", "GPU"],
)
def test_what_is_too_old_is_refused_by_name(fake: FakeDriver, described: dict[str, Any], message: str) -> None:
    fake.describe(**described)
    with pytest.raises(BackendError, match=message):
        get_decoder("cuda")
    assert fake.loaded == 0
    assert "cuda" not in available_decoders()
    assert get_decoder("auto").name == "cpu"


def test_what_is_missing_is_named_with_the_remedy(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(driver, "LIBRARY", "libcuda.so.absent")
        with pytest.raises(BackendError, match=r"there is none \(libcuda.so.absent.*install driver 580 or newer"):
            get_decoder("cuda")
    driver.fatbin_path().write_bytes(b"what nvcc did not make")
    with pytest.raises(BackendError, match=r"cuModuleLoadData failed with error 200, CUDA_ERROR_INVALID_IMAGE"):
        get_decoder("cuda")
    driver.fatbin_path().unlink()
    with pytest.raises(BackendError, match=r"was left out when this feeder was built.*nvcc 13 on the path"):
        get_decoder("cuda")


@pytest.mark.parametrize(
    ("code", "why"),
    [(209, "this build has no code for the GPU"), (222, "its PTX later than the driver: update the driver")],
)
def test_a_gpu_without_code_in_the_build_is_named_with_the_remedy(fake: FakeDriver, code: int, why: str) -> None:
    fake.refuse_loads(code)
    with pytest.raises(BackendError, match=rf"cuModuleLoadData failed with error {code}.*{why}\): use backend='dali'"):
        get_decoder("cuda")


def test_tests_on_a_gpu_fail_where_kernels_do_not_load_and_are_skipped_on_what_is_too_old(fake: FakeDriver) -> None:
    fake.refuse_loads(200)
    with pytest.raises((BackendError, pytest.skip.Exception)) as failed:
        decoder_on_gpu()
    assert failed.type is BackendError
    fake.describe(version=12080)
    with pytest.raises(pytest.skip.Exception, match="driver 580 or newer"):
        decoder_on_gpu()


def test_kernels_are_loaded_once_and_a_launch_that_fails_is_an_error(fake: FakeDriver) -> None:
    recipe = T.Recipe.of(BASE)
    CudaDecoder()
    decoder = CudaDecoder()
    assert fake.loaded == 1
    fake.refuse_launches(719)
    with pytest.raises(BackendError, match=r"cuLaunchKernel failed with error 719, CUDA_ERROR_LAUNCH_FAILED"):
        run(decoder, [jpeg()], recipe)
    fake.refuse_launches(0)
    assert run(decoder, [jpeg()], recipe)[1] == [None]


def test_options_that_it_lacks_are_refused() -> None:
    with pytest.raises(BackendError, match=r"'cuda' can't run Lambda: it is a function.*backend='cpu'"):
        get_decoder("cuda", T.Recipe.of([*BASE, T.Lambda(abs)]))


def test_a_device_without_a_gpu_is_refused() -> None:
    with pytest.raises(BackendError, match=r"wanted on 'cpu': set device='cuda', or use backend='cpu'"):
        checked_device("cpu")


def test_auto_never_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.decoders.registry.find_spec", lambda name: None)
    assert get_decoder("auto", device="cuda:0").name != "cuda"


def plan(buffers: list[bytes], **options: Any) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    count = len(buffers)
    height, width = SIZE
    boxes = np.array([[[0, 0, width, height]]] * count)
    plans, places, back = native.plan_images(
        buffers, boxes.astype(np.float64), boxes.astype(np.int32), np.zeros((count, 1), np.uint8),
        np.ones(count, np.uint8), np.array([SIZE] * count, np.int32), np.array([[[8, 9]]] * count, np.int32),
        **{"max_pixels": 1 << 20} | options,
    )  # fmt: skip
    assert back.tolist() == [[0]] * count
    return plans, places


def test_a_plan_is_left_out_for_what_the_kernels_or_the_host_refuse() -> None:
    buffers = [jpeg(), jpegs.jpeg("progressive", SIZE[::-1]), b"", jpeg("gray"), jpegs.jpeg("4:2:0", (64, 64))]
    plans, places = plan(buffers)
    assert (np.diff(places) > 0).tolist() == [True, False, False, True, False]
    assert len(plans) == places[-1]
    assert np.diff(plan(buffers, max_pixels=SIZE[0] * SIZE[1] - 1)[1]).tolist() == [0] * 5


def joined(plans: list[Any], places: npt.NDArray[np.int64], **options: list[int]) -> native.CudaBatch:
    count = len(plans)
    planes, bounds = options.get("planes", list(range(count))), options.get("bounds", [0, count])
    return native.CudaBatch(plans, places, np.array(planes, np.int64), np.array(bounds))


def test_bytes_that_are_no_plan_are_refused() -> None:
    plans, _ = plan([jpeg()])
    places = np.array([0, len(plans)])
    for wrong in (b"", bytes(plans[:-4]), bytes(plans[4:]), bytes(plans[:-40]) + bytes(40)):
        with pytest.raises(ValueError, match="entry 1 is no plan"):
            joined([plans, wrong], places)
    with pytest.raises(ValueError, match="at least one"):
        joined([], places[:0])
    with pytest.raises(ValueError, match="one entry per plan"):
        joined([plans], places)
    for planes in ([0, 0], [0, 2], [1, 1], [-1, 1]):
        with pytest.raises(ValueError, match=r"entry . is .*one of other planes"):
            joined([plans, plans], places, planes=planes)
    for bounds in ([0], [0, 1], [1, 2], [0, 3], [0, 2, 1, 2], [0, -1, 2]):
        with pytest.raises(ValueError, match=r"bounds must go from 0|are not of one output size"):
            joined([plans, plans], places, bounds=bounds)
    batch = joined([plans, plans], places)
    for size in (batch.tables_bytes - 1, 0):
        with pytest.raises(ValueError, match="tables_bytes, aligned to 16"):
            batch.write(np.zeros(size, np.uint8))
    batch.write(np.zeros(batch.tables_bytes, np.uint8))
    with pytest.raises(ValueError, match="written once"):
        batch.write(np.zeros(batch.tables_bytes, np.uint8))


def test_plans_beyond_4_gib_are_refused() -> None:
    plans, _ = plan([jpeg()])
    most = (1 << 32) - 1 - len(plans)
    assert joined([plans], np.array([most])).tables_bytes > 0
    for place in (most + 1, 1 << 32, 1 << 40, -4):
        with pytest.raises(ValueError, match=r"entry 0 is .* too large"):
            joined([plans], np.array([place]))


def test_plans_back_to_back_are_one_copy() -> None:
    memory = np.arange(1000, dtype=np.uint8)
    plans: list[Any] = [
        memory[1:5],
        memory[5:5],
        memory[5:105].data,
        memory[105:200],
        bytes(7),
        memory[300:301],
        memory[0:1],
        b"",
    ]
    places, runs, size_bytes = native.upload_runs(plans)
    assert [len(run) for run, _ in runs] == [199, 7, 1, 1]
    found = np.zeros(size_bytes, np.uint8)
    for run, place in runs:
        assert place % 4 == 0
        found[place : place + len(run)] = run
    for each, place in zip(plans, places.tolist(), strict=True):
        assert bytes(found[place : place + len(each)]) == bytes(each)
    places, runs, size_bytes = native.upload_runs([])
    assert (places.tolist(), runs, size_bytes) == ([], [], 0)


def test_arrays_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one entry per buffer"):
        plan([jpeg()], first_rows=np.zeros(2, np.int32))
