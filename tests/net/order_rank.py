"""One rank of a relay ring over two hosts, in one order of the ranks after another; then a probe.

`python -m order_rank PLACE DEVICE ADDRESS PORT ORDERS`; ORDERS is JSON, name to places in ring
order. Prints one line of JSON. The last order is probed.
"""

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from boundary_rank import SEQ_LEN, inputs_of

from bench.relay import RelayRing
from cptune.attention import ContextParallel
from cptune.attention.kernels import choose_kernel
from cptune.attention.wire import split_group
from cptune.bench.job import Rendezvous
from cptune.bench.mesh import joined
from cptune.bench.probe import measure_edges

TURNS = 3  # the first warms up
PAYLOAD_BYTES = 2 << 20
TIMEOUT_S = 60.0


def sent_bytes(device: str) -> int:
    """What this host has sent to the other one, by the kernel's count."""
    return int(Path(f"/sys/class/net/{device}/statistics/tx_bytes").read_text())


def run_relay(device: str) -> dict[str, object]:
    """Seconds of each attention step, forward and backward; bytes of an edge and of the host."""
    world = dist.group.WORLD
    cp = ContextParallel(world, seq_len=SEQ_LEN)
    kernel = choose_kernel("auto", device_type="cpu", dtype=torch.bfloat16)
    ring = RelayRing(cp.partition, kernel=kernel, groups=(world, split_group(world)))
    q, k, v, dout = inputs_of(cp)
    seconds, edge_bytes, host_bytes = [], 0, 0
    for _ in range(TURNS):
        ring.traffic.reset()
        dist.barrier()
        before, start = sent_bytes(device), time.perf_counter()
        ring.backward(dout, inputs=(q, k, v), result=ring.forward(q, k, v))
        dist.barrier()
        seconds.append(time.perf_counter() - start)
        traffic = ring.traffic
        edge_bytes = traffic.forward_sent_bytes + traffic.backward_sent_bytes
        host_bytes = sent_bytes(device) - before
    return {"seconds": seconds[1:], "edge_bytes": edge_bytes, "host_bytes": host_bytes}


def main(place: int, device: str, address: str, port: int, orders: dict[str, list[int]]) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore(address, port, is_master=True, wait_for_workers=False) if not place else 0
    found: dict[str, object] = {}
    readings = ()
    for name, order in orders.items():
        rank, size = order.index(place), len(order)
        meeting = Rendezvous(host=address, port=port, prefix=name, timeout_s=TIMEOUT_S)
        with ExitStack() as stack:
            stack.enter_context(joined(meeting, rank=rank, world_size=size))
            found[name] = run_relay(device)
            if name == list(orders)[-1]:
                edges = [(one, (one + 1) % size) for one in range(size)]
                readings = measure_edges(edges, rank=rank, payload_bytes=PAYLOAD_BYTES, repeats=3)
            dist.barrier()
    answer = {"orders": found, "readings": [asdict(one) for one in readings]}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    time.sleep(0 if place else 0.5)  # the others let go of the store first
    del store


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5]))
