"""The ranks of a measurement: processes of this machine, one gloo group, one thread each."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait

from cptune.balance.batches import Batches, Timed
from cptune.bench.job import Rendezvous
from cptune.errors import ClusterError

_HOST = "127.0.0.1"
_TIMEOUT_S = 120.0


def measure(batches: Batches, *, ranks: int) -> list[Timed]:
    """Time the batches on so many processes.

    Raises:
        ClusterError: when a process fails or is late; all are ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cptune.balance.measure"])
    forkserver.ensure_running()  # it imports torch while this process does
    from cptune.bench.mesh import open_store

    store, port = open_store(_HOST)
    rendezvous = Rendezvous(host=_HOST, port=port, prefix="balance", timeout_s=_TIMEOUT_S)
    pipes: list[Connection] = []
    processes = []
    try:
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_serve, args=(theirs, rendezvous, rank, ranks, batches), daemon=True
            )
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


def _serve(
    pipe: Connection, rendezvous: Rendezvous, rank: int, world: int, batches: Batches
) -> None:
    try:
        from cptune.balance.measure import time_rank
        from cptune.bench.mesh import joined, use_threads

        use_threads(1)
        with joined(rendezvous, rank=rank, world_size=world):
            timed = time_rank(batches)
    except BaseException:  # whatever it was, the parent must hear of it
        pipe.send(traceback.format_exc())
        raise
    pipe.send(timed)


def _collect(pipes: list[Connection]) -> list[Timed]:
    found: dict[Connection, Timed] = {}
    deadline_s = time.monotonic() + _TIMEOUT_S
    while len(found) < len(pipes):
        due = [pipe for pipe in pipes if pipe not in found]
        ready = wait(due, timeout=max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise ClusterError(f"measuring rank {pipes.index(due[0])} gave no result in time")
        for pipe in (one for one in due if one in ready):
            try:
                answer = pipe.recv()
            except EOFError as exc:
                raise ClusterError(f"measuring rank {pipes.index(pipe)} died") from exc
            if not isinstance(answer, Timed):
                last = str(answer).strip().splitlines()[-1]
                raise ClusterError(f"measuring rank {pipes.index(pipe)} failed: {last}")
            found[pipe] = answer
    return [found[pipe] for pipe in pipes]
