"""Files that a command is asked to write, checked before it does anything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from cptune.cli.app import refuse_overwriting
from cptune.errors import LedgerError, SpecError


def check_outputs(outputs: Mapping[str, Path | None], *, inputs: Iterable[Path] = ()) -> None:
    """Refuse outputs that cannot be written, and those that would be written over an input.

    Long work must not find out at its end.

    Args:
        outputs: By the name of the flag; None where it was not given.
        inputs: What the command reads.

    Raises:
        SpecError: with the flag, the path and the reason; nothing was changed.
    """
    from cptune.store.files import check_writable

    refuse_overwriting(outputs, inputs=inputs)
    for flag, path in outputs.items():
        if path is None:
            continue
        try:
            check_writable(path)
        except LedgerError as exc:
            raise SpecError(f"{flag}: {exc}", hint="wanted a file in a writable folder") from exc
