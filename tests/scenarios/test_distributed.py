"""Ranks as real processes: torch.distributed gives rank and world size, and a DDP loop runs over both paths."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop
from tests.support.loader_data import write_shards
from tests.support.processes import all_ended
from tests.support.ranks import run_ranks, start_rank

_RANK = """
import gc, json, sys
import torch.distributed.nn  # before the process group, which its default arguments would keep for ever
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop
from tests.support.whole_exit import left

rank, world_size, store, shards, states, steps, batch_size = json.loads(sys.argv[1])
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
loader = DataLoader(
    ShardDataset(shards, RandomResizedCrop(8), fields=("index",)), batch_size=batch_size, shuffle=True,
    num_workers=rank % 2
)
if states is not None:
    loader.load_state_dict(states)
model = DistributedDataParallel(torch.nn.Linear(3 * 8 * 8, 7))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
iterator = iter(loader)
seen = []
for _ in range(min(steps, len(iterator))):
    images, labels, index = next(iterator)
    loss = torch.nn.functional.cross_entropy(model(images.flatten(1).float() / 255), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen.append(index.tolist())
plain = DataLoader(
    torch.arange(20), batch_size=4, num_workers=1,
    sampler=torch.utils.data.DistributedSampler(range(20), world_size, rank, shuffle=False),
)
print(json.dumps({"seen": seen, "state": loader.state_dict(), "padded": loader.stats()["padded"],
                  "weights": float(model.module.weight.sum()), "plain": [b.tolist() for b in plain]}))
del model, optimizer, loss  # which hold the process group; its threads must end before the interpreter does
gc.collect()
distributed.destroy_process_group()
assert not left()
"""


def _run(
    folder: Path, shards: Path, world_size: int, state: dict[str, Any] | None, steps: int, batch_size: int
) -> list[dict[str, Any]]:
    store = folder / f"store-{len(list(folder.iterdir()))}"
    arguments = [[rank, world_size, str(store), str(shards), state, steps, batch_size] for rank in range(world_size)]
    return run_ranks(_RANK, arguments)


@pytest.mark.slow
def test_an_epoch_over_1_2_3_1_ranks_sees_every_sample_once(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 50)
    seen: list[int] = []
    padded: list[int] = []
    state: dict[str, Any] | None = None
    for world_size, steps, batch_size in ((1, 2, 4), (2, 2, 5), (3, 1, 4), (1, 1000, 3)):
        results = _run(tmp_path, shards, world_size, state, steps, batch_size)
        assert all(result["state"] == results[0]["state"] for result in results)
        assert len({result["weights"] for result in results}) == 1
        assert len({len(result["seen"]) for result in results}) == 1
        state = results[0]["state"]
        seen += [i for result in results for batch in result["seen"] for i in batch]
        padded += [i for result in results for i in result["padded"]]
        plain = [i for result in results for batch in result["plain"] for i in batch]
        assert set(plain) == set(range(20))
    for i in padded:
        seen.remove(i)
    assert sorted(seen) == list(range(50))


_LONE_RANK = """
import json, os, signal, sys
from torch import distributed
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop

rank, store, shards, note = json.loads(sys.argv[1])
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
loader = DataLoader(ShardDataset(shards, RandomResizedCrop(8), fields=("index",)), 4, shuffle=True, num_workers=2)
seen = []
try:
    for _, _, index in loader:
        distributed.all_reduce(torch.zeros(1))
        seen.append(index.tolist())
        with open(note, "w") as file:
            json.dump({"seen": seen, "workers": loader.worker_pids()}, file)
        if rank and len(seen) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
except RuntimeError:
    state = loader.state_dict()
    loader.close()
    print(json.dumps({"seen": seen, "state": state}), flush=True)
    os._exit(0)  # torch would wait for the rank that is dead
"""


@pytest.mark.slow
def test_the_rank_that_is_left_of_two_resumes_what_both_had_not_seen(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 50)
    ranks = []
    for rank in range(2):
        arguments = [rank, str(tmp_path / "store"), str(shards), str(tmp_path / f"note-{rank}")]
        ranks.append(start_rank("import torch\n" + _LONE_RANK, arguments))
    out, err = ranks[0].communicate()
    ranks[1].communicate()
    assert [rank.returncode for rank in ranks] == [0, -signal.SIGKILL], err
    left, dead = json.loads(out), json.loads((tmp_path / "note-1").read_text())
    assert all_ended(dead["workers"])
    # The rank that is left had taken a batch that it could not reduce: of both ranks that batch counts as seen.
    loader = DataLoader(ShardDataset(shards, RandomResizedCrop(8), fields=("index",)), 4, shuffle=True)
    loader.load_state_dict(left["state"])
    rest = [i for _, _, index in loader for i in index.tolist()]
    seen = [i for batch in left["seen"][:3] + dead["seen"] for i in batch]
    assert len(rest) == 50 - 4 * 8
    assert not set(rest) & set(seen)
    assert len(set(rest)) == len(rest)
