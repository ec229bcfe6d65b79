"""What a command is asked to read and cannot: why, and the file beside it that was meant."""

from itertools import islice
from pathlib import Path

from topology.words import nearest_word, slip_of

_MOST_FILES = 1000  # of a folder, looked at for the one that was meant


def cannot_read(path: Path, why: object) -> str:
    """The refusal of an input.

    Args:
        path: As it was given.
        why: What the system said, or what is wrong with what is there.

    Returns:
        The path, the reason and, where there is no such file, one beside it that is spelt alike.
    """
    reason = why.strerror or why if isinstance(why, OSError) else why
    near = f", did you mean '{meant}'?" if (meant := file_meant(path)) else ""
    return f"cannot read {path}: {reason}{near}"


def file_meant(path: Path) -> Path | None:
    """A file of the same folder whose name is spelt like one that is not there.

    None where the file is there, or none is alike: what just lies beside it was not meant. Names
    are compared up to their last dot, since files of one kind end alike.
    """
    try:
        if path.exists():
            return None
        beside = [one.name for one in islice(path.parent.iterdir(), _MOST_FILES) if one.is_file()]
    except (OSError, ValueError):  # no folder, or no text that names one
        return None
    stem = slip_of(path.stem, {Path(name).stem for name in beside})
    name = nearest_word(path.name, (name for name in beside if Path(name).stem == stem))
    return None if name is None else path.with_name(name)
