"""One rank's whole trial: join, build, warm up, time, report."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace

import torch

from cptune.attention import ContextParallel
from cptune.bench.attention import MeasuredContextParallel
from cptune.bench.batch import sample_ids
from cptune.bench.contention import contended_edges
from cptune.bench.device import RankDevice, open_device
from cptune.bench.feed import Feed
from cptune.bench.job import RankJob
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import Mesh, build_mesh, joined
from cptune.bench.steady import Steps, run_steadily
from cptune.bench.step import StepResult, TrainStep
from cptune.bench.trace import trace_ablated, trace_step
from cptune.domain.candidate import Recompute
from cptune.domain.layout import Axis
from cptune.domain.memory import Kept
from cptune.domain.outcome import EdgeReport, RankReport
from cptune.domain.study import TraceKind
from cptune.domain.timeline import RankTrace
from cptune.domain.workload import AttentionMask, Precision
from cptune.predict import saved
from cptune.predict.shares import stage_share

#: Of warm-up, where the timed steps are not watched: the second is the first that begins with the
#: optimizer's moments, without which a peak would be told of other parts than it has.
_WATCHED_STEPS = 2


def run_rank(job: RankJob, device: RankDevice | None = None) -> RankReport:
    """Train one candidate on this rank; collective over all ranks of the job's rendezvous.

    Args:
        job: What to train.
        device: What to compute on; the one that the job names where omitted.

    Raises:
        DeviceError: when the device is not there, or not the one that was meant.
        DirtyDeviceError: when somebody else has memory of it.
        MemoryBudgetExceededError: when an allocation exceeds the rank's budget.
        DeviceMemoryError: when the allocator of the device has no memory left.
        RuntimeError: when a peer is lost or a collective times out (torch.distributed).
    """
    device = device or open_device(job)
    memory = device.start_trial(job.capacity_bytes)
    world_size = job.candidate.layout.world_size
    met = joined(
        job.rendezvous,
        rank=job.rank,
        world_size=world_size,
        backend=device.backend,
        ends_after_failure=device.ends_groups,
    )
    with device.typed_shortage(), met:
        report = _run(job, device=device, memory=memory)
    device.close_trial()  # not after a failure: work that waits for a peer may never be done
    return report


def _run(job: RankJob, *, device: RankDevice, memory: TensorBudget) -> RankReport:
    mesh = build_mesh(job.candidate.layout, device_type=device.torch.type)
    cp = _context_parallel(job, mesh)
    for group in (*cp.groups, *([] if mesh.pp is None else [mesh.pp])):
        device.connect(group)
    traced: list[RankTrace] = []
    with ExitStack() as watched:
        watched.enter_context(memory)
        step = _build_step(job, mesh=mesh, cp=cp, memory=memory, device=device)
        feed = Feed(job, packs=step.packs, ids=_own_ids(job, mesh))

        def trace(index: int) -> StepResult:
            samples = feed.samples(index)
            with memory.uncounted():
                result, seen = trace_step(step, samples, mesh=mesh, cp=cp, memory=memory)
            traced.append(seen)
            return result

        def start_timing() -> None:
            cp.traffic.reset()
            feed.restart_count()
            if not device.watches_timed_steps:
                watched.close()

        steps = run_steadily(
            lambda index: step.run(feed.samples(index)),
            rule=job.stop_rule,
            start_timing=start_timing,
            trace=trace if job.trace is TraceKind.STEP else None,
            cold_steps=1 if device.watches_timed_steps else _WATCHED_STEPS,
        )
    report = _report(job, mesh=mesh, step=step, memory=memory, steps=steps, feed=feed)
    report = _as_device_tells(report, device)
    if job.trace is TraceKind.ABLATION:
        samples = feed.samples(job.warmup_steps + job.steps)
        traced.append(trace_ablated(step, samples, mesh=mesh, cp=cp, memory=memory))
    edges = contended_edges(job.trace, report.edges, mesh=mesh, cp=cp, memory=memory, device=device)
    return replace(report, trace=traced[-1] if traced else None, edges=edges)


def _as_device_tells(report: RankReport, device: RankDevice) -> RankReport:
    report = replace(
        report, gpu_uuid=device.uuid or report.gpu_uuid, used_bytes=device.used_bytes()
    )
    if device.host_sees_transfers:
        return report
    return replace(report, edges=tuple(replace(edge, seconds=None) for edge in report.edges))


def _dtype(job: RankJob) -> torch.dtype:
    return torch.bfloat16 if job.workload.precision is Precision.BF16 else torch.float32


def _context_parallel(job: RankJob, mesh: Mesh) -> MeasuredContextParallel:
    candidate, model = job.candidate, job.model
    return MeasuredContextParallel(
        mesh.cp,
        seq_len=job.workload.seq_len,
        sharding=candidate.sharding.value,
        mask=job.workload.mask.value,
        docs=(job.workload.seq_len,) if job.workload.mask is AttentionMask.DOCUMENT else None,
        strategy=candidate.strategy.value,
        ulysses=candidate.layout.ulysses,
        stages=candidate.stages or None,
        kernel=candidate.kernel,
        heads=model.heads // candidate.layout.tp,
        kv_heads=max(1, model.kv_heads // candidate.layout.tp),
        head_dim=model.head_dim,
        dtype=_dtype(job),
    )


def _build_step(
    job: RankJob,
    *,
    mesh: Mesh,
    cp: ContextParallel,
    memory: TensorBudget,
    device: RankDevice,
) -> TrainStep:
    per_pass = job.candidate.layout.dp * job.candidate.micro_batch
    return TrainStep(
        job.candidate,
        shape=job.model,
        mesh=mesh,
        cp=cp,
        memory=memory,
        seed=job.seed,
        dtype=_dtype(job),
        micro_batches=job.workload.global_batch_seqs // per_pass,
        device=device,
    )


def _own_ids(job: RankJob, mesh: Mesh) -> range:
    return sample_ids(
        dp_rank=mesh.at.dp,
        dp_size=mesh.layout.dp,
        global_batch_seqs=job.workload.global_batch_seqs,
    )


def _report(
    job: RankJob,
    *,
    mesh: Mesh,
    step: TrainStep,
    memory: TensorBudget,
    steps: Steps,
    feed: Feed,
) -> RankReport:
    first, timed, cp, peaks = steps.first, steps.timed, step.cp, memory.peaks()
    planned, layers = feed.planned, sum(len(chunk.blocks) for chunk in step.chunks)
    forwards = 2 if job.candidate.recompute is Recompute.FULL else 1
    return RankReport(
        rank=job.rank,
        node=job.node,
        pid=os.getpid(),
        gpu_uuid=job.gpu_uuid,
        step_s=tuple(result.seconds for result in timed),
        warmup_s=tuple(result.seconds for result in steps.warmup),
        tp_exposed_s=tuple(result.tp_exposed_s for result in timed),
        cp_exposed_s=tuple(result.cp_exposed_s for result in timed),
        dp_exposed_s=tuple(result.dp_exposed_s for result in timed),
        pp_exposed_s=tuple(result.pp_exposed_s for result in timed),
        forward_peak_bytes=peaks.forward_bytes,
        backward_peak_bytes=peaks.backward_bytes,
        peak_allocated_bytes=peaks.allocated_bytes,
        peak_reserved_bytes=peaks.reserved_bytes,
        attended_pairs=planned.pairs * layers // len(timed),
        planned_sent_bytes=(forwards * planned.forward_sent_bytes + planned.backward_sent_bytes)
        * layers
        // len(timed),
        sent_bytes=(cp.traffic.forward_sent_bytes + cp.traffic.backward_sent_bytes) // len(timed),
        kernel=step.packs.kernel,
        first_loss=first.loss,
        first_grad_norm=first.grad_norm,
        sample_hash=feed.first_hash,
        edges=_edges(mesh, cp, steps=len(timed)),
        memory=memory.split(),
        kept=_kept(job, mesh=mesh, step=step, memory=memory),
    )


def _kept(job: RankJob, *, mesh: Mesh, step: TrainStep, memory: TensorBudget) -> Kept:
    candidate, model = job.candidate, job.model
    return Kept(
        attention_bytes=step.attention_saved_bytes,
        planned_attention_bytes=saved.attention_saved_bytes(
            model,
            tokens=saved.rank_tokens(candidate, job.workload),
            layout=candidate.layout,
            width=saved.width(job.workload.precision),
        ),
        peak_bytes=memory.parts.peak_saved_bytes,
        planned_peak_bytes=saved.rank_saved_bytes(
            model, candidate, job.workload, stage_share(model, candidate.layout, mesh.at.pp)
        ),
    )


def _edges(mesh: Mesh, cp: ContextParallel, *, steps: int) -> tuple[EdgeReport, ...]:
    own = mesh.layout.rank(mesh.at)
    group = next(ranks for ranks in mesh.layout.groups(Axis.CP) if own in ranks)
    return tuple(
        EdgeReport(
            peer_rank=group[peer],
            axis=Axis.CP.value,
            sent_bytes=traffic.sent_bytes // steps,
            received_bytes=traffic.received_bytes // steps,
            seconds=traffic.seconds / steps,
        )
        for peer, traffic in sorted(cp.traffic.peers.items())
    )
