"""What a command is asked to write: refused before its work where it cannot be, or would harm."""

from collections.abc import Iterable, Mapping
from pathlib import Path

_STANDARD_OUTPUT = "-"


def why_overwritten(outputs: Mapping[str, Path | None], *, inputs: Iterable[Path]) -> str | None:
    """Why these outputs must not be written; None where nothing speaks against it.

    Args:
        outputs: By the name of the flag; None where it was not given.
        inputs: What the command reads; what is no file is no input that could be lost.
    """
    taken = {_resolved(path): f"the input {path}" for path in inputs if _exists(path)}
    for flag, path in outputs.items():
        if path is None:
            continue
        where = _resolved(path)
        if where in taken:
            return f"{flag} {path} is {taken[where]}; wanted another file"
        taken[where] = f"the file of {flag}"
    return None


def why_unwritable(path: Path) -> str | None:
    """Why this output cannot be written, found out by making a file beside it; None: it can be.

    As far as can be known before: a disk may still run full.
    """
    why = _why_not(path)
    return None if why is None else f"cannot write {path}: {why}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or a NUL
        return False


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a NUL
        return path


def _why_not(path: Path) -> str | None:
    if str(path) == _STANDARD_OUTPUT:
        return "it means standard output, where results go anyway"
    try:
        target = path.resolve()
        of_system = Path("/dev") in path.absolute().parents  # a stream, though it leads to a file
        if of_system or (target.exists() and not target.is_file()):
            return "it is there and is no regular file"
        import tempfile  # only where there is an output to look at

        with tempfile.TemporaryFile(dir=target.parent):
            return None
    except OSError as exc:
        return exc.strerror or str(exc)
    except (RuntimeError, ValueError) as exc:
        return str(exc)
