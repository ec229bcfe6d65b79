"""One rank's whole trial: join, build, warm up, time, report."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from cptune.attention import ContextParallel
from cptune.bench.attention import MeasuredContextParallel
from cptune.bench.batch import sample_ids
from cptune.bench.contention import contended_edges
from cptune.bench.feed import Feed
from cptune.bench.job import RankJob
from cptune.bench.memory import TensorBudget, process_peak_bytes, restart_process_peak
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


def run_rank(job: RankJob) -> RankReport:
    """Train one candidate on this rank; collective over all ranks of the job's rendezvous.

    Raises:
        MemoryBudgetExceededError: when an allocation exceeds the rank's budget.
        RuntimeError: when a peer is lost or a collective times out (torch.distributed).
    """
    layout = job.candidate.layout
    restart_process_peak()
    memory = TensorBudget(job.capacity_bytes)
    with joined(job.rendezvous, rank=job.rank, world_size=layout.world_size):
        mesh = build_mesh(layout)
        cp = _context_parallel(job, mesh)
        with memory:
            step = _build_step(job, mesh=mesh, cp=cp, memory=memory)
            feed = Feed(job, packs=step.packs, ids=_own_ids(job, mesh))
            traced: list[RankTrace] = []

            def trace(index: int) -> StepResult:
                samples = feed.samples(index)
                with memory.uncounted():
                    result, seen = trace_step(step, samples, mesh=mesh, cp=cp, memory=memory)
                traced.append(seen)
                return result

            steps = run_steadily(
                lambda index: step.run(feed.samples(index)),
                rule=job.stop_rule,
                start_timing=lambda: _start_timing(cp, feed),
                trace=trace if job.trace is TraceKind.STEP else None,
            )
        report = _report(job, mesh=mesh, step=step, memory=memory, steps=steps, feed=feed)
        if job.trace is TraceKind.ABLATION:
            samples = feed.samples(job.warmup_steps + job.steps)
            traced.append(trace_ablated(step, samples, mesh=mesh, cp=cp, memory=memory))
        edges = contended_edges(job.trace, report.edges, mesh=mesh, cp=cp, memory=memory)
        return replace(report, trace=traced[-1] if traced else None, edges=edges)


def _start_timing(cp: ContextParallel, feed: Feed) -> None:
    cp.traffic.reset()
    feed.restart_count()


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
    job: RankJob, *, mesh: Mesh, cp: ContextParallel, memory: TensorBudget
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
    first, timed, cp = steps.first, steps.timed, step.cp
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
        forward_peak_bytes=memory.peak_bytes["forward"],
        backward_peak_bytes=memory.peak_bytes["backward"],
        peak_allocated_bytes=max(memory.peak_bytes.values()),
        peak_reserved_bytes=process_peak_bytes(),
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
