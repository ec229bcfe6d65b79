"""Where exceptions of a trial become data; the one place that may catch them all."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import ray.exceptions

from cptune.bench.job import (
    PEER_LOST,
    DeviceError,
    DeviceMemoryError,
    DirtyDeviceError,
    MemoryBudgetExceededError,
    OtherDeviceError,
)
from cptune.domain.outcome import Failure, MemoryShortage, OomKind, OutcomeKind
from cptune.errors import ClusterError

Result = TypeVar("Result")

#: The most telling first: a rank that ran out of memory explains its peers' broken connections.
_TELLING = (
    OutcomeKind.NOT_APPLIED,
    OutcomeKind.OUT_OF_MEMORY,
    OutcomeKind.DIRTY_DEVICE,
    OutcomeKind.CRASHED,
    OutcomeKind.NODE_LOST,
    OutcomeKind.COMMUNICATION,
    OutcomeKind.TIMEOUT,
)
_TYPED = (MemoryBudgetExceededError, DeviceMemoryError, DeviceError)
#: A rank on another device than it was placed on: what was asked for was not applied.
_OF_DEVICES: dict[type[DeviceError], OutcomeKind] = {
    DirtyDeviceError: OutcomeKind.DIRTY_DEVICE,
    OtherDeviceError: OutcomeKind.NOT_APPLIED,
}
_TIMED_OUT = ("timed out", "timeout")
#: How NCCL says that a peer is gone: ncclGetErrorString of ncclRemoteError, and torch's reason.
_NCCL_PEER_LOST = ("remote process exit", "ncclremoteerror")
#: What errors of NCCL say of timeouts also where none has passed: of the collective, of InfiniBand.
_PARAMETERS = re.compile(r"timeout\(ms\)=\d+|nccl_ib_timeout")
#: torch ends the process of a rank whose collective over NCCL is late, and says so just before.
_WATCHDOG = re.compile(r"Watchdog caught collective operation timeout.*")
_THROWN = re.compile(r"what\(\): +(.+)")  # of a C++ exception that nobody caught
_FATAL = re.compile(r"Fatal Python error: .+|\*\*\* SIG\w+ received.*")
_MEANT = {
    OutcomeKind.TIMEOUT: "a collective timed out",
    OutcomeKind.COMMUNICATION: "a peer was lost",
}
_SHOWN_LINES = 3  # of a traceback, in the message of a crash
_SHOWN = 300  # characters of a message


def attempt(run: Callable[[], Result], *, rank: int, node: str) -> Result | Failure:
    """Run a rank's part of a trial; whatever it raises comes back as a failure of that rank."""
    try:
        return run()
    except Exception as exc:
        return failure_from(exc, rank=rank, node=node)


def failure_from(
    exc: BaseException, *, rank: int | None, node: str | None, words: str = ""
) -> Failure:
    """The failure that an exception of a trial stands for.

    Args:
        exc: What a rank raised, or Ray in its place.
        rank: Of the trial.
        node: Where it ran.
        words: What a process that ended wrote to its standard error.
    """
    shortage = None
    # DTensor re-raises what an operator raised as a RuntimeError of its own.
    exc = next((one for one in _chain(exc) if isinstance(one, _TYPED)), exc)
    if isinstance(exc, MemoryBudgetExceededError):
        kind, message = OutcomeKind.OUT_OF_MEMORY, str(exc)
        shortage = MemoryShortage(
            kind=OomKind.CAPACITY if exc.asked_bytes > exc.capacity_bytes else OomKind.TENSOR,
            asked_bytes=exc.asked_bytes,
            free_bytes=exc.free_bytes,
        )
    elif isinstance(exc, DeviceMemoryError):
        kind, message, shortage = OutcomeKind.OUT_OF_MEMORY, str(exc), exc.shortage
    elif isinstance(exc, DeviceError):
        kind, message = _OF_DEVICES.get(type(exc), OutcomeKind.CRASHED), str(exc)
    elif isinstance(exc, ray.exceptions.OutOfMemoryError):
        kind, message = OutcomeKind.NODE_LOST, f"Ray ended rank {rank}: its node ran out of memory"
    elif isinstance(exc, ray.exceptions.ActorDiedError):
        kind, message = _ended(exc, rank=rank, words=words)
    elif isinstance(exc, ray.exceptions.RayError):
        kind, message = OutcomeKind.NODE_LOST, f"rank {rank} cannot be reached: {_brief(exc)}"
    else:
        kind, message = _told(exc)
    return Failure(kind=kind, message=message, rank=rank, node=node, shortage=shortage)


def most_telling(failures: Sequence[Failure]) -> Failure:
    """The failure that explains the others; the first reported of those that tell as much."""
    return min(failures, key=lambda failure: _TELLING.index(failure.kind))


def _chain(exc: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = exc
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _ended(exc: BaseException, *, rank: int | None, words: str) -> tuple[OutcomeKind, str]:
    """Why a process ended: by its last words where these tell, as those of NCCL's watchdog do."""
    late = _WATCHDOG.search(words)
    if late is not None:
        return OutcomeKind.TIMEOUT, f"a collective timed out: {late.group()[:_SHOWN]}"
    thrown = _THROWN.search(words)
    kind = None if thrown is None else _kind_told(thrown.group(1))
    if thrown is not None and kind is not None:
        return kind, f"{_MEANT[kind]}: {thrown.group(1)[:_SHOWN]}"
    found = thrown or _FATAL.search(words)
    said = "" if found is None else f"; it wrote: {found.group()[:_SHOWN]}"
    return OutcomeKind.CRASHED, f"the process of rank {rank} ended: {_brief(exc)}{said}"


def _kind_told(text: str) -> OutcomeKind | None:
    """What the message of a communication library tells; None: nothing about peers."""
    plain = _PARAMETERS.sub("", text.lower())
    if any(word in plain for word in _TIMED_OUT):
        return OutcomeKind.TIMEOUT
    if any(word in plain for word in (*PEER_LOST, *_NCCL_PEER_LOST)):
        return OutcomeKind.COMMUNICATION
    return None


def _told(exc: BaseException) -> tuple[OutcomeKind, str]:
    # DTensor, and what runs backward, raise an error of their own from that of a collective.
    for one in _chain(exc):
        kind = _kind_told(str(one)) if isinstance(one, (RuntimeError, OSError)) else None
        if kind is not None:
            return kind, f"{_MEANT[kind]}: {_brief(one)}"
    frames = traceback.extract_tb(exc.__traceback__)[-_SHOWN_LINES:]
    places = " > ".join(f"{frame.name}:{frame.lineno}" for frame in frames)
    return OutcomeKind.CRASHED, f"{type(exc).__name__}: {_brief(exc)} (at {places})"


def _brief(exc: BaseException) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return lines[0][:_SHOWN] if lines else type(exc).__name__


@contextmanager
def as_cluster_error(what: str) -> Generator[None]:
    """Whatever Ray raises when it does not start, bare Exceptions too, says what it was.

    Raises:
        ClusterError: `what` and the reason.
    """
    try:
        yield
    except ClusterError:
        raise
    except Exception as exc:
        raise ClusterError(f"{what}: {exc}") from exc
