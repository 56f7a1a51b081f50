"""``feeder shard``: turns a dataset into shards."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.text import count, printable, say
from feeder.tools.commands.common import (
    EXIT_TOO_MANY_BAD,
    IMAGE_FIELD_HELP,
    add_labels,
    add_output,
    say_json,
    share,
    size_bytes,
)
from feeder.tools.terminal import size


def add(commands: Any) -> None:
    command = commands.add_parser(
        "shard",
        examples=(
            "feeder shard ./images                        # writes ./images-shards",
            "feeder shard train.csv --image-root ./images --label-column class --out shards",
        ),
        help="turn a dataset into pre-shuffled WebDataset shards",
        description="Turns a dataset into pre-shuffled WebDataset shards and an index. The same command resumes an "
        "interrupted run.",
        epilog="exit codes: 0 done, 1 error, 2 wrong usage, 3 done, more bad images than --max-bad, 130 interrupted",
    )

    command.add_argument(
        "src",
        metavar="SRC",
        nargs="?",
        help="folder with a subfolder for each class, flat folder, manifest (.csv .tsv .jsonl .parquet), or WebDataset "
        "tars ('train-{000..009}.tar'); also as URLs: s3://bucket/folder, gs://, az://, https://",
    )
    command.add_argument(
        "--out", metavar="DIR", help="output folder, or s3://bucket/set, gs:// or az:// (default: SRC-shards)"
    )

    command.add_argument("--seed", type=int, default=0, help="seed of the shuffle (default: %(default)s)")
    limit = command.add_mutually_exclusive_group()
    limit.add_argument(
        "--shard-size",
        type=size_bytes,
        default="256MiB",
        metavar="BYTES",
        help="size of a shard (default: %(default)s)",
    )
    limit.add_argument("--samples-per-shard", type=int, metavar="N", help="inputs in a shard, in place of a size")
    command.add_argument("--no-shuffle", action="store_true", help="keep the source's order")
    _add_encoding(command)
    add_source(command)

    command.add_argument(
        "--force", action="store_true", help="replace a shard set in the output folder, but nothing else"
    )
    command.add_argument("--image-field", metavar="NAME", help=IMAGE_FIELD_HELP)
    command.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="ray: write the shards on the nodes of a Ray cluster, to a shared folder or a store; the same bytes",
    )
    command.add_argument("--address", metavar="HOST:PORT", help="with --engine ray: the cluster (default: auto)")
    command.add_argument("--dry-run", action="store_true", help="only list and plan; write nothing")

    add_output(command)
    command.set_defaults(on_interrupt="every finished shard is kept; the same command resumes the run")


def _add_encoding(command: Any) -> None:
    """Adds the options for the files of the set."""
    command.add_argument(
        "--max-file-bytes",
        type=size_bytes,
        default="1GiB",
        metavar="BYTES",
        help="reject larger files unread (default: %(default)s, the most that can be loaded)",
    )
    command.add_argument(
        "--encode",
        choices=("seekable", "packed", "keep", "jpeg", "raw"),
        default="seekable",
        help="seekable: rewrite JPEGs losslessly so that crops decode alone, keep other formats; packed: as seekable, "
        "but JPEGs without Huffman codes (fastest, lossless to the byte, only feeder reads them); keep: unchanged "
        "bytes; jpeg: encode again; raw: uint8 pixels as .npy (default: %(default)s)",
    )

    command.add_argument("--max-side", type=int, metavar="PX", help="with jpeg or raw: shrink the longer side to this")
    command.add_argument("--quality", type=int, default=90, help="with jpeg: 1 to 95 (default: %(default)s)")
    command.add_argument(
        "--strip-metadata",
        action="store_true",
        help="with seekable or jpeg: drop EXIF (except the orientation), ICC profile and comments",
    )
    command.add_argument(
        "--reject-deep",
        action="store_true",
        help="reject images of more than 8 bits per channel, which would be clipped to 0-255",
    )
    command.add_argument(
        "--progressive",
        choices=("keep", "sequential"),
        default="keep",
        help="with packed: sequential packs a sequential copy of progressive JPEGs, with the same coefficients; export "
        "then gives the copy, not the file (default: %(default)s, as seekable JPEGs)",
    )


def add_source(command: Any) -> None:
    """Adds the options for reading a source."""
    command.add_argument(
        "--workers", type=int, metavar="N", help="shards written at a time (default: cores + 1); the result is the same"
    )
    command.add_argument(
        "--max-bad",
        type=share,
        default=0.01,
        metavar="SHARE",
        help="tolerated share of bad images, such as 0.01 or 1%% (default: 1%%)",
    )
    command.add_argument(
        "--skip-unreadable",
        action="store_true",
        help="skip unreadable folders, and files that the disk fails to read, instead of ending the run",
    )

    command.add_argument(
        "--class-folders",
        action="store_true",
        help="take the folders in a folder as classes, even if their names are those of splits, images or masks",
    )
    _add_columns(command)

    command.add_argument(
        "--annotations",
        metavar="PATH",
        help="COCO's JSON of instances, keypoints or captions, or a folder of Pascal VOC's XML or YOLO's text, for the "
        "folder of images SRC",
    )
    command.add_argument(
        "--instance-masks", action="store_true", help="rasterize COCO's polygons and RLE into instances.png"
    )
    command.add_argument(
        "--pair",
        nargs="+",
        default=[],
        metavar="NAME=DIR",
        help="in place of SRC: images=DIR and further folders of files with the same names, such as masks=DIR; "
        "'DIR/*_mask.png' takes the files of this name",
    )

    command.add_argument(
        "--members",
        nargs="+",
        default=[],
        metavar="FIELD",
        help="images beside the images of a folder that belong to their samples: seg.png takes a.seg.png as that field "
        "of a.jpg; other images are samples of their own",
    )
    command.add_argument(
        "--names", metavar="FILE", help="with --annotations or --pair: names of the samples to take, a line each"
    )


def _add_columns(command: Any) -> None:
    """Adds the options for the columns of a manifest."""
    command.add_argument("--path-column", metavar="NAME", help="manifest column with the image's path or id")
    command.add_argument(
        "--image-root", metavar="DIR", help="folder or URL that paths are relative to (default: the manifest's)"
    )
    command.add_argument("--suffix", default="", metavar="EXT", help="appended to each path, such as .jpg to ids")
    command.add_argument("--image-column", metavar="NAME", help="manifest column with the image's bytes")
    add_labels(command, "manifest column, or json key in tars,")

    command.add_argument(
        "--list-column",
        action="append",
        default=[],
        metavar="NAME",
        help="manifest column that differs between rows of an image, such as captions: rows of the same path become "
        "one sample, with a list; may be repeated",
    )


def source_options(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Returns the path of the source, and the options of :class:`ShardOptions` for reading it."""
    from feeder.shard.source.table_file import ManifestColumns
    from feeder.shard.source.target_sources import TargetSources

    source, pairs = _source(arguments.src, arguments.pair)
    columns = ManifestColumns(
        arguments.path_column,
        arguments.image_column,
        arguments.label_column,
        tuple(arguments.target_column),
        not arguments.no_labels,
        arguments.image_root,
        arguments.suffix,
        tuple(arguments.list_column),
    )
    targets = TargetSources(
        arguments.annotations, arguments.instance_masks, pairs, arguments.names, tuple(arguments.members)
    )
    names = ("skip_unreadable", "class_folders", "workers", "max_bad")
    reading = {"columns": columns, "targets": targets} | {name: getattr(arguments, name) for name in names}
    return source, reading


