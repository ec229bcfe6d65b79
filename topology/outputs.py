"""What a command is asked to write must not be what it reads, nor one file twice."""

from collections.abc import Iterable, Mapping
from pathlib import Path


def why_overwritten(outputs: Mapping[str, Path | None], *, inputs: Iterable[Path]) -> str | None:
    """Why these outputs must not be written; None where nothing speaks against it.

    Args:
        outputs: By the name of the flag; None where it was not given.
        inputs: What the command reads; what is no file is no input that could be lost.
    """
    taken = {path.resolve(): f"the input {path}" for path in inputs if path.exists()}
    for flag, path in outputs.items():
        if path is None:
            continue
        if path.resolve() in taken:
            return f"{flag} {path} is {taken[path.resolve()]}; wanted another file"
        taken[path.resolve()] = f"the file of {flag}"
    return None
