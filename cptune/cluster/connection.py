"""The way in and out of a Ray cluster: a local one of our own, or an address of somebody else's."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import ray
import ray.exceptions
from ray._private import services

from cptune.cluster import reaper
from cptune.cluster.failures import as_cluster_error
from cptune.errors import ClusterError, SpecError

_Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None

LOCAL = "local"
_KNOCK_S = 10.0
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_SIGNALLED = 128  # an exit code is this and the number of the signal
_OBJECT_STORE_BYTES = 100_000_000  # trials pass a few kilobytes; Ray's default is a third of RAM


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """One living node of the cluster."""

    node_id: str
    name: str
    cpus: float
    gpus: float


@contextmanager
def connected(address: str, *, cpus: int, gpus: int | None = None) -> Generator[list[RayNode]]:
    """Connect to Ray and give its usable nodes; a local Ray is started for this and ended with it.

    Until it ends, standard output is standard error: Ray prints there what became of a worker.

    Args:
        address: "local", or the address of a running cluster.
        cpus: Logical CPUs of a local Ray: one for each rank, however many cores there are.
        gpus: GPUs of a local Ray; what Ray finds where omitted.

    Raises:
        SpecError: when the address is none.
        ClusterError: when Ray cannot be started or reached.
    """
    with _reaped() if address == LOCAL else nullcontext(), _own_exit_code() as take_signals:
        _start(address, cpus=cpus, gpus=gpus)
        take_signals()
        with redirect_stdout(sys.stderr):
            try:
                yield usable_nodes(ray.nodes())
            finally:
                ray.shutdown()


def _start(address: str, *, cpus: int, gpus: int | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    knock(address)
    what = "start a local Ray" if address == LOCAL else f"reach Ray at {address}"
    with as_cluster_error(f"cannot {what}"):
        if address == LOCAL:
            with _in_own_groups():
                ray.init(
                    address=LOCAL,
                    num_cpus=cpus,
                    num_gpus=gpus,
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                )
        else:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)


@contextmanager
def _in_own_groups() -> Generator[None]:
    """Give each process that Ray starts inside a process group of its own.

    A signal to the group of the driver, as a scheduler or `timeout` sends it, would end Ray under
    the driver's feet: its clean-up waits for a dead head, and Ray aborts it after a minute.
    """
    starter: Any = services
    plain = starter.ConsolePopen
    starter.ConsolePopen = partial(plain, process_group=0)
    try:
        yield
    finally:
        starter.ConsolePopen = plain


def knock(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself dials on for minutes.

    Raises:
        SpecError: when the address is no host:port.
        ClusterError: when nobody answers there in time.
    """
    if address == LOCAL:
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host and address == "auto":
        return
    if not port.isdigit() or not host or not 0 < int(port) < 1 << 16:
        raise SpecError(
            f"--address is {address!r}; wanted host:port with a port of 1 to 65535, or local"
        )
    try:
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()
    except OSError as exc:
        raise ClusterError(
            f"cannot reach Ray at {address}: {exc}",
            hint="wanted the address that `ray start --head` printed",
        ) from exc


@contextmanager
def _reaped() -> Generator[None]:
    """End what starts inside together with it, also when this process is killed."""
    command = [sys.executable, "-S", reaper.__file__, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield


@contextmanager
def _own_exit_code() -> Generator[Callable[[], None]]:
    """Keep this process's handlers of signals that end it, and the exit codes that they ask for.

    Ray puts its own in place for SIGTERM, which exits with the signal's bare number: call what is
    given once Ray has started. Ray's waits also raise an exit with code 1 for any that a handler
    raised.
    """
    kept = {number: signal.getsignal(number) for number in _ENDING}
    exits: list[SystemExit] = []

    def take_signals() -> None:
        for number, handler in kept.items():
            signal.signal(number, _remembering(handler, exits))

    try:
        take_signals()  # of those that Ray leaves alone while it starts
        yield take_signals
    except SystemExit as exc:
        if not exits and exc.code == signal.SIGTERM:  # of Ray's own handler, while it starts
            exits.append(SystemExit(_SIGNALLED + signal.SIGTERM))
        raise (exits or [exc])[0] from None
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _remembering(handler: _Handler, exits: list[SystemExit]) -> _Handler:
    if not callable(handler):
        return handler

    def remember(number: int, frame: FrameType | None) -> object:
        try:
            return handler(number, frame)
        except SystemExit as exc:
            exits.append(exc)
            raise

    return remember


def usable_nodes(seen: Sequence[Mapping[str, Any]]) -> list[RayNode]:
    """The living nodes that offer CPUs or GPUs, by name, of what `ray.nodes` tells.

    A node that offers neither, as a head that was started with `--num-cpus=0` for the driver
    alone, holds no rank and is no part of the topology: it need not be like the others.
    """
    living = [
        RayNode(
            node_id=node["NodeID"],
            name=node["NodeManagerHostname"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
        )
        for node in seen
        if node["Alive"]
    ]
    offering = [node for node in living if node.cpus or node.gpus]
    return sorted(offering, key=lambda node: (node.name, node.node_id))
