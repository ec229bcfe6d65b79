"""The id of a run: by it a file that was copied from another run is known as one."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from cptune.errors import LedgerError
from cptune.store.files import write_durably

RUN_ID = "run_id"
_BYTES = 16
_ID = re.compile(f"[0-9a-f]{{{2 * _BYTES}}}")


def read_run_id(directory: Path) -> str | None:
    """The id of a run; None where it has none, as runs from before there were ids.

    Raises:
        LedgerError: when its file cannot be read, or holds no id.
    """
    path = directory / RUN_ID
    try:
        found = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise LedgerError(f"{path} cannot be read: {exc}") from exc
    if not _ID.fullmatch(found):
        raise LedgerError(
            f"{path} holds {found[:40]!r}; wanted {2 * _BYTES} hexadecimal digits",
            hint="move it away: --resume writes it again from the trials",
        )
    return found


def settle_run_id(directory: Path, *, kept: Iterable[str]) -> str:
    """The id of a run that is written to: its own, else that of most of its trials, else a new one.

    Args:
        directory: The run directory.
        kept: The ids that its trials tell, one for each.

    Raises:
        LedgerError: when it cannot be read or written.
    """
    found = read_run_id(directory)
    if found is None:
        told = Counter(kept).most_common(1)
        found = told[0][0] if told else secrets.token_hex(_BYTES)
        write_durably(directory / RUN_ID, f"{found}\n".encode())
    return found
