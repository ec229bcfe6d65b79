"""One rank of a traced trial over two hosts.

`python -m trace_rank RANK WORLD ADDRESS PORT`; prints one line of JSON.
"""

import json
import sys

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
SEQ_LEN, BATCH = 256, 4  # short sequences: many bytes for each pair attended


def job_of(rank: int, world: int, rendezvous: Rendezvous) -> RankJob:
    return RankJob(
        rank=rank,
        node=f"host{rank}",
        gpu_uuid=None,
        candidate=Candidate(layout=ParallelLayout(cp=world), stages=world - 1, micro_batch=BATCH),
        model=MODEL,
        workload=Workload(
            seq_len=SEQ_LEN,
            global_batch_seqs=BATCH,
            precision=Precision.FP32,
            mask=AttentionMask.FULL,  # both ranks send the same
        ),
        capacity_bytes=1 << 30,
        warmup_steps=1,
        steps=2,
        seed=0,
        rendezvous=rendezvous,
        trace=TraceKind.ABLATION,
    )


def main(rank: int, world: int, address: str, port: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore(address, port, is_master=rank == 0, wait_for_workers=False)
    rendezvous = Rendezvous(host=address, port=port, prefix="trace", timeout_s=60)
    report = run_rank(job_of(rank, world, rendezvous))
    trace = report.trace
    seen, ablated = trace.whole("cp"), trace.whole("cp", method=ABLATION)
    received = [
        span.bytes
        for span in trace.spans
        if span.kind is SpanKind.COMMUNICATION and span.axis == "cp" and "sent" not in span.name
    ]
    found = {
        "received_bytes": sum(received),
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
    while rank == 0 and store.add("done", 0) < world:  # it holds the store of the others
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
