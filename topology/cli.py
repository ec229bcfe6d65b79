"""The inventory command, `python -m topology`; the only printer of this package."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from topology.discover import discover
from topology.errors import TopologyError
from topology.nouns import Topology
from topology.outputs import why_overwritten, why_unwritable
from topology.readers import read_topology
from topology.table import render_table
from topology.tree import render_tree
from topology.words import suggestion

__all__ = [
    "main",
    "print_text",
    "render_json",
    "render_table",
    "render_tree",
    "show_topology",
    "word_of",
    "write_text",
]

_RINGS = "rings"
_NAME_PART = 32  # characters of a name, so that with the rest no system finds it too long


def main(argv: Sequence[str] | None = None) -> int:
    """Print or record the inventory of this machine, or of the text files that are given.

    Args:
        argv: Arguments without the program's name; those of the process if None. What follows
            a leading `rings` goes to the command of that name.

    Returns:
        The exit status: 0 done, 1 what is found cannot be written out, 2 for a file that cannot be
        read or named for output, 130 after Ctrl-C. Bad usage leaves by SystemExit(2), as argparse
        does.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == [_RINGS]:
        return _rings(words[1:])
    options = _parser().parse_args(words)
    out: Path | None = options.out
    files: list[Path] = options.files
    failed = 2
    try:
        check_outputs({"--out": out}, inputs=files)
        topology = read_topology(files) if files else discover()
        failed = 1
        show_topology(topology, form=options.format, out=out)
    except TopologyError as exc:
        hint = f" ({exc.hint})" if exc.hint else ""
        sys.stderr.write(f"error: {exc}{hint}\n")
        return failed
    except KeyboardInterrupt:
        return 130
    return 0


def check_outputs(outputs: Mapping[str, Path | None], *, inputs: Sequence[Path]) -> None:
    """Refuse, before anything is looked at, to write over what is read or where nobody can.

    Raises:
        TopologyError: An output is an input, another output, or cannot be written.
    """
    for flag, path in outputs.items():
        if path is not None and (why := why_unwritable(path)):
            raise TopologyError(f"{flag}: {why}")
    if why := why_overwritten(outputs, inputs=inputs):
        raise TopologyError(why)


def show_topology(topology: Topology, *, form: str | None = None, out: Path | None = None) -> None:
    """Print a topology, or write it to a file.

    Args:
        topology: What to show.
        form: table, tree or json; a table on standard output and JSON in a file if None.
        out: The file; standard output if None.

    Raises:
        TopologyError: It cannot be written.
    """
    text = _RENDERERS[form or ("table" if out is None else "json")](topology)
    if out is None:
        print_text(text)
    else:
        write_text(out, text=text)
        sys.stderr.write(f"wrote {out}\n")


def render_json(topology: Topology) -> str:
    """The whole topology as JSON text that ends in a newline."""
    return json.dumps(topology.to_json(), indent=1, allow_nan=False) + "\n"


_RENDERERS: Mapping[str, Callable[[Topology], str]] = {
    "table": render_table,
    "json": render_json,
    "tree": render_tree,
}


def _rings(argv: Sequence[str]) -> int:
    from topology.rings_command import main as rings

    return rings(argv)


def write_text(path: Path, *, text: str) -> None:
    """Write a file so that it is either the old one or the whole new one, also after a crash.

    Raises:
        TopologyError: It cannot be written; the message names the path and the reason.
    """
    target = path.resolve()  # a link keeps pointing where it did
    temporary = target.with_name(f".{target.name[:_NAME_PART]}.{os.getpid()}.tmp")
    try:
        if path.exists() and not path.is_file():
            raise TopologyError(f"cannot write {path}: it is there and is no regular file")
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


def word_of(words: Iterable[str]) -> Callable[[str], str]:
    """What argparse reads a word with; a wrong one is refused with the nearest legal one."""
    known = tuple(words)

    def read(text: str) -> str:
        if text not in known:
            wanted = f"saw {text!r}, wanted {', '.join(known)}{suggestion(text, known)}"
            raise argparse.ArgumentTypeError(wanted)
        return text

    return read


def print_text(text: str) -> None:
    """Write to standard output.

    Raises:
        TopologyError: Nobody reads it any more, or it is closed or full.
    """
    if sys.stdout is None:  # the shell closed it
        raise TopologyError("cannot write standard output: it is closed")
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
        description="What hardware is in this machine, or in these files, and how is it wired?",
        epilog="`rings` as the first word: where ring groups would go; see `rings --help`.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="text to read instead of this machine (- is standard input): nvidia-smi topo and "
        "nvlink, NCCL XML and logs, Slurm topology, topograph, recorded JSON; several are merged",
    )
    parser.add_argument(
        "--format",
        type=word_of(_RENDERERS),
        metavar="{table,json,tree}",
        help="what to print: a table (default), a tree, or JSON (default with --out)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write to FILE instead of standard output"
    )
    return parser
