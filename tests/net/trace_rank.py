"""One rank of a traced trial over two hosts.

`python -m trace_rank CASE RANK ADDRESS PORT`; prints one line of JSON.
"""

import json
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

from cptune.bench.job import RankJob, Rendezvous
from cptune.bench.rank import run_rank
from cptune.domain.candidate import Candidate
from cptune.domain.layout import ParallelLayout
from cptune.domain.study import TraceKind
from cptune.domain.timeline import ABLATION, SpanKind
from cptune.domain.workload import AttentionMask, ModelShape, Precision, Workload

# Wide heads on a narrow model: a step is nearly all keys, values and their gradients on the wire.
MODEL = ModelShape(layers=2, hidden=64, heads=16, kv_heads=16, head_dim=64, ffn=64, vocab=64)


@dataclass(frozen=True)
class Case:
    """What ranks on two hosts attend, half of the ranks on each."""

    world: int
    mask: AttentionMask
    seq_len: int
    batch: int

    def host(self, rank: int) -> int:
        return 2 * rank // self.world


CASES = {
    # Both ranks send the same; short sequences: many bytes for each pair attended.
    "full": Case(world=2, mask=AttentionMask.FULL, seq_len=256, batch=4),
    # Later rows attend more keys and earlier keys go to more ranks: they wait for each other.
    "causal": Case(world=4, mask=AttentionMask.CAUSAL, seq_len=1024, batch=1),
}


def job_of(case: Case, rank: int, rendezvous: Rendezvous) -> RankJob:
    return RankJob(
        rank=rank,
        node=f"host{case.host(rank)}",
        gpu_uuid=None,
        candidate=Candidate(
            layout=ParallelLayout(cp=case.world), stages=case.world - 1, micro_batch=case.batch
        ),
        model=MODEL,
        workload=Workload(
            seq_len=case.seq_len,
            global_batch_seqs=case.batch,
            precision=Precision.FP32,
            mask=case.mask,
        ),
        capacity_bytes=1 << 30,
        warmup_steps=1,
        steps=2,
        seed=0,
        rendezvous=rendezvous,
        trace=TraceKind.ABLATION,
    )


def main(case: Case, rank: int, address: str, port: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore(address, port, is_master=rank == 0, wait_for_workers=False)
    rendezvous = Rendezvous(host=address, port=port, prefix="trace", timeout_s=60)
    report = run_rank(job_of(case, rank, rendezvous))
    trace = report.trace
    seen, ablated = trace.whole("cp"), trace.whole("cp", method=ABLATION)
    messages = [
        span
        for span in trace.spans
        if span.kind is SpanKind.COMMUNICATION and span.axis == "cp" and "sent" not in span.name
    ]
    found = {
        "host": case.host(rank),
        "crossed_bytes": sum(
            span.bytes for span in messages if case.host(span.peer) != case.host(rank)
        ),
        "step_s": report.step_s,
        "traced_step_s": trace.step_s,
        "communication_s": seen.communication_s,
        "exposed_s": seen.exposed_s,
        "blocked_s": seen.blocked_s,
        "ablation_s": ablated.exposed_s,
        "alone_s": ablated.communication_s,
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    store.add("done", 1)
    while rank == 0 and store.add("done", 0) < case.world:  # it holds the store of the others
        pass


if __name__ == "__main__":
    main(CASES[sys.argv[1]], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
