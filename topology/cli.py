"""The inventory command, `python -m topology`; the only printer of this package."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from topology.discover import discover
from topology.errors import TopologyError
from topology.nouns import Topology
from topology.table import render_table

__all__ = ["main", "render_json", "render_table", "write_text"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print or record the inventory of this machine.

    Args:
        argv: Arguments without the program's name; those of the process if None.

    Returns:
        The exit status: 0 done, 2 for an output that cannot be written, 130 after Ctrl-C. Bad
        usage leaves by SystemExit(2), as argparse does.
    """
    options = _parser().parse_args(argv)
    out: Path | None = options.out
    form = options.format or ("table" if out is None else "json")
    try:
        topology = discover()
        text = render_json(topology) if form == "json" else render_table(topology)
        if out is None:
            _print(text)
        else:
            write_text(out, text=text)
            sys.stderr.write(f"wrote {out}\n")
    except TopologyError as exc:
        hint = f" ({exc.hint})" if exc.hint else ""
        sys.stderr.write(f"error: {exc}{hint}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def render_json(topology: Topology) -> str:
    """The whole topology as JSON text that ends in a newline."""
    return json.dumps(topology.to_json(), indent=1, allow_nan=False) + "\n"


def write_text(path: Path, *, text: str) -> None:
    """Write a file so that it is either the old one or the whole new one, also after a crash.

    Raises:
        TopologyError: It cannot be written; the message names the path and the reason.
    """
    if path.exists() and not path.is_file():
        raise TopologyError(f"cannot write {path}: it is there and is no regular file")
    target = path.resolve()  # a link keeps pointing where it did
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as exc:
        raise TopologyError(f"cannot write {path}: {exc.strerror or exc}") from exc


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as exc:
        # Nobody reads any more; the interpreter must not try once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise TopologyError(f"cannot write standard output: {exc.strerror or exc}") from exc


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m topology",
        description="What hardware is in this machine, and how is it wired?",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--format",
        choices=("table", "json"),
        help="what to print: a table for people (default) or JSON (default with --out)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write to FILE instead of standard output"
    )
    return parser
