"""What a command is asked to write is looked at before its work: refused, or writable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cptune.cli.app import refuse_overwriting
from cptune.errors import SpecError
from topology.outputs import why_unwritable

#: What takes the name of a file that a command writes.
OUTPUT_FLAGS = frozenset({"--out", "--figure", "--svg"})


def joined(words: Sequence[str]) -> list[str]:
    """The words with `--out -` as `--out=-`: a parser takes a hyphen alone for no value."""
    found: list[str] = []
    for word in words:
        if word == "-" and found and found[-1] in OUTPUT_FLAGS:
            found[-1] += "=-"
        else:
            found.append(word)
    return found


def check_outputs(outputs: Mapping[str, Path | None], *, inputs: Iterable[Path] = ()) -> None:
    """Refuse outputs that are inputs, one file twice, or cannot be written.

    Args:
        outputs: By the name of the flag; None where it was not given.
        inputs: What the command reads.

    Raises:
        SpecError: with the flag, the path and the reason.
    """
    for flag, path in outputs.items():
        if path is not None and (why := why_unwritable(path)):
            hint = "wanted a file in a directory that is there and can be written"
            raise SpecError(f"{flag}: {why}", hint=hint)
    refuse_overwriting(outputs, inputs=inputs)
