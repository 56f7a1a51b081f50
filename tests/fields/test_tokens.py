"""Texts as a tokenizer's ids."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError, FormatError
from feeder.fields import Int, Json, Text, Tokens
from feeder.loader.dataloader import DataLoader
from feeder.transforms import Resize
from tests.support import PYTHON_PATH
from tests.support.field_sets import members_set
from tests.support.tokenizer_files import WORDS, byte_tokenizer, word_tokenizer

TEXTS = ["a cat", "", "a photo of a dog of a cat", "a bird", "dog " * 50, "photo of 7"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    members = [{"txt": text.encode(), "json": b'{"caption": "dog %d"}' % i} for i, text in enumerate(TEXTS)]
    return members_set(tmp_path_factory.mktemp("texts"), members)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return word_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def _batch(shards: Path, kind: Any, workers: int = 0, name: str = "txt") -> dict[str, torch.Tensor]:
    dataset = ShardDataset(shards, Resize((8, 8)), fields={name: kind})
    ((_, _, tokens),) = DataLoader(dataset, batch_size=len(TEXTS), num_workers=workers)
    assert isinstance(tokens, dict)
    return tokens


def _words(ids: torch.Tensor) -> list[str]:
    return [" ".join(WORDS[i] for i in row) for row in ids.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_has_ids_and_mask_of_fixed_length(shards: Path, file: Path, workers: int) -> None:
    tokens = _batch(shards, Tokens(file, max_length=6), workers)
    assert list(tokens) == ["input_ids", "attention_mask"]
    assert _words(tokens["input_ids"]) == [
        "[BOS] a cat [EOS] [PAD] [PAD]",
        "[BOS] [EOS] [PAD] [PAD] [PAD] [PAD]",
        "[BOS] a photo of a [EOS]",
        "[BOS] a [UNK] [EOS] [PAD] [PAD]",
        "[BOS] dog dog dog dog [EOS]",
        "[BOS] photo of 7 [EOS] [PAD]",
    ]
    assert torch.equal(tokens["attention_mask"], (tokens["input_ids"] != WORDS.index("[PAD]")).long())
    assert tokens["attention_mask"].dtype == tokens["input_ids"].dtype == torch.int64
    own = ShardDataset(shards, fields={"txt": Tokens(file, max_length=6)})[3][2]
    assert all(torch.equal(own[name], tokens[name][3]) for name in tokens)


@pytest.mark.parametrize(
    ("padding", "direction"),
    [(None, "left"), ({"direction": "left", "pad_id": 9, "pad_token": "0", "length": 50}, "right")],
)
def test_sides_and_the_pad_are_those_of_the_file(
    shards: Path, tmp_path: Path, padding: dict[str, Any] | None, direction: str
) -> None:
    file = word_tokenizer(tmp_path / "own.json", padding=padding, direction=direction)
    found = _batch(shards, Tokens(file, max_length=6))
    whole = Tokenizer.from_file(str(file))
    whole.enable_truncation(6, direction=direction)
    whole.enable_padding(**{"pad_id": 1, "direction": "right", **(padding or {}), "length": 6})
    expected = [whole.encode(text) for text in TEXTS]
    assert found["input_ids"].tolist() == [each.ids for each in expected]
    assert found["attention_mask"].tolist() == [each.attention_mask for each in expected]


def test_arguments_rule_the_pad_the_special_tokens_and_the_text(shards: Path, file: Path) -> None:
    kind = Tokens(file, max_length=3, pad_id=0, add_special_tokens=False, text=Json("caption"))
    tokens = _batch(shards, kind, name="json")
    assert _words(tokens["input_ids"]) == [f"dog {i} [UNK]" for i in range(len(TEXTS))]
    assert tokens["attention_mask"].tolist() == [[1, 1, 0]] * len(TEXTS)


def test_a_missing_text_is_an_error_or_the_fill(tmp_path: Path, file: Path) -> None:
    shards = members_set(tmp_path, [{"txt": b"cat"}, {}])
    with pytest.raises(DecodeError, match=r"sample '0001'.*field 'txt': the sample has no such member"):
        ShardDataset(shards, fields={"txt": Tokens(file, max_length=4)})[1]
    for fill, expected in ((None, "[BOS] [EOS] [PAD] [PAD]"), ("dog", "[BOS] dog [EOS] [PAD]")):
        dataset = ShardDataset(shards, fields={"txt": Tokens(file, max_length=4, optional=True, fill=fill)})
        assert _words(dataset[1][2]["input_ids"][None]) == [expected]


def test_a_text_that_is_none_names_its_sample(tmp_path: Path, file: Path) -> None:
    shards = members_set(tmp_path, [{"json": b'{"caption": 3}'}])
    dataset = ShardDataset(shards, fields={"json": Tokens(file, max_length=4, text=Json("caption"))})
    with pytest.raises(DecodeError, match=r"sample '0000'.*field 'json': expected text, got 3"):
        dataset[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_was_changed_is_an_error(shards: Path, tmp_path: Path, workers: int) -> None:
    file = word_tokenizer(tmp_path / "tokenizer.json")
    dataset = ShardDataset(shards, Resize((8, 8)), fields={"txt": Tokens(file, max_length=4)})
    file.write_text(file.read_text().replace("cat", "cow"))
    with pytest.raises(FormatError, match=r"tokenizer.json: was changed while it was in use"):
        next(iter(DataLoader(dataset, batch_size=2, num_workers=workers, on_error="skip")))
    file.unlink()
    with pytest.raises(FormatError, match=r"tokenizer.json: can't be read any more: No such file"):
        next(iter(DataLoader(dataset, batch_size=2, num_workers=workers)))


def test_equal_kinds_are_equal_and_travel(file: Path, tmp_path: Path) -> None:
    kind = Tokens(file, max_length=6)
    assert pickle.loads(pickle.dumps(kind)) == kind == Tokens(str(file), max_length=6)
    assert len(pickle.dumps(kind)) < 1000
    other = word_tokenizer(tmp_path / "other.json", direction="left")
    assert Tokens(other, max_length=6) != kind
    before = Tokens(other, max_length=6)
    word_tokenizer(other)
    assert Tokens(other, max_length=6) != before


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda file: Tokens(file.parent / "none.json", max_length=6), "none.json: expected .* No such file"),
        (lambda file: Tokens(Path(__file__), max_length=6), "test_tokens.py: expected a tokenizer's JSON"),
        (lambda file: Tokens(Tokenizer.from_file(str(file)), max_length=6), "the path .* save_pretrained"),  # type: ignore[arg-type]
        (lambda file: Tokens(file, max_length=2), "no place beside the 2 special tokens"),
        (lambda file: Tokens(file, max_length=6.5), "max_length=6.5. must be an integer"),  # type: ignore[arg-type]
        (lambda file: Tokens(file, max_length=6, pad_id=-1), "pad_id=-1. must be an integer from 0"),
        (lambda file: Tokens(file, max_length=6, text=Int()), "gives the text of each sample"),
        (lambda file: Tokens(file, max_length=6, text=Text(optional=True)), "gives the text of each sample"),
    ],
)
def test_what_can_not_be_is_refused_when_the_kind_is_made(file: Path, make: Any, reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        make(file)


def test_without_a_known_pad_one_is_asked_for(file: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.json"
    bare.write_text(file.read_text().replace("[PAD]", "nothing"))
    with pytest.raises(ArgumentError, match="give Tokens a pad_id="):
        Tokens(bare, max_length=6)
    assert Tokens(bare, max_length=6, pad_id=0).pad_id == 0


def test_without_the_library_the_error_says_how_to_install_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ArgumentError, match=r"pip install 'feeder-data\[tokenizers\]'"):
        Tokens(file, max_length=6)


def _mapped(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_workers_alone_import_the_library_and_not_torch(shards: Path, file: Path) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)), fields={"txt": Tokens(file, max_length=6)})
    batches = iter(DataLoader(dataset, batch_size=1, num_workers=1))
    next(batches)
    servers = [pid for pid in _children(os.getpid()) if _children(pid)]
    assert not any(_mapped(server, "tokenizers") for server in servers)
    workers = [worker for server in servers for worker in _children(server) if _mapped(worker, "tokenizers")]
    assert len(workers) == 1
    assert not _mapped(workers[0], "libtorch")
    del batches


_SCRIPT = """
import os, sys
from pathlib import Path
from feeder.fields import Tokens
kind = Tokens(sys.argv[1], max_length=6)
before = len(os.listdir("/proc/self/task"))
for _ in range(50):
    kind.parse(b"a cat of a dog " * 1000)
