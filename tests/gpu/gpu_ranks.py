"""What one gloo rank of a GPU test runs: several ranks share the first device.

gloo carries host memory alone, so the messages go through it; the compute is on the device.
"""

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention import ContextParallel
from cptune.attention.traffic import Traffic
from cptune.attention.transport import Transport
from cptune.attention.wire import Exchange, GroupWire, gather_objects, open_wires

SHAPES = {"q": 8, "k": 2, "v": 2, "dout": 8}
HEAD_DIM = 64


@dataclass(frozen=True)
class _Landed:
    """A message that lies on the host when it is done, and belongs on the device."""

    work: dist.Work
    host: Tensor
    device: Tensor

    def wait(self) -> None:
        self.work.wait()
        self.device.copy_(self.host)


@dataclass(frozen=True)
class HostWire:
    """A gloo wire for tensors of a device."""

    inner: GroupWire

    def post(self, *, recv, send):
        landing = [(peer, torch.empty_like(one, device="cpu")) for peer, one in recv]
        works = self.inner.post(recv=landing, send=[(peer, one.cpu()) for peer, one in send])
        arrived = [
            _Landed(work, host, device)
            for work, (_, host), (_, device) in zip(works, landing, recv, strict=False)
        ]
        return [*arrived, *works[len(recv) :]]


class OnOneDevice(ContextParallel):
    def _build_transport(self, group: dist.ProcessGroup | None) -> Transport:
        if group is None or group.size() == 1:
            return Transport()
        return Transport(*(HostWire(wire) for wire in open_wires(group)))


def make_inputs(seq_len: int) -> list[Tensor]:
    """q, k, v and the output's gradient in fp64; the same on every rank."""
    source = torch.Generator().manual_seed(seq_len)
    sizes = [(1, seq_len, heads, HEAD_DIM) for heads in SHAPES.values()]
    return [torch.randn(size, generator=source, dtype=torch.float64) for size in sizes]


def step(
    cp: ContextParallel, inputs: list[Tensor], *, dtype: torch.dtype, device: str
) -> list[Tensor]:
    """out, dq, dk, dv of all tokens, in fp64 on the host."""
    local = [cp.shard(x, dim=1).to(device, dtype) for x in inputs]
    q, k, v = (x.requires_grad_() for x in local[:3])
    out = cp.attend(q, k, v)
    found = [out.detach(), *torch.autograd.grad(out, (q, k, v), local[3])]
    return [cp.unshard(x.cpu(), dim=1).double() for x in found]


def relative_errors(cases: list[dict], *, seq_len: int, device: str) -> list[tuple[str, float]]:
    """(kernel that ran, worst relative error against fp64) of each case."""
    inputs = make_inputs(seq_len)
    # Of the rounded inputs, so that only the attention's own error is seen.
    rounded = [x.bfloat16().double() for x in inputs]
    exact: dict[str, list[Tensor]] = {}
    found: list[tuple[str, float]] = []
    for case in cases:
        masked = {name: case[name] for name in ("mask", "docs", "window") if name in case}
        if str(masked) not in exact:
            alone = ContextParallel(None, seq_len=seq_len, kernel="math", **masked)
            exact[str(masked)] = step(alone, rounded, dtype=torch.float64, device=device)
        cp = OnOneDevice(dist.group.WORLD, seq_len=seq_len, **case)
        mine = step(cp, rounded, dtype=torch.bfloat16, device=device)
        pairs = zip(mine, exact[str(masked)], strict=True)
        found.append((cp.kernel, max(((x - y).norm() / y.norm()).item() for x, y in pairs)))
    return found


def exchange_over_nccl(rank: int, port: int, device: str) -> None:
    """What only NCCL runs: a communicator of a group, one work for each batch of messages.

    A rank of its own group exchanges with itself; on the host, where gloo cannot, with nobody.
    """
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    if device == "cuda":
        torch.cuda.set_device(0)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=1)
    try:
        assert gather_objects(dist.group.WORLD, {"rank": rank}) == [{"rank": rank}]
        sent = torch.arange(20_000.0, device=device).view(20, 1000)
        for wire in open_wires(dist.group.WORLD):
            wire.open(sent.device)
            landed, traffic = torch.zeros_like(sent), Traffic()
            there = device == "cuda"
            exchange = Exchange(
                replace(wire, most=(1, 8)),  # three batches
                buffer=landed,
                recv=[(0, row) for row in landed] * there,
                send=[(0, row) for row in sent] * there,
                counters=(traffic, traffic.forward),
            )
            assert torch.equal(exchange.wait(), sent * there)
            exchange.finish()
            assert traffic.forward.received_bytes == sent.nbytes * there
    finally:
        dist.destroy_process_group()


def run_rank(
    rank: int, world: int, port: int, cases: list[dict], seq_len: int, device: str, folder: Path
) -> None:
    """One process of `world`: writes what `relative_errors` finds to a file of its own."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(0)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    try:
        found = relative_errors(cases, seq_len=seq_len, device=device)
    finally:
        dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(found))
