"""Who answers the trials of a run: kept with it, so that another launcher does not go on with it.

A run on Ray has no such file, as runs from before there were other launchers have none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cptune.domain.launcher import LauncherName
from cptune.errors import LedgerError, SpecError
from cptune.store.files import write_durably

_FILE = "launcher.json"

#: What a launcher answers by, as plain values; `launcher` is its name.
Told = Mapping[str, object]
RAY: Told = {"launcher": LauncherName.RAY.value}


def settle_launcher(directory: Path, told: Told, *, is_there: bool) -> None:
    """Keep who answers a fresh run, or refuse to go on with one that another answered.

    Args:
        directory: The run directory.
        told: Who answers now, and by what.
        is_there: Whether the run was begun before.

    Raises:
        SpecError: naming what differs.
        LedgerError: when the file cannot be read or written.
    """
    path = directory / _FILE
    if is_there:
        _refuse_other(directory, _read(path), told)
    elif told != RAY:
        write_durably(path, json.dumps(told, indent=1).encode())


def _read(path: Path) -> Told:
    if not path.exists():
        return RAY
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise TypeError("it is no object")
    except (OSError, TypeError, ValueError) as exc:
        raise LedgerError(f"{path} cannot be read: {exc}") from exc
    return found


def _refuse_other(directory: Path, kept: Told, told: Told) -> None:
    differs = [
        f"{name} {kept.get(name)!r}, not {told.get(name)!r}"
        for name in {**kept, **told}
        if kept.get(name) != told.get(name)
    ]
    if differs:
        raise SpecError(
            f"run {directory.name!r} was answered by {'; '.join(differs)}",
            hint=f"resume it with --launcher {kept.get('launcher')} as it was started, or give "
            "this one another --name",
        )
