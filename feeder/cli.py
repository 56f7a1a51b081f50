"""The ``feeder`` command. Each subcommand imports what it needs, so that ``feeder --help`` is instant."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import feeder
from feeder.errors import ArgumentError, FeederError

__all__ = ["main"]

EXIT_ERROR = 1
EXIT_DAMAGED = 1
EXIT_USAGE = 2
EXIT_TOO_MANY_BAD = 3
EXIT_INTERRUPTED = 130

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: Arguments; None for those of the process.

    Returns:
        The exit code: 0 well, 1 error or damage found, 2 wrong usage, 3 too many bad inputs, 130 interrupted.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.version:
        print(_version(arguments.verbose))
        return 0
    if arguments.run is None:
        parser.print_help()
        return EXIT_USAGE
    try:
        code: int = arguments.run(arguments)
        return code
    except FeederError as error:
        print(f"feeder: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ArgumentError) else EXIT_ERROR
    except KeyboardInterrupt:
        hint = f": {arguments.on_interrupt}" if "on_interrupt" in arguments else ""
        print(f"\nfeeder: interrupted{hint}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stdout = None
        return 0
    except OSError as error:
        print(f"feeder: {error.filename or 'error'}: {error.strerror or error}", file=sys.stderr)
        return EXIT_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feeder", description="An input pipeline for PyTorch vision training: shard once, then load fast."
    )
    parser.set_defaults(run=None)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --version: what else is installed")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_shard(commands)
    _add_inspect(commands)
    _add_index(commands)
    _add_bench(commands)
    _add_parity(commands)
    return parser


def _add_shard(commands: Any) -> None:
    command = commands.add_parser(
        "shard",
        help="turn a dataset into pre-shuffled WebDataset shards",
        description="Turns a dataset into pre-shuffled WebDataset shards and an index. A run that was cut off is "
        "resumed by the same command.",
        epilog="exit codes: 0 done, 1 error, 2 wrong usage, 3 done but more bad images than --max-bad, 130 interrupted",
    )
    command.add_argument(
        "src",
        metavar="SRC",
        help="folder with a subfolder for each class, flat folder, manifest (.csv .tsv .jsonl .parquet), or WebDataset "
        "tars ('train-{000..009}.tar')",
    )
    command.add_argument("--out", metavar="DIR", help="output folder (default: SRC's name with -shards, beside it)")
    command.add_argument("--seed", type=int, default=0, help="seed of the shuffle (default: %(default)s)")
    size = command.add_mutually_exclusive_group()
    size.add_argument(
        "--shard-size", type=_size, default="256MiB", metavar="BYTES", help="size of a shard (default: %(default)s)"
    )
    size.add_argument("--samples-per-shard", type=int, metavar="N", help="inputs in a shard, instead of its size")
    command.add_argument(
        "--workers", type=int, metavar="N", help="threads (default: cores + 1); no change to the result"
    )
    command.add_argument("--no-shuffle", action="store_true", help="keep the source's order")
    command.add_argument(
        "--max-bad",
        type=_share,
        default=0.01,
        metavar="SHARE",
        help="tolerated share of bad images, such as 0.01 or 1%% (default: 1%%)",
    )
    command.add_argument(
        "--encode",
        choices=("seekable", "keep", "jpeg", "raw"),
        default="seekable",
        help="seekable: rewrite JPEGs losslessly so that crops decode alone, keep other formats; keep: bytes as they "
        "are; jpeg: encode again; raw: uint8 pixels as .npy (default: %(default)s)",
    )
    command.add_argument("--max-side", type=int, metavar="PX", help="with jpeg or raw: reduce the longer side to this")
    command.add_argument("--quality", type=int, default=90, help="with jpeg: 1 to 95 (default: %(default)s)")
    command.add_argument(
        "--strip-metadata",
        action="store_true",
        help="with seekable or jpeg: drop EXIF (orientation stays), ICC profile and comments",
    )
    command.add_argument(
        "--dali-index", action="store_true", help="also write index files for DALI's readers.webdataset"
    )
    command.add_argument("--path-column", metavar="NAME", help="manifest column with the image's path")
    command.add_argument("--image-column", metavar="NAME", help="manifest column with the image's bytes")
    command.add_argument("--label-column", metavar="NAME", help="manifest column with the class")
    command.add_argument("--dry-run", action="store_true", help="list and plan only; write nothing")
    _add_output(command)
    command.set_defaults(run=_shard, on_interrupt="every finished shard is kept; the same command goes on from there")


def _shard(arguments: argparse.Namespace) -> int:
    from feeder.progress import terminal_progress
    from feeder.shard import ShardOptions, shard
    from feeder.shard.encode import EncodeOptions
    from feeder.source import ManifestColumns

    options = ShardOptions(
        seed=arguments.seed,
        shuffle=not arguments.no_shuffle,
        shard_size_bytes=arguments.shard_size,
        samples_per_shard=arguments.samples_per_shard,
        workers=arguments.workers,
        max_bad=arguments.max_bad,
        encode=EncodeOptions(
            arguments.encode, arguments.max_side, arguments.quality, keep_metadata=not arguments.strip_metadata
        ),
        dali_index=arguments.dali_index,
        columns=ManifestColumns(arguments.path_column, arguments.image_column, arguments.label_column),
    )
    progress = terminal_progress(arguments.quiet)
    summary = shard(arguments.src, arguments.out, options, progress=progress, dry_run=arguments.dry_run)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(summary) | {"too_many_bad": summary.too_many_bad}))
    elif not arguments.quiet:
        _print_summary(summary, arguments.dry_run)
    if summary.too_many_bad and not arguments.dry_run:
        print(f"feeder: {summary.too_many_bad}", file=sys.stderr)
        return EXIT_TOO_MANY_BAD
    return 0


def _print_summary(summary: Any, dry_run: bool) -> None:
    classes = f", {summary.classes:,} classes" if summary.classes else ""
    what = f"{summary.samples:,} samples ({summary.kind}{classes}) in {_count(summary.shards, 'shard')}"
    what += f", {_mib(summary.bytes)}"
    if dry_run:
        print(f"would write {what}\n  to        {summary.out}\n  rejected  {summary.rejected:,} when listed")
        return
    if not summary.written_shards:
        print(f"nothing to do: {what}\n  in        {summary.out}")
        return
    speed = f"{summary.written_samples / summary.seconds:,.0f} images/s"
    resumed = f" ({summary.written_shards:,} written now)" if summary.written_shards < summary.shards else ""
    print(f"{what}{resumed}\n  to        {summary.out}\n  in        {summary.seconds:.1f} s ({speed})")
    if set(summary.encoded) != {"kept"}:
        print("  encoded   " + ", ".join(f"{count:,} {outcome}" for outcome, count in summary.encoded.items()))
    if summary.rejected:
        print(f"  rejected  {summary.rejected:,} of {summary.inputs:,} inputs, see rejected.jsonl")


def _add_inspect(commands: Any) -> None:
    command = commands.add_parser(
        "inspect",
        help="show what a shard set holds, or verify it",
        description="Shows counts, classes, sizes and settings of a shard set; with --verify reads everything again "
        "and names each damaged shard and sample.",
        epilog="exit codes: 0 well, 1 error or damage found, 2 wrong usage",
    )
    command.add_argument("dir", metavar="DIR", help="folder of a shard set, or an index file")
    command.add_argument("--verify", action="store_true", help="compare every byte with the checksums")
    command.add_argument("--workers", type=int, metavar="N", help="threads for --verify (default: one a core)")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=_inspect)


def _inspect(arguments: argparse.Namespace) -> int:
    from feeder.inspect import inspect, render, verify

    # Damage first: an index that is damaged itself has no report, but its damage can be named.
    damages = verify(arguments.dir, workers=arguments.workers) if arguments.verify else None
    try:
        report = inspect(arguments.dir)
    except FeederError:
        for damage in damages or ():
            print(f"{damage.shard}" + (f" {damage.sample}" if damage.sample else "") + f": {damage.reason}")
        raise
    if arguments.json:
        found = None if damages is None else [damage._asdict() for damage in damages]
        print(json.dumps(report.to_json() | {"damages": found}))
    else:
        print(render(report))
        if damages is not None:
            print(f"\n  verified: {_count(len(damages), 'problem')}")
            for damage in damages:
                print(f"    {damage.shard}" + (f" {damage.sample}" if damage.sample else "") + f": {damage.reason}")
    return EXIT_DAMAGED if damages else 0


def _add_index(commands: Any) -> None:
    command = commands.add_parser(
        "index",
        help="index WebDataset tars that others wrote",
        description="Builds index.bin for existing WebDataset tars, so that they load without being written again.",
    )
    command.add_argument("src", metavar="TARS", help="folder of tars, a tar, or a pattern ('train-{000..009}.tar')")
    command.add_argument("--out", metavar="FILE", help="index file (default: index.bin in the tars' folder)")
    command.add_argument(
        "--max-bad", type=_share, default=0.01, metavar="SHARE", help="tolerated share of bad samples (default: 1%%)"
    )
    _add_output(command)
    command.set_defaults(run=_index)


def _index(arguments: argparse.Namespace) -> int:
    from feeder.tarindex import index_tars

    summary = index_tars(arguments.src, arguments.out)
    rejected = [rejection._asdict() for rejection in summary.rejected]
    if arguments.json:
        print(json.dumps(dataclasses.asdict(summary) | {"rejected": rejected}))
    elif not arguments.quiet:
        print(f"{summary.samples:,} samples in {_count(summary.shards, 'tar')}\n  index     {summary.path}")
        for rejection in summary.rejected:
            print(f"  rejected  {rejection.path}: {rejection.reason}")
    bad = sum(rejection.bad for rejection in summary.rejected)
    return EXIT_TOO_MANY_BAD if bad > arguments.max_bad * (summary.samples + bad) else 0


def _add_bench(commands: Any) -> None:
    command = commands.add_parser(
        "bench",
        help="measure feeder beside torch's DataLoader with Pillow",
        description="Measures images/s of feeder and of torch's DataLoader with Pillow on the same images and the same "
        "preprocessing, in turn.",
    )
    command.add_argument("dir", metavar="DIR", help="shard set, or folder with a subfolder for each class")
    command.add_argument("--folder", metavar="DIR", help="the same images as files, for torch's loader (default: DIR)")
    command.add_argument(
        "--preset",
        choices=("train", "val"),
        default="train",
        help="train: RandomResizedCrop, flip, normalize; val: Resize, CenterCrop, normalize (default: %(default)s)",
    )
    command.add_argument(
        "--dtype", choices=("float32", "uint8"), default="float32", help="output (default: %(default)s)"
    )
    command.add_argument("--image-size", type=int, default=224, metavar="PX", help="output size (default: %(default)s)")
    command.add_argument(
        "--batch-size", type=int, default=64, metavar="N", help="images in a batch (default: %(default)s)"
    )
    command.add_argument("--workers", type=int, metavar="N", help="worker processes (default: one a core)")
    command.add_argument("--seconds", type=float, default=5.0, help="length of a run (default: %(default)s)")
    command.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each (default: %(default)s)")
    command.add_argument("--backend", default="auto", help="feeder's decode backend (default: %(default)s)")
    command.add_argument("--json", metavar="FILE", help="also write everything to this file, machine included")
    command.add_argument("-q", "--quiet", action="store_true", help="print the table only, not each run")
    command.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from feeder.bench import BenchOptions, render, throughput
    from feeder.measure import save

    options = BenchOptions(
        preset=arguments.preset,
        dtype=arguments.dtype,
        image_size=arguments.image_size,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        seconds=arguments.seconds,
        repeats=arguments.repeats,
        backend=arguments.backend,
    )

    def note(line: str) -> None:
        if not arguments.quiet:
            print(line, file=sys.stderr, flush=True)

    result = throughput(arguments.dir, options, folder=arguments.folder, note=note)
    print(render(result))
    if arguments.json:
        print(f"\nwritten to {save('throughput', result, arguments.json)}")
    return 0


def _add_parity(commands: Any) -> None:
    command = commands.add_parser(
        "parity",
        help="compare a decode backend's pixels with the Pillow reference",
        description="Compares a backend's pixels with the Pillow reference on your own images, in buckets by how much "
        "the crop is shrunk.",
        epilog="exit codes: 0 within the bounds, 1 outside or error, 2 wrong usage",
    )
    command.add_argument("dir", metavar="DIR", help="shard set, or folder with a subfolder for each class")
    command.add_argument("--backend", default="auto", help="the backend to compare (default: %(default)s)")
    command.add_argument("--fidelity", choices=("fast", "exact"), default="fast", help="default: %(default)s")
    command.add_argument(
        "--images", type=int, default=250, metavar="N", help="images to compare (default: %(default)s)"
    )
    command.add_argument("--seed", type=int, default=0, help="seed of images and crops (default: %(default)s)")
    _add_output(command)
    command.set_defaults(run=_parity)


def _parity(arguments: argparse.Namespace) -> int:
    from feeder.parity import parity
    from feeder.progress import terminal_progress

    report = parity(
        arguments.dir,
        backend=arguments.backend,
        fidelity=arguments.fidelity,
        images=arguments.images,
        seed=arguments.seed,
        progress=terminal_progress(arguments.quiet),
    )
    if arguments.json:
        print(json.dumps(report.to_json()))
    elif not arguments.quiet:
        print(report.render())
    return 0 if report.passed else EXIT_ERROR


def _add_output(command: Any) -> None:
    output = command.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object when done")
    output.add_argument("-q", "--quiet", action="store_true", help="print errors only")


def _version(verbose: bool) -> str:
    if not verbose:
        return f"feeder {feeder.__version__}"
    from feeder.versions import report

    return report()


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", text.strip().lower())
    if not match or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; expected bytes, or a number with kB, MB, GB, KiB, MiB, GiB"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def _share(text: str) -> float:
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; expected 0 to 1, or a percentage such as 2%")
    return share


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.2f} GiB" if size_bytes >= 10 * 2**30 else f"{size_bytes / 2**20:,.1f} MiB"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