def run(arguments: argparse.Namespace) -> int:
    from feeder.shard.write.encode import EncodeOptions
    from feeder.shard.write.shard_options import ShardOptions
    from feeder.shard.write.sharding import shard
    from feeder.system.progress import terminal_progress

    source, reading = source_options(arguments)
    options = ShardOptions(
        seed=arguments.seed,
        shuffle=not arguments.no_shuffle,
        shard_size_bytes=arguments.shard_size,
        samples_per_shard=arguments.samples_per_shard,
        encode=EncodeOptions(
            arguments.encode,
            arguments.max_side,
            arguments.quality,
            keep_metadata=not arguments.strip_metadata,
            reject_deep=arguments.reject_deep,
            progressive=arguments.progressive,
        ),
        image_field=arguments.image_field,
        max_file_bytes=arguments.max_file_bytes,
        engine=arguments.engine,
        address=arguments.address,
        **reading,
    )
    progress = terminal_progress(arguments.quiet)
    summary = shard(source, arguments.out, options, progress=progress, dry_run=arguments.dry_run, force=arguments.force)
    return report(summary, arguments)


def report(summary: Any, arguments: argparse.Namespace) -> int:
    """Prints the result of a run, and returns the exit code."""
    from feeder.decoders.image_header import clipped_warning

    dry_run = getattr(arguments, "dry_run", False)
    if arguments.json:
        say_json(vars(summary) | {"too_many_bad": summary.too_many_bad})
    elif not arguments.quiet:
        _print_summary(summary, dry_run)
    elif summary.loss and not summary.too_many_bad and not dry_run:
        say(printable(f"feeder: {summary.loss}"), file=sys.stderr)
    if summary.clipped:
        say(f"feeder: warning: {clipped_warning(summary.clipped)}", file=sys.stderr)
    if summary.too_many_bad and not dry_run:
        say(printable(f"feeder: {summary.too_many_bad}"), file=sys.stderr)
        return EXIT_TOO_MANY_BAD
    return 0


