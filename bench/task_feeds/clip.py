"""Images and captions, whose token ids the workers make."""

from __future__ import annotations

import functools
import io
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

import feeder
from bench.task_feeds.setting import OURS, Feed, Setting, checked, epochs
from feeder import fields
from feeder import transforms as T
from feeder.tools.bench.pillow import normalized, random_resized_crop
from feeder.tools.presets import MEAN, STD

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["PARTS", "crop_feeds", "feeds"]

PARTS = ("tokenizer",)
_TOKENS = 77
_VOCABULARY = 16_384
_WORDS = 20_000  # that captions are made of
_TRAINED_ON = 5_000  # captions
_START, _END, _PAD = "<start>", "<end>", "<pad>"


def feeds(setting: Setting) -> dict[str, Feed]:
    """Returns the rivals with the crops of open_clip, nearly whole images."""
    return _feeds(setting, (0.9, 1.0))


def crop_feeds(setting: Setting) -> dict[str, Feed]:
    """Returns the rivals with torchvision's crops of 8 % of the image and more."""
    return _feeds(setting, (0.08, 1.0))


def _captions(count: int, seed: int) -> list[str]:
    """Captions of 4 to 40 words, of which few are frequent and most are rare."""
    words_rng, rng = np.random.default_rng(0), np.random.default_rng([1, seed])
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = ["".join(words_rng.choice(letters, length)) for length in words_rng.integers(2, 10, _WORDS)]
    ranks = np.minimum(rng.zipf(1.3, (count, 40)) - 1, _WORDS - 1)
    lengths = np.clip(rng.lognormal(2.5, 0.5, count), 4, 40).astype(int)
    return [" ".join(words[rank] for rank in row[:length]) for row, length in zip(ranks, lengths, strict=True)]


def _tokenizer(setting: Setting) -> str:
    """The file of a byte-level BPE, as CLIP has one, trained on captions."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    path = setting.made / "tokenizer.json"
    if not path.exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        special = [_START, _END, _PAD]
        trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator(_captions(_TRAINED_ON, 1), trainer)
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{_START} $A {_END}", special_tokens=[(token, tokenizer.token_to_id(token)) for token in (_START, _END)]
        )
        tokenizer.save(str(path))
    return str(path)


def _opened(setting: Setting) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(_tokenizer(setting))
    tokenizer.enable_truncation(_TOKENS)
    tokenizer.enable_padding(length=_TOKENS, pad_id=tokenizer.token_to_id(_PAD), pad_token=_PAD)
    return tokenizer


def _shards(setting: Setting, encode: str) -> str:
    out = setting.made / f"captions-{encode}"
    if not out.exists():
        paths = setting.paths()
        captions = _captions(len(paths), 0)
        samples = (
            {"__key__": f"{i:06d}", "jpg": path.read_bytes(), "txt": caption}
            for i, (path, caption) in enumerate(zip(paths, captions, strict=True))
        )
        feeder.write_shards(samples, out, encode=encode, samples_per_shard=-(-len(paths) // 8))
    return str(out)


def _feeds(setting: Setting, scale: tuple[float, float]) -> dict[str, Feed]:
    size = setting.image_size

    def ours(encode: str) -> Generator[int]:
        values = [T.ToDtype("float32", scale=True), T.Normalize(MEAN, STD)]
        recipe = T.Compose([T.RandomResizedCrop(size, scale=scale), *values])
        tokens = fields.Tokens(_tokenizer(setting), max_length=_TOKENS)
        dataset = setting.dataset(_shards(setting, encode), recipe, labels=False, fields={"txt": tokens})
        for images, _, found in epochs(dataset, setting):
            yield _count("feeder", images, found["input_ids"], found["attention_mask"], size)

    def pillow() -> Generator[int]:
        import webdataset as wds

        tokenizer = _opened(setting)

        def decode(data: bytes) -> torch.Tensor:
            with Image.open(io.BytesIO(data)) as file:
                image = file.convert("RGB")
            image = image.crop(random_resized_crop(*image.size, scale)).resize((size, size), Image.Resampling.BILINEAR)
            return normalized(torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous())

        def tokenize(data: bytes) -> torch.Tensor:
            found = tokenizer.encode(data.decode())
            return torch.tensor([found.ids, found.attention_mask])

        tars = sorted(str(path) for path in setting.made.joinpath("captions-keep").glob("*.tar"))
        source = wds.WebDataset(tars, shardshuffle=False).map_dict(jpg=decode, txt=tokenize)
        batches = source.to_tuple("jpg", "txt").batched(setting.batch_size).repeat()
        for images, found in wds.WebLoader(batches, batch_size=None, num_workers=setting.workers):
            yield _count("webdataset", images, found[:, 0], found[:, 1], size)

    def alone() -> Generator[int]:
        tokenizer, captions = _opened(setting), _captions(1000, 0)
        while True:
            for caption in captions:
                tokenizer.encode(caption)
            yield len(captions)

    _shards(setting, "keep")
    feeds: dict[str, Feed] = {name: functools.partial(ours, encode) for name, encode in OURS.items()}
    return feeds | {"webdataset, Pillow": pillow, PARTS[0]: alone}


def _count(name: str, images: torch.Tensor, ids: Any, mask: Any, size: int) -> int:
    if ids.shape != (len(images), _TOKENS) or ids.shape != mask.shape or {ids.dtype, mask.dtype} != {torch.int64}:
        raise SystemExit(f"{name}: tokens of a batch are {ids.dtype} {list(ids.shape)}, {list(mask.shape)}")
    return checked(name, images, size, size)
