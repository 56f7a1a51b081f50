from __future__ import annotations

import os
from pathlib import Path

import pytest

from feeder.system.cores import Cores, MemoryLimit, available_bytes, cores, local_world_size, memory_limit

GIB = 1 << 30
AFFINITY = len(os.sched_getaffinity(0))


def machine(root: Path, groups: str, mounts: list[str], files: dict[str, str]) -> str:
    """A file tree with the kernel's files in it."""
    texts = {"proc/self/cgroup": groups, "proc/self/mountinfo": "\n".join(mounts) + "\n", **files}
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def mount(point: str, kind: str, options: str = "rw", top: str = "/") -> str:
    return f"30 23 0:28 {top} {point} rw,relatime shared:9 - {kind} cgroup {options}"


def test_version_2_quota_of_any_group_around_counts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/job/step\n",
        [mount("/sys/fs/cgroup", "cgroup2")],
        {
            "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
            "sys/fs/cgroup/job/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/job/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file {GIB}\n",
        },
    )
    found = cores(root, {})
    assert found.quota == 1.5
    assert found.usable == 1
    assert memory_limit(root) == MemoryLimit(4 * GIB, GIB)
    assert MemoryLimit(4 * GIB, GIB).available_bytes == 3 * GIB


def test_version_1_in_a_container_whose_mount_starts_at_its_own_group(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n",
        [
            mount("/sys/fs/cgroup/cpu", "cgroup", "rw,cpu,cpuacct", top="/docker/abc"),
            mount("/sys/fs/cgroup/memory", "cgroup", "rw,memory", top="/docker/abc"),
        ],
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 4}\n",
        },
    )
    assert cores(root, {}).quota == 2.5
    assert memory_limit(root) == MemoryLimit(GIB, GIB - GIB // 4)


@pytest.mark.parametrize("limit", ["-1", "9223372036854771712", "nonsense", ""])
def test_no_limit_is_none(tmp_path: Path, limit: str) -> None:
    root = machine(
        tmp_path,
        "4:memory:/a\n2:cpu:/a\n",
        [mount("/sys/fs/cgroup/cpu", "cgroup", "rw,cpu"), mount("/sys/fs/cgroup/memory", "cgroup", "rw,memory")],
        {
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": limit,
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": limit,
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1",
        },
    )
    if not limit.isdecimal():
        assert cores(root, {}).quota is None
    assert memory_limit(root) is None


def test_a_system_without_control_groups_or_proc(tmp_path: Path) -> None:
    found = cores(str(tmp_path), {})
    assert (found.affinity, found.quota, found.slurm) == (AFFINITY, None, None)
    assert memory_limit(str(tmp_path)) is None


def test_the_least_counts_and_is_named() -> None:
    assert Cores(64, 64).usable == 64
    assert Cores(64, 64).describe() == "64 cores"
    assert Cores(64, 8).describe() == "8 of 64 cores (affinity)"
    assert Cores(64, 64, quota=4.7).describe() == "4 of 64 cores (control group quota)"
    assert Cores(64, 64, quota=0.5).usable == 1
    assert Cores(64, 64, slurm=6).describe() == "6 of 64 cores (SLURM)"
    assert Cores(1, 1).describe() == "1 core"


def test_slurm_counts_inside_a_job_only(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert cores(root, {"SLURM_CPUS_PER_TASK": "3"}).slurm is None
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "12"}
    assert cores(root, job).slurm == 12
    assert cores(root, {**job, "SLURM_CPUS_PER_TASK": "3"}).slurm == 3
    assert cores(root, {**job, "SLURM_CPUS_PER_TASK": "1"}).slurm == 1
    assert cores(root, {**job, "SLURM_CPUS_ON_NODE": "12(x2)"}).slurm is None


def test_ranks_that_share_the_cores() -> None:
    task = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_NTASKS_PER_NODE": "4"}
    assert local_world_size({}) == 1
    assert local_world_size({"LOCAL_WORLD_SIZE": "8"}) == 8
    assert local_world_size({"LOCAL_WORLD_SIZE": "none"}) == 1
    assert local_world_size(task) == 4
    assert local_world_size({**task, "SLURM_CPUS_PER_TASK": "3"}) == 1
    assert local_world_size({**task, "SLURM_CPUS_PER_TASK": "3", "LOCAL_WORLD_SIZE": "2"}) == 2


def test_batches_get_what_the_control_group_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.system.cores.memory_limit", lambda: MemoryLimit(5 << 20, 2 << 20))
    assert available_bytes() == 3 << 20


def test_memory_is_known_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr("feeder.system.process_usage.open", refuse, raising=False)
    assert 1 << 20 < available_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
