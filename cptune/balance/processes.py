"""The ranks of a measurement as processes of this machine: one gloo group, one thread each."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from cptune.balance.batches import Batches, Timed, time_batches
from cptune.bench.calls import COLLECTIVE_S, RankCall
from cptune.bench.job import GRACE_S, PEER_LOST, Rendezvous
from cptune.errors import ClusterError

_HOST = "127.0.0.1"
_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


def run_on_processes(
    function: Callable[[_Given], _Found], argument: _Given, *, ranks: int
) -> list[_Found]:
    """Run a function on so many processes.

    Raises:
        ClusterError: when a process fails or is late; all are ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cptune.balance.measure"])
    forkserver.ensure_running()  # it imports torch while this process does
    from cptune.bench.mesh import open_store

    store, port = open_store(_HOST)
    rendezvous = Rendezvous(host=_HOST, port=port, prefix="balance", timeout_s=COLLECTIVE_S)
    pipes: list[Connection] = []
    processes = []
    try:
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            call = RankCall(
                function=function,
                argument=argument,
                rank=rank,
                world_size=ranks,
                rendezvous=rendezvous,
            )
            process = context.Process(target=_serve, args=(theirs, call), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        return _collect(pipes)
    finally:
        for process in processes:
            process.kill()
            process.join()
        del store


def measure(batches: Batches, *, ranks: int) -> list[Timed]:
    """Time the batches on so many processes.

    Raises:
        ClusterError: when a process fails or is late; all are ended.
    """
    return run_on_processes(time_batches, batches, ranks=ranks)


def _serve(pipe: Connection, call: RankCall[_Given, _Found]) -> None:
    try:
        from cptune.bench.mesh import use_threads

        use_threads(1)
        found = call.run()
    except BaseException:  # whatever it was, the parent must hear of it
        pipe.send((False, traceback.format_exc()))
        raise
    pipe.send((True, found))


def _collect(pipes: list[Connection]) -> list[_Found]:
    found: dict[Connection, _Found] = {}
    failures: dict[Connection, str] = {}
    deadline_s = time.monotonic() + COLLECTIVE_S
    while due := [pipe for pipe in pipes if pipe not in found and pipe not in failures]:
        ready = wait(due, timeout=max(0.0, deadline_s - time.monotonic()))
        if not ready:
            break
        for pipe in (one for one in due if one in ready):
            _receive(pipe, found=found, failures=failures)
        if failures:
            deadline_s = min(deadline_s, time.monotonic() + GRACE_S)
    if failures:
        # Those who lost a peer say so too, and may be heard first.
        pipe = min(failures, key=lambda one: _has_lost_a_peer(failures[one]))
        raise ClusterError(f"measuring rank {pipes.index(pipe)} failed: {failures[pipe]}")
    if due:
        raise ClusterError(f"measuring rank {pipes.index(due[0])} gave no result in time")
    return [found[pipe] for pipe in pipes]


def _has_lost_a_peer(failure: str) -> bool:
    return any(words in failure.lower() for words in PEER_LOST)


def _receive(
    pipe: Connection, *, found: dict[Connection, _Found], failures: dict[Connection, str]
) -> None:
    try:
        succeeded, answer = pipe.recv()
    except EOFError:
        failures[pipe] = "its process died"
        return
    if succeeded:
        found[pipe] = answer
    else:
        failures[pipe] = str(answer).strip().splitlines()[-1]
