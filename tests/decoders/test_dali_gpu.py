"""The DALI backend on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from feeder import transforms as T
from feeder.decoders.dali.dali_decoder import DaliDecoder
from feeder.decoders.decoder import Decoder, View
from feeder.decoders.registry import Dali
from tests.support import conformance
from tests.support.conformance import MEAN, STD
from tests.support.dali_batches import BASE, HEIGHT, WIDTH, check_alike, draw, finish, jpeg, run, staged
from tests.support.loader_data import without_tables

pytest.importorskip("nvidia.dali", reason="DALI is not installed")


# The others make decoders of their own, without a device.
GPU_CHECKS = [
    conformance.check_bad_images_stay_alone,
    conformance.check_dtypes,
    conformance.check_fidelity,
    conformance.check_formats,
    conformance.check_further_ops,
    conformance.check_geometry,
    conformance.check_orientations,
    conformance.check_targets,
    conformance.check_views,
]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
class TestOnTheGpu:
    """Needs a CUDA device; run by bench/gpu.sh."""

    recipe = T.Recipe.of([*BASE.ops, T.Normalize(MEAN, STD), T.ToDtype("float16")])

    def batch(self, count: int = 32) -> list[bytes]:
        return [jpeg(k, subsampling="4:2:0") for k in range(count)]

    @pytest.mark.parametrize("check", GPU_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
    def test_the_device_conforms(self, check: Callable[[Decoder], None]) -> None:
        decoder = DaliDecoder(device="cuda")
        if check is conformance.check_formats:
            # nvJPEG makes one of 41 pixels up to two levels too blue.
            conformance.check_formats(decoder, tiny=(1.0, 1.0))
        else:
            check(decoder)
        if check is not conformance.check_bad_images_stay_alone:
            assert decoder.redone_images == 0

    def test_a_draft_repeats_chroma(self) -> None:
        """Levels differ at edges of colors, and little elsewhere."""
        buffers = self.batch()
        found, fast = (
            run(DaliDecoder(device="cuda", fidelity=each), buffers).astype(int) for each in ("draft", "fast")
        )
        difference = np.abs(found - fast)
        assert difference.max() > 2
        assert difference.mean() < 2

    def test_pixels_are_those_of_the_cpu_pipeline(self) -> None:
        buffers = self.batch()
        decoder = DaliDecoder(device="cuda")
        found, expected = (run(each, buffers).astype(int) for each in (decoder, DaliDecoder()))
        check_alike(found, expected)
        assert (decoder.dali_images, decoder.redone_images) == (len(buffers), 0)

    def test_a_batch_that_dali_fails_on_is_redone_on_the_cpu(self) -> None:
        good = self.batch(8)
        decoder = DaliDecoder(device="cuda")
        alone = run(decoder, good)
        buffers = [*good, without_tables(good[0])]
        draws = draw(BASE, 8).take(np.array([*range(8), 0]))
        out = np.zeros((9, 3, 48, 48), np.uint8)
        errors = decoder.decode(buffers, np.ones(9, np.uint8), [View(BASE, draws, out)]).errors
        assert [error is None for error in errors] == [True] * 8 + [False]
        check_alike(out[:8], alone)
        check_alike(run(decoder, good), alone)  # by a pipeline that was built anew
        assert (decoder.dali_images, decoder.redone_images) == (16, 9)

    def test_held_batches_stay_as_they_are_on_several_streams(self) -> None:
        """200 batches on four streams against the CPU: some hardware decoders are known to have ignored streams.

        Some streams lag behind, so that DALI's memory is read when later batches have long been decoded.
        """
        buffers = self.batch()
        decoder = DaliDecoder(device="cuda")
        streams = [torch.cuda.Stream() for _ in range(4)]
        expected = {}
        kept: list[tuple[int, torch.Tensor]] = []
        for iteration in range(200):
            epoch = iteration % 8
            draws = draw(self.recipe, len(buffers), epoch)
            if epoch not in expected:
                expected[epoch] = torch.from_numpy(run(DaliDecoder(), buffers, self.recipe, epoch).astype(np.float32))
            with torch.cuda.stream(streams[iteration % 4]):
                if iteration % 3 == 0:
                    torch.cuda._sleep(50_000_000)
                images, errors = finish(
                    decoder, staged(decoder, buffers, self.recipe, draws), self.recipe, (), channels_last=True
                )
            assert errors == [None] * len(buffers)
            kept = [*kept[-15:], (epoch, images)]
            if iteration % 16 == 15:
                torch.cuda.synchronize()
                for number, held in kept:
                    difference = (held.float().cpu() - expected[number]).abs() / (1 / 255 / 0.225)
                    assert difference.mean() <= 0.7, iteration
                    assert difference.flatten().quantile(0.999) <= 9, iteration
        assert (decoder.dali_images, decoder.redone_images) == (200 * len(buffers), 0)

    def test_a_batch_asked_for_before_its_turn_has_those_before_it_made_on_its_stream(self) -> None:
        buffers = self.batch()
        decoder, plain = DaliDecoder(device="cuda"), DaliDecoder(device="cuda")
        draws = [draw(self.recipe, len(buffers), epoch) for epoch in range(6)]
        batches = [staged(decoder, buffers, self.recipe, each) for each in draws]
        expected = [finish(plain, batch, self.recipe, ())[0].cpu() for batch in batches]
        early, late = torch.cuda.Stream(), torch.cuda.Stream()
        found = {}
        for number in range(0, 6, 2):
            assert [decoder.start(batch) for batch in batches[number : number + 2]] == [True, True]
            with torch.cuda.stream(late):
                torch.cuda._sleep(100_000_000)
                found[number + 1], errors = finish(decoder, batches[number + 1], self.recipe, ())
                assert errors == [None] * len(buffers)
            with torch.cuda.stream(early):  # it was resized on the late stream
                found[number], errors = finish(decoder, batches[number], self.recipe, ())
                assert errors == [None] * len(buffers)
        torch.cuda.synchronize()
        assert [torch.equal(found[number].cpu(), wanted) for number, wanted in enumerate(expected)] == [True] * 6

    def test_a_memory_limit_holds_on_a_stream_that_lags_behind(self) -> None:
        buffers, limit = self.batch(), 70 * 3 * HEIGHT * WIDTH
        decoder, plain = DaliDecoder(device="cuda", options=Dali(memory_limit_bytes=limit)), DaliDecoder(device="cuda")
        draws = [draw(self.recipe, len(buffers), epoch) for epoch in range(6)]
        batches = [staged(decoder, buffers, self.recipe, each) for each in draws]
        expected = [finish(plain, batch, self.recipe, ())[0].cpu() for batch in batches]
        found = []
        assert [decoder.start(batch) for batch in batches[:3]] == [True, True, False]
        for number, batch in enumerate(batches):
            torch.cuda._sleep(50_000_000)
            images, errors = finish(decoder, batch, self.recipe, ())
            assert errors == [None] * len(buffers)
            found.append(images)
            assert decoder._queue._borrowed.size_bytes <= limit
            for other in batches[number + 1 : number + 3]:
                decoder.start(other)
        for images, wanted in zip(found, expected, strict=True):
            assert torch.equal(images.cpu(), wanted)
        assert (decoder.dali_images, decoder.redone_images) == (6 * len(buffers), 0)

    def test_memory_on_the_gpu_stays_flat(self) -> None:
        decoder, buffers = DaliDecoder(device="cuda"), self.batch()
        free = []
        for epoch in range(60):
            draws = draw(self.recipe, len(buffers), epoch)
            finish(decoder, staged(decoder, buffers, self.recipe, draws), self.recipe, ())
            torch.cuda.synchronize()
            free.append(torch.cuda.mem_get_info()[0])
        assert free[19] - free[59] <= 8 << 20
        assert (decoder.dali_images, decoder.redone_images) == (60 * len(buffers), 0)
