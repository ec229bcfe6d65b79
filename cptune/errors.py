"""The errors that cptune raises; a trial that fails is data (`Failure`), never one of these.

    Exception
      CptuneError              exit 1
        SpecError              exit 2: the user's input (sweep.toml, flags, run directory)
        ClusterError           Ray, its nodes or its actors cannot do what was asked
        LedgerError            a run directory cannot be read or written
      topology.errors.TopologyError   exit 1: stands alone, since `topology` knows nothing of cptune

Each takes one positional message and keyword-only details, so that it survives pickle between
processes.
"""

from __future__ import annotations


class CptuneError(Exception):
    """Base of every error that cptune raises on purpose.

    Args:
        message: What happened, the value seen, what was wanted.
        hint: What to do about it; empty where there is nothing to add.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[object, tuple[type[CptuneError], str, str]]:
        return _rebuild, (type(self), str(self), self.hint)


def _rebuild(kind: type[CptuneError], message: str, hint: str) -> CptuneError:
    return kind(message, hint=hint)


class SpecError(CptuneError):
    """The user's input is wrong; nothing was started."""

    exit_code = 2


class ClusterError(CptuneError):
    """The cluster cannot be reached or cannot hold what was asked for."""


class LedgerError(CptuneError):
    """A run directory cannot be read or written."""
