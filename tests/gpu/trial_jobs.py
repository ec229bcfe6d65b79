"""Jobs of whole trials, and what runs them: one process, or several ranks on one device."""

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import Empty
from time import monotonic, perf_counter

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from staged import register

from cptune.bench.device import CpuDevice, RankDevice
from cptune.bench.job import RankJob, Rendezvous
from cptune.bench.rank import run_rank
from cptune.domain.candidate import Candidate, DataParallelKind, LossKind, Recompute
from cptune.domain.layout import ParallelLayout
from cptune.domain.outcome import RankReport
from cptune.domain.study import TraceKind
from cptune.domain.timeline import DEVICE_INTERVALS
from cptune.domain.workload import ModelShape, Precision, Workload

MODEL = ModelShape(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=192, vocab=256)
SEQ_LEN, BATCH = 256, 4
#: For all cases of one start; CPU processes may share their cores with other work.
JOIN_S = {"cuda": 90.0, "cpu": 250.0, "ticket": 250.0}


def candidate_of(axes: Mapping[str, object]) -> Candidate:
    names = ("tp", "cp", "pp", "vpp", "dp")
    layout = ParallelLayout(**{name: axes[name] for name in names if name in axes})
    return Candidate(
        layout=layout,
        stages=layout.cp - 1,
        micro_batch=axes.get("micro_batch", 1),
        recompute=Recompute(axes.get("recompute", "none")),
        loss=LossKind(axes.get("loss", "full")),
        data_parallel=DataParallelKind(axes.get("data_parallel", "ddp")),
    )


def job_of(axes: Mapping[str, object], *, port: int, rank: int, name: str, **changed) -> RankJob:
    fields = {
        "rank": rank,
        "node": "here",
        "gpu_uuid": None,
        "candidate": candidate_of(axes),
        "model": MODEL,
        "workload": Workload(
            seq_len=SEQ_LEN,
            global_batch_seqs=BATCH,
            precision=Precision(axes.get("precision", "fp32")),
        ),
        "capacity_bytes": 1 << 40,
        "warmup_steps": 2,
        "steps": 3,
        "seed": 0,
        "rendezvous": Rendezvous(host="127.0.0.1", port=port, prefix=name, timeout_s=60.0),
        "trace": TraceKind.ABLATION,
    }
    return RankJob(**fields | changed)


class TicketClock:
    """The host's clock behind tickets, as events are: a number that has no time before it settles.

    Whoever takes a reading for seconds is off by a lot.
    """

    method = DEVICE_INTERVALS
    queues_waits = False

    def __init__(self) -> None:
        self._times: list[float] = []
        self._settled = 0
        self._lock = threading.Lock()

    def restart(self) -> float:
        with self._lock:
            self._times.clear()
            self._settled = 0
        return perf_counter()

    def now(self) -> float:
        with self._lock:
            self._times.append(perf_counter())
            return float(len(self._times) - 1)

    def settle(self) -> float:
        self._settled = len(self._times)
        return perf_counter()

    def seconds(self, reading: float) -> float:
        assert reading < self._settled, "a reading is told before the device came to it"
        return self._times[int(reading)]

    def beside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def hold(self, reading: float) -> None:
        assert reading < len(self._times)


class TicketDevice(CpuDevice):
    """A CPU process that is told, watched and timed as a GPU is."""

    def __init__(self, *, backend: str) -> None:
        super().__init__(backend=backend)
        self.clock = TicketClock()
        self.watches_timed_steps = self.host_sees_transfers = False


def device_of(kind: str, *, backend: str | None = None, shared: bool = False) -> RankDevice:
    """The device under test; it alone asks which kind that is."""
    backend = backend or register()
    if kind == "cpu":
        return CpuDevice(backend=backend)
    if kind == "ticket":
        return TicketDevice(backend=backend)
    from cptune.bench.cuda import CudaDevice

    return CudaDevice(0, backend=backend, shared=shared)


def open_store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def alone(axes: Mapping[str, object], *, device: RankDevice, **changed) -> RankReport:
    """A trial of one rank in this process."""
    store = open_store()
    return run_rank(job_of(axes, port=store.port, rank=0, name="alone", **changed), device)


def on_ranks(
    kind: str, cases: list[Mapping[str, object]], *, world: int, backend: str | None = None
) -> list[list[RankReport]]:
    """For each case, the reports of all ranks, which share one device of that kind."""
    store, context = open_store(), mp.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(
            target=_serve,
            args=(kind, backend, rank, world, store.port, cases, results),
            daemon=True,
        )
        for rank in range(world)
    ]
    for one in ranks:
        one.start()
    try:
        found = _collect(results, ranks, within_s=JOIN_S[kind])
    finally:
        for one in ranks:
            one.join(5.0)
            one.kill()
    found |= {rank: "no answer" for rank in range(world) if rank not in found}
    told = {rank: answer for rank, answer in found.items() if isinstance(answer, str)}
    assert not told, "\n".join(told.values())
    return [[found[rank][at] for rank in range(world)] for at in range(len(cases))]


def _collect(results, ranks: list, *, within_s: float) -> dict:
    """Every rank's answer; what a rank that died says is its exit code."""
    found, deadline = {}, monotonic() + within_s
    while len(found) < len(ranks):
        with suppress(Empty):
            rank, answer = results.get(timeout=1.0)
            found[rank] = answer
            continue
        dead = [one.exitcode for one in ranks if one.exitcode]
        assert not dead, f"a rank died with exit code {dead[0]}"
        assert monotonic() < deadline, f"{sorted(found)} of {len(ranks)} ranks answered in time"
        if any(isinstance(answer, str) for answer in found.values()):
            break  # its peers wait for it
    return found


def _serve(
    kind: str, backend: str | None, rank: int, world: int, port: int, cases: list, results
) -> None:
    import traceback

    torch.set_num_threads(1)
    try:
        device = device_of(kind, backend=backend, shared=True)
        reports = [
            run_rank(job_of(axes, port=port, rank=rank, name=f"case-{at}"), device)
            for at, axes in enumerate(cases)
        ]
        results.put((rank, reports))
    except Exception:  # noqa: BLE001 - whatever a case raises is its result
        results.put((rank, f"rank {rank} of {world}: {traceback.format_exc()}"))
