"""Gloo ranks on this machine, started once and reused: process start is the cost of rank tests.

The ranks fork from a fresh server process that did nothing but import, so neither the first start
nor a restart inherits thread pools from the tests that ran before, and no rank imports torch again.
"""

import contextlib
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

PRELOADED = [
    *("torch", "torch.distributed", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"),
    "torch._inductor",  # what torch.use_deterministic_algorithms imports
    "cptune.bench.step",
]
GRACE_S = 1.0  # after the first failed rank, for the others to say what they saw


class RankError(AssertionError):
    """At least one rank failed; the message holds every traceback that arrived."""


class _Rank(NamedTuple):
    process: BaseProcess
    pipe: Connection


class RankPool:
    """Runs a function on `world` ranks at once, each with a fresh default process group.

    A rank that raises, dies or is late fails the call, and the ranks are replaced at the next one;
    so are ranks that served `cases_each`: threads of gloo that outlive a case slow those after it.
    """

    def __init__(self, *, cases_each: int = 25) -> None:
        self._cases_each, self._served = cases_each, 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._ranks: list[_Rank] = []
        self._case = 0

    def run(
        self, fn: Callable[..., Any], *, world: int, timeout_s: float = 60.0, **kwargs: Any
    ) -> list[Any]:
        """Call `fn(**kwargs)` on ranks 0..world-1 of a new gloo group and return their results.

        Args:
            fn: A module-level function. It may use torch.distributed's default group.
            world: Number of ranks.
            timeout_s: After that many seconds the ranks are killed and the case fails.
            **kwargs: Plain, picklable arguments.

        Raises:
            RankError: A rank raised, died or was late.
        """
        if self._served == self._cases_each:
            self.close()
        while len(self._ranks) < world:
            self._ranks.append(self._start())
        self._case += 1
        self._served += 1
        ranks = self._ranks[:world]
        try:
            for rank, (_, pipe) in enumerate(ranks):
                pipe.send((sys.path, self._case, rank, world))
                pipe.send((fn, timeout_s, kwargs))
            results, failures = self._collect(ranks, deadline_s=time.monotonic() + timeout_s)
        except BaseException:  # an interrupt or the test's own time limit: answers are still due
            self.close()
            raise
        if failures:
            self.close()
            told = "\n".join(f"rank {rank} of {world}: {why}" for rank, why in failures.items())
            raise RankError(f"{fn.__module__}.{fn.__qualname__} failed\n{told}")
        return [results[rank] for rank in range(world)]

    def close(self) -> None:
        """Kill all ranks. The next run starts new ones."""
        for process, pipe in self._ranks:
            process.kill()
            process.join()
            pipe.close()
            process.close()
        self._ranks.clear()
        self._served = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the live ranks."""
        return [process.pid for process, _ in self._ranks if process.pid]

    def _start(self) -> _Rank:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._store.port), daemon=True)
        process.start()
        theirs.close()
        return _Rank(process, ours)

    def _collect(
        self, ranks: list[_Rank], *, deadline_s: float
    ) -> tuple[dict[int, Any], dict[int, str]]:
        results: dict[int, Any] = {}
        failures: dict[int, str] = {}
        open_pipes = {pipe: rank for rank, (_, pipe) in enumerate(ranks)}
        while open_pipes:
            ready = wait(list(open_pipes), timeout=max(0.0, deadline_s - time.monotonic()))
            if not ready:
                late = "gave no answer in time" if not failures else "still running; killed"
                failures |= dict.fromkeys(open_pipes.values(), late)
                break
            for pipe in ready:
                rank = open_pipes.pop(pipe)
                try:
                    raised, value = pipe.recv()
                except EOFError:
                    ranks[rank].process.join(GRACE_S)
                    raised, value = True, f"died with exit code {ranks[rank].process.exitcode}"
                (failures if raised else results)[rank] = value
            if failures:
                deadline_s = min(deadline_s, time.monotonic() + GRACE_S)
        return results, failures


def _serve(pipe: Connection, port: int) -> None:
    """What a rank does until it is killed or its pipe closes."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            sys.path[:], case, rank, world = pipe.recv()
            try:
                answer = (False, _run_case(pipe, dist.PrefixStore(str(case), store), rank, world))
            except Exception:  # noqa: BLE001 - whatever a case raises is its result
                answer = (True, traceback.format_exc())
            pipe.send(answer)


def _run_case(pipe: Connection, store: dist.Store, rank: int, world: int) -> Any:
    fn, timeout_s, kwargs = pipe.recv()
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
    try:
        dist.barrier()  # who is done at once must not hang up on a rank that still joins
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return fn(**kwargs)
    finally:
        dist.destroy_process_group()
