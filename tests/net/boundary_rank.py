"""One rank of a ring over two hosts: relay ring, flat plan and two-level plan, turn by turn.

`python -m boundary_rank RANK WORLD ADDRESS PORT`; prints one line of JSON.
"""

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from bench.relay import RelayRing
from cptune.attention import ContextParallel, Traffic
from cptune.attention.kernels import choose_kernel
from cptune.attention.wire import split_group

SEQ_LEN, BATCH, HEADS, HEAD_DIM = 512, 4, 16, 64
NODES = ("a", "a", "b", "b")
TURNS = 4  # the first warms up
BLOCK_BYTES = 2 * (SEQ_LEN // 4) * BATCH * HEADS * HEAD_DIM * 2  # a rank's K and V in bf16


def make_step(cp: ContextParallel):
    q, k, v, dout = inputs_of(cp)
    q, k, v = (x.requires_grad_() for x in (q, k, v))

    def step() -> None:
        torch.autograd.grad(cp.attend(q, k, v), (q, k, v), dout)

    return step


def inputs_of(cp: ContextParallel):
    source = torch.Generator().manual_seed(0)
    for _ in range(4):
        x = torch.randn(BATCH, SEQ_LEN, HEADS, HEAD_DIM, generator=source).bfloat16()
        yield cp.shard(x, dim=1)


def make_relay_step(cp: ContextParallel, ring: RelayRing):
    q, k, v, dout = inputs_of(cp)

    def step() -> None:
        ring.backward(dout, inputs=(q, k, v), result=ring.forward(q, k, v))

    return step


def make_relay(cp: ContextParallel) -> RelayRing:
    world = dist.group.WORLD
    kernel = choose_kernel("auto", device_type="cpu", dtype=torch.bfloat16)
    return RelayRing(cp.partition, kernel=kernel, groups=(world, split_group(world)))


def crossed_blocks(traffic: Traffic) -> float:
    """Blocks that this rank sent over the boundary in one step."""
    rank = dist.get_rank()
    far = [peer for peer in traffic.peers if NODES[peer] != NODES[rank]]
    return sum(traffic.peers[peer].sent_bytes for peer in far) / BLOCK_BYTES / TURNS


def main(rank: int, world: int, address: str, port: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore(address, port, is_master=rank == 0)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    flat = ContextParallel(dist.group.WORLD, seq_len=SEQ_LEN)
    nested = ContextParallel(dist.group.WORLD, seq_len=SEQ_LEN, nodes=NODES)
    relay = make_relay(flat)
    steps = {
        "relay": make_relay_step(flat, relay),
        "flat": make_step(flat),
        "nested": make_step(nested),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            dist.barrier()
            seconds[name].append(time.perf_counter() - start)
    counted = {"relay": relay.traffic, "flat": flat.traffic, "nested": nested.traffic}
    crossed = {name: crossed_blocks(one) for name, one in counted.items()}
    sys.stdout.write(json.dumps({"seconds": seconds, "crossed": crossed}) + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
