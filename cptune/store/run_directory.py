"""One run on disk: made once, held by one driver at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO, Self

from cptune.errors import SpecError
from cptune.store.files import remove_temporaries


class RunDirectory:
    """A run directory held by this process until `close`; the lock ends with the process.

    Raises:
        SpecError: when it cannot be made or written, or another driver holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = (path / "lock").open("a+", encoding="utf-8")
        except OSError as exc:
            raise SpecError(
                f"run directory {path} cannot be written: {exc.strerror}",
                hint="wanted a writable --runs DIR",
            ) from exc
        self._hold()
        remove_temporaries(path)

    def _hold(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "an unknown process"
            self._lock.close()
            raise SpecError(
                f"run directory {self.path} is held by {holder}",
                hint="wait for it to end, or use another --runs DIR",
            ) from exc
        self._lock.truncate(0)
        self._lock.write(f"pid {os.getpid()} on {os.uname().nodename}\n")
        self._lock.flush()

    @property
    def spec_path(self) -> Path:
        """The resolved spec; a run directory with one is a run."""
        return self.path / "spec.toml"

    @property
    def study_path(self) -> Path:
        """The Optuna study."""
        return self.path / "study.db"

    @property
    def topology_path(self) -> Path:
        """The inventory that the run was placed on."""
        return self.path / "topology.json"

    def close(self) -> None:
        """Let the next driver in."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def holder_of(path: Path) -> str | None:
    """Who holds a run directory now, as its lock says; None where nobody does."""
    try:
        with (path / "lock").open(encoding="utf-8", errors="replace") as lock:
            try:  # shared, and let go at once: a driver that starts meanwhile would be refused
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read().strip() or "an unknown process"
    except OSError:  # no lock, or none that may be read
        return None
    return None


def free_name(runs: Path, stem: str) -> str:
    """The first of stem, stem-2, stem-3 ... that is no run yet."""
    number = 1
    while (runs / (name := stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return name


def last_name(runs: Path, stem: str) -> str:
    """The last of stem, stem-2, stem-3 ... that is a run; the stem where none is."""
    number = 1
    while (runs / f"{stem}-{number + 1}").exists():
        number += 1
    return stem if number == 1 else f"{stem}-{number}"
