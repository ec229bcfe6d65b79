"""Files in, one topology out."""

import codecs
import sys
from collections.abc import Sequence
from pathlib import Path

from topology.errors import TopologyError
from topology.inputs import cannot_read
from topology.nouns import Topology
from topology.readers.combine import STANDARD_INPUT, Piece, combine
from topology.readers.recognise import read_text

MOST_BYTES = 64 * 2**20  # of one file; NCCL logs of large jobs are the largest
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_topology(paths: Sequence[Path]) -> Topology:
    """Read text files and put together what they tell.

    Nodes that name themselves keep their names. Of the others a single one is `node0`, or is
    called after its file where the network knows that name; several are called after their files,
    one from standard input `stdin`. A file that is given twice is read once.
    Texts of different kinds about one node are joined: those whose files have the same name up to
    the first dot, or all of them where their kinds differ and their GPUs fit.

    Args:
        paths: In any order, at least one; `-` is standard input.

    Raises:
        TopologyError: A file that cannot be read or is not understood, or files that contradict
            each other.
    """
    if not paths:
        raise TopologyError("no file given")
    once: dict[Path, Path] = {}
    for path in paths:
        once.setdefault(_place(path), path)
    return combine(
        [
            Piece(path=path, reading=read_text(_load(path), source_name=_title(path)))
            for path in once.values()
        ]
    )


def _place(path: Path) -> Path:
    """Where it really is, so that one file under two names is read once."""
    try:
        return path if path == STANDARD_INPUT else path.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a NUL
        return path


def _title(path: Path) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)


def _load(path: Path) -> str:
    try:
        if path == STANDARD_INPUT:
            if sys.stdin is None:  # the shell closed it
                raise ValueError("standard input is closed")
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as exc:
        raise TopologyError(cannot_read(path, exc)) from exc
    if len(data) > MOST_BYTES:
        raise TopologyError(f"{path}: saw more than {MOST_BYTES} bytes, wanted a text below that")
    if data.startswith(_UTF16):
        return data.decode("utf-16", errors="replace")
    if b"\0" in data:
        raise TopologyError(f"{path}: saw a NUL byte at {data.index(0)}, wanted a text file")
    return data.decode("utf-8", errors="replace")
