"""Gloo ranks of one benchmark: forked from a server that only imported, one thread each."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from cptune.bench.job import Rendezvous
from cptune.bench.mesh import joined, open_store

_HOST = "127.0.0.1"


class RankFailedError(RuntimeError):
    """A rank raised, died or was late; the message says which and why."""


def run_on_ranks(
    fn: Callable[..., Any], *, world: int, timeout_s: float = 120.0, **kwargs: object
) -> list[Any]:
    """Call `fn(**kwargs)` on ranks 0..world-1 of a new default group and return their results.

    Args:
        fn: A module-level function.
        world: Number of ranks.
        timeout_s: The ranks are killed when they take longer.
        **kwargs: Picklable arguments.

    Raises:
        RankFailedError: A rank gave no result.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.attention", "bench.monitor"])
    store, port = open_store(_HOST)
    rendezvous = Rendezvous(host=_HOST, port=port, prefix=fn.__qualname__, timeout_s=timeout_s)
    pipes: list[Connection] = []
    processes = []
    try:
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (theirs, rendezvous, rank, world, fn, kwargs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        return _collect(pipes, deadline_s=time.monotonic() + timeout_s)
    finally:
        for process in processes:
            process.kill()
            process.join()
        del store


def _collect(pipes: list[Connection], *, deadline_s: float) -> list[Any]:
    results: dict[Connection, Any] = {}
    while len(results) < len(pipes):
        due = [pipe for pipe in pipes if pipe not in results]
        ready = wait(due, timeout=max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise RankFailedError(f"rank {pipes.index(due[0])} gave no result in time")
        for pipe in ready:
            try:
                failure, results[pipe] = pipe.recv()
            except EOFError as exc:
                raise RankFailedError(f"rank {pipes.index(pipe)} died") from exc
            if failure:
                raise RankFailedError(f"rank {pipes.index(pipe)} failed\n{failure}")
    return [results[pipe] for pipe in pipes]


def _serve(
    pipe: Connection,
    rendezvous: Rendezvous,
    rank: int,
    world: int,
    fn: Callable[..., Any],
    kwargs: dict[str, object],
) -> None:
    torch.set_num_threads(1)
    try:
        with joined(rendezvous, rank=rank, world_size=world):
            result = fn(**kwargs)
    except BaseException:  # whatever it was, the parent must hear of it
        pipe.send((traceback.format_exc(), None))
        raise
    pipe.send(("", result))