def _source(src: str | None, pairs: list[str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Returns the source's path, and the names and places of the files beside its images."""
    split = [tuple(pair.split("=", 1)) for pair in pairs]
    if wrong := next((pair for pair in pairs if "=" not in pair), None):
        raise ArgumentError(f"--pair takes NAME=DIR, got {wrong!r}")
    images = [place for name, place in split if name == "images"]
    others = tuple((name, place) for name, place in split if name != "images")
    if src is not None and not pairs:
        return src, ()
    if src is None and len(images) == 1 and others:
        return images[0], others
    raise ArgumentError("expected SRC, or --pair images=DIR NAME=DIR ... in its place")


def _print_summary(summary: Any, dry_run: bool) -> None:
    classes = f", {count(summary.classes, 'class', 'classes')}" if summary.classes else ""
    classes = classes or ", no labels" * summary.kind.endswith("folder")
    what = f"{count(summary.samples, 'sample')} ({summary.kind}{classes}) in {count(summary.shards, 'shard')}"
    what += f", {size(summary.bytes)}"
    if dry_run:
        say(f"would write {what}\n  to        {printable(summary.out)}\n  rejected  {summary.rejected:,} when listed")
        return
    if summary.written_shards:
        speed = f"{summary.written_samples / summary.seconds:,.0f} images/s"
        resumed = f" ({summary.written_shards:,} written now)" if summary.written_shards < summary.shards else ""
        say(f"{what}{resumed}\n  to        {printable(summary.out)}\n  in        {summary.seconds:.1f} s ({speed})")
        if set(summary.encoded) != {"kept"}:
            say("  encoded   " + ", ".join(f"{number:,} {outcome}" for outcome, number in summary.encoded.items()))
    else:
        say(f"nothing to do: {what}\n  in        {printable(summary.out)}")
    if summary.rejected:
        folders = count(summary.unreadable_folders, "unreadable folder")
        among = f" ({folders})" if summary.unreadable_folders else ""
        say(f"  rejected  {summary.rejected:,} of {summary.inputs:,} inputs{among}, see rejected.jsonl")