print(before, len(os.listdir("/proc/self/task")), "torch" in sys.modules)
"""


@pytest.mark.parametrize("write", [word_tokenizer, byte_tokenizer])
def test_encoding_starts_no_threads(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    env = {**os.environ, "TOKENIZERS_PARALLELISM": "true", "PYTHONPATH": PYTHON_PATH}
    command = [sys.executable, "-c", _SCRIPT, str(write(tmp_path / "tokenizer.json"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    before, after, has_torch = done.stdout.split()
    assert before == after
    assert has_torch == "False"


def test_forked_workers_make_tokens_with_a_byte_level_tokenizer(shards: Path, tmp_path: Path) -> None:
    path = byte_tokenizer(tmp_path / "tokenizer.json")
    whole = Tokenizer.from_file(str(path))
    whole.enable_truncation(9)
    whole.enable_padding(length=9)
    # A lambda can't be pickled, so that workers are forked from this process, which has made tokens itself before.
    fields: dict[str, Any] = {"txt": Tokens(path, max_length=9), "json": lambda data: len(data)}
    dataset = ShardDataset(shards, Resize((8, 8)), fields=fields)
    first = dataset[0]
    for _, _, tokens, lengths in DataLoader(dataset, batch_size=len(TEXTS), num_workers=2):
        assert tokens["input_ids"].tolist() == [whole.encode(text).ids for text in TEXTS]
        assert lengths == [first[3]] * len(TEXTS)
