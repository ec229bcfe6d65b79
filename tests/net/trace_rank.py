"""One process of several cases over two hosts: two processes are on each.

`python -m trace_rank PROCESS PROCESSES ADDRESS PORT CASE...`; prints one line of JSON: what this
one saw, by case.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from time import sleep

import torch
import torch.distributed as dist

from cptune.bench.attention import MeasuredContextParallel
from cptune.bench.contention import contended_edges
from cptune.bench.job import RankJob, Rendezvous
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import build_mesh, joined
from cptune.bench.rank import run_rank
from cptune.domain.candidate import Candidate
from cptune.domain.layout import ParallelLayout
from cptune.domain.outcome import EdgeReport
from cptune.domain.study import TraceKind
from cptune.domain.timeline import ABLATION, SpanKind
from cptune.domain.workload import AttentionMask, ModelShape, Precision, Workload

# Wide heads on a narrow model: a step is nearly all keys, values and their gradients on the wire.
MODEL = ModelShape(layers=2, hidden=64, heads=16, kv_heads=16, head_dim=64, ffn=64, vocab=64)
SEQ_LEN, BATCH = 256, 2  # short sequences: many bytes for each pair attended
SLOW_WITHIN = "tc qdisc add dev lo root tbf rate 200mbit burst 128kb latency 200ms"
FAST_WITHIN = "tc qdisc del dev lo root"


@dataclass(frozen=True)
class Traced:
    """A trial with its ablation on some processes, in the order of its ranks."""

    processes: tuple[int, ...]
    mask: AttentionMask

    def run(self, rank: int, rendezvous: Rendezvous) -> dict[str, object]:
        trace = run_rank(self._job(rank, rendezvous)).trace
        seen, ablated = trace.whole("cp"), trace.whole("cp", method=ABLATION)
        messages = [
            span
            for span in trace.spans
            if span.kind is SpanKind.COMMUNICATION and span.axis == "cp"
        ]
        return {
            "mask": self.mask,
            "received_bytes": sum(one.bytes for one in messages if "sent" not in one.name),
            "traced_step_s": trace.step_s,
            "communication_s": seen.communication_s,
            "exposed_s": seen.exposed_s,
            "blocked_s": seen.blocked_s,
            "ablation_s": ablated.exposed_s,
            "alone_s": ablated.communication_s,
        }

    def _job(self, rank: int, rendezvous: Rendezvous) -> RankJob:
        cp = len(self.processes)
        return RankJob(
            rank=rank,
            node=f"host{self.processes[rank] // 2}",
            gpu_uuid=None,
            candidate=Candidate(layout=ParallelLayout(cp=cp), stages=cp - 1, micro_batch=BATCH),
            model=MODEL,
            workload=Workload(
                seq_len=SEQ_LEN,
                global_batch_seqs=BATCH,
                precision=Precision.FP32,
                mask=self.mask,
            ),
            capacity_bytes=1 << 30,
            warmup_steps=1,
            steps=1,
            seed=0,
            rendezvous=rendezvous,
            trace=TraceKind.ABLATION,
        )


@dataclass(frozen=True)
class Contended:
    """The exchanges of two context groups of two, as a trial tries them after its steps."""

    layout: ParallelLayout
    processes: tuple[int, ...] = (0, 1, 2, 3)
    slow_within: bool = False  # the hosts' own traffic is as slow as that between them

    def run(self, rank: int, rendezvous: Rendezvous) -> list[dict[str, object]]:
        if not self.slow_within or rank % 2:  # one of each host
            return self._run(rank, rendezvous)
        subprocess.run(SLOW_WITHIN.split(), check=True)
        try:
            return self._run(rank, rendezvous)
        finally:
            subprocess.run(FAST_WITHIN.split(), check=True)

    def _run(self, rank: int, rendezvous: Rendezvous) -> list[dict[str, object]]:
        memory = TensorBudget(1 << 30)
        with joined(rendezvous, rank=rank, world_size=self.layout.world_size):
            mesh = build_mesh(self.layout)
            cp = MeasuredContextParallel(mesh.cp, seq_len=SEQ_LEN, mask="full")
            rows = torch.zeros(1, cp.local_len, MODEL.heads, MODEL.head_dim)
            cp.attend(rows, rows, rows)
            planned, members = cp.plan.bytes(mesh.at.cp), dist.get_process_group_ranks(mesh.cp)
            edges = [
                EdgeReport(
                    peer_rank=members[peer],
                    axis="cp",
                    sent_bytes=planned.forward_sent + planned.backward_sent,
                    received_bytes=planned.forward_received + planned.backward_received,
                    seconds=1.0,
                )
                for peer in cp.traffic.peers
            ]
            found = contended_edges(TraceKind.ABLATION, edges, mesh=mesh, cp=cp, memory=memory)
        return [asdict(edge) | {"contention": edge.contention} for edge in found]


# Processes 0 and 1 are on one host, 2 and 3 on the other.
CASES = {
    "full": Traced(processes=(0, 2), mask=AttentionMask.FULL),  # both send the same
    "causal": Traced(processes=(0, 1, 2, 3), mask=AttentionMask.CAUSAL),
    "shared": Contended(ParallelLayout(tp=2, cp=2)),  # groups {0, 2} and {1, 3}: over one link
    # Groups {0, 1} and {2, 3}: each on its own host.
    "apart": Contended(ParallelLayout(cp=2, dp=2), slow_within=True),
}


def main(process: int, count: int, address: str, port: int, names: list[str]) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore(address, port, is_master=process == 0, wait_for_workers=False)
    found = {}
    for name in names:
        case = CASES[name]
        if process in case.processes:
            rendezvous = Rendezvous(host=address, port=port, prefix=name, timeout_s=60)
            found[name] = case.run(case.processes.index(process), rendezvous)
        if store.add(f"ran {name}", 1) == count:
            store.set(f"all ran {name}", "")
        store.wait([f"all ran {name}"])  # nobody computes beside the case of others
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    store.add("done", 1)
    while process == 0 and store.add("done", 0) < count:  # it holds the store of the others
        sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5:])
