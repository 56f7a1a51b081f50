"""One attempt at writing a shard, in a process that may be on another machine."""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Mapping

import feeder
from feeder.errors import FeederError, ShardError
from feeder.shard.source.source import Source
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.shard_writer import ShardJob, WrittenShard, write_shard
from feeder.shard.write.shared_output import SharedOutput
from feeder.system.arrays import Int64s
from feeder.system.versions import pillow_info


def pickled_job(job: ShardJob, source: Source, ids: Int64s, folder: OutputFolder, output: SharedOutput) -> bytes:
    """Returns the job of an attempt at a shard, pickled, with the rows of its samples alone.

    Args:
        job: The shard.
        source: The source of all samples.
        ids: int64 [N], the shard's samples, in the order of its positions.
        folder: The output.
        output: The output as others see it.
    """
    rows = source.rows(ids)
    if folder.is_copy:
        rows.take_in(folder.path)
    return pickle.dumps((job, rows, output), pickle.HIGHEST_PROTOCOL)


@functools.cache
def writer_versions() -> dict[str, str]:
    """Returns the versions that the bytes of a shard may depend on, by name."""
    pillow = pillow_info()
    try:
        from feeder._native import libjpeg_turbo

        kernels = f"libjpeg-turbo {libjpeg_turbo()[0]}"
    except ImportError:
        kernels = "none"
    return {
        "feeder": feeder.__version__,
        "Pillow": "none" if pillow is None else f"{pillow.distribution} {pillow.version}",
        "Pillow's libjpeg": "none" if pillow is None else pillow.libjpeg or "none",
        "the kernels' libjpeg": kernels,
    }


def attempt_shard(expected: Mapping[str, str], pickled: bytes) -> tuple[WrittenShard, str]:
    """Writes a shard; returns its record, and the folder of its files, unless they are in a store by then.

    Args:
        expected: The driver's :func:`writer_versions`.
        pickled: The job, see :func:`pickled_job`. It is only read if the versions are the same.

    Raises:
        ShardError: if this machine can't take part.
        FeederError, OSError: as :func:`write_shard` does.
    """
    differing = [
        f"{name} {version} (the driver has {expected[name]})"
        for name, version in writer_versions().items()
        if version != expected[name]
    ]
    if differing:
        raise ShardError(f"it has {', '.join(differing)}; install the same versions there")

    job, source, output = pickle.loads(pickled)
    missing = output.missing_path() or source.missing_path()
    if missing is not None:
        raise ShardError(f"it does not have {missing}; all nodes must see source and output at the same paths")

    with contextlib.closing(source), output.attempt(job.name) as folder:
        samples = range(len(job.positions))
        return write_shard(job, source, samples, folder, folder, lambda size_bytes: None), folder


def with_node(error: Exception, node: str) -> Exception:
    """Returns the error that says on which node another one was met."""
    if isinstance(error, OSError):
        return OSError(error.errno, f"{error.strerror} (on node {node})", error.filename)
    return type(error)(f"{error.args[0]} (on node {node})") if isinstance(error, FeederError) else error
