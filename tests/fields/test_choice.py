"""One entry of a list, drawn for each sample and epoch."""

from __future__ import annotations

import collections
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError
from feeder.fields import Array, Choice, Json, Lines, Text, Tokens
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop, Recipe, Resize
from tests.support.field_sets import members_set
from tests.support.tokenizer_files import WORDS, word_tokenizer

SAMPLES, CAPTIONS = 40, 5


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 samples with five captions each, as lines and in a JSON list."""
    members = []
    for i in range(SAMPLES):
        captions = [f"photo {k} of {i}" for k in range(CAPTIONS)]
        quoted = ", ".join(f'"{caption}"' for caption in captions)
        members.append({"txt": "\n \n".join(captions).encode(), "json": b'{"captions": [%s]}' % quoted.encode()})
    return members_set(tmp_path_factory.mktemp("captions"), members)


def _chosen(shards: Path, epochs: int = 1, **options: Any) -> list[dict[int, int]]:
    """For each epoch the number of the caption by sample."""
    dataset = ShardDataset(shards, RandomResizedCrop(8), fields={"index": None, "txt": Choice(Lines())})
    loader = DataLoader(dataset, batch_size=4, **{"shuffle": True, **options})
    found = []
    for _ in range(epochs):
        pairs = [(i, text) for _, _, index, texts in loader for i, text in zip(index.tolist(), texts, strict=True)]
        assert all(int(text.split()[3]) == i for i, text in pairs)
        found.append({i: int(text.split()[1]) for i, text in pairs})
    return found


def test_the_caption_is_a_function_of_seed_epoch_and_sample(shards: Path) -> None:
    epochs = _chosen(shards, 4)
    assert all(len(epoch) == SAMPLES for epoch in epochs)
    for a, b in itertools.combinations(epochs, 2):
        assert 0 < sum(a[i] == b[i] for i in a) < SAMPLES / 2
    used = collections.Counter(k for epoch in epochs for k in epoch.values())
    assert set(used) == set(range(CAPTIONS))
    assert min(used.values()) > 4 * SAMPLES / CAPTIONS / 2
    assert _chosen(shards, 4, num_workers=2, persistent_workers=True) == epochs
    assert _chosen(shards, 1, shuffle=False) == epochs[:1]
    assert _chosen(shards, 1, seed=1) != epochs[:1]
    ranks = [_chosen(shards, 2, rank=rank, world_size=2, seed=0) for rank in range(2)]
    assert [a | b for a, b in zip(*ranks, strict=True)] == epochs[:2]


def test_fields_of_a_sample_draw_the_same_entry(shards: Path, tmp_path: Path) -> None:
    tokens = Tokens(word_tokenizer(tmp_path / "t.json"), max_length=8, text=Choice(Json("captions")))
    dataset = ShardDataset(shards, Resize((8, 8)), fields={"txt": Choice(Lines()), "json": tokens})
    for _, _, texts, ids in DataLoader(dataset, batch_size=8, num_workers=1):
        for text, row in zip(texts, ids["input_ids"].tolist(), strict=True):
            assert WORDS[row[2]] == text.split()[1]


def test_a_sample_that_a_sampler_repeats_draws_anew(shards: Path) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)), fields={"txt": Choice(Lines())})
    ((_, _, texts),) = DataLoader(dataset, batch_size=20, sampler=[3] * 20)
    assert len(set(texts)) == CAPTIONS


def test_a_resumed_epoch_has_the_captions_of_an_unbroken_one(shards: Path) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)), fields={"txt": Choice(Lines())})
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), [batch[2] for batch in batches]
    other = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=1)
    other.load_state_dict(state)
    assert [batch[2] for batch in other] == rest


def test_torchs_random_state_rules_it_outside_feeders_loader(shards: Path) -> None:
    dataset = ShardDataset(shards, fields={"txt": Choice(Lines())})
    torch.manual_seed(0)
    drawn = [dataset[3][2] for _ in range(30)]
    assert len(set(drawn)) == CAPTIONS
    torch.manual_seed(0)
    assert [dataset[3][2] for _ in range(30)] == drawn


def test_what_is_no_list_names_its_sample(tmp_path: Path) -> None:
    shards = members_set(tmp_path, [{"txt": b"\n \n", "json": b'{"a": 1}'}, {}])
    for fields, reason in (
        ({"txt": Choice(Lines())}, "field 'txt': is an empty list, of which none can be drawn; optional=True"),
        ({"json": Choice(Json("a"), optional=True)}, "field 'json': expected a list to choose from, got 1"),
    ):
        with pytest.raises(DecodeError, match=f"sample '0000'.*{reason}"):
            ShardDataset(shards, fields=fields)[0]
    dataset = ShardDataset(shards, fields={"txt": Choice(Lines(), optional=True, fill="none")})
    assert dataset[0][2] == dataset[1][2] == "none"


def test_what_has_no_column_or_gives_no_list_is_refused(shards: Path) -> None:
    with pytest.raises(ArgumentError, match="field 'txt' is drawn for each epoch"):
        ShardDataset(shards, fields={"txt": Choice(Lines())}).column("txt")
    for kind in (Array((3,), "int64"), Text(optional=True)):
        with pytest.raises(ArgumentError, match="gives a list for each sample"):
            Choice(kind)


def test_draws_of_some_samples_have_their_choices() -> None:
    draws = Recipe.of(RandomResizedCrop(8)).draw(1, 2, range(9), [(8, 8)] * 9)
    assert draws.take([7, 2]).choices.tolist() == draws.choices[[7, 2]].tolist()
