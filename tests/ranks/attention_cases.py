"""One attention case on a rank: sharded against a reference that shares no code with it.

Shapes: B batch, S rows of this rank, T all tokens, H query heads, K kv heads, D head dim.
"""

from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention import ContextParallel

HEAD_DIM = 8


@dataclass(frozen=True)
class Layout:
    seq_len: int
    sharding: str
    mask: str
    stages: int | None = None
    strategy: str = "ring"
    kernel: str = "auto"


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    kv_heads: int


@dataclass(frozen=True)
class Outcome:
    """What one rank saw: absolute errors, and bytes moved next to bytes planned."""

    error: float  # worst over out, dq, dk, dv of the real rows; inf when one is not finite
    padding: float  # largest magnitude in padded rows of the same; inf when one is not finite
    moved: dict[str, int]
    planned: dict[str, int]


def attend_naively(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, mask: str) -> Tensor:
    """Softmax attention of the whole sequence, written out."""
    repeats = q_BTHD.shape[2] // k_BTKD.shape[2]
    k_BTHD, v_BTHD = (x.repeat_interleave(repeats, dim=2) for x in (k_BTKD, v_BTKD))
    scores_BHTT = torch.einsum("bqhd,bkhd->bhqk", q_BTHD, k_BTHD) / q_BTHD.shape[-1] ** 0.5
    if mask == "causal":
        at = torch.arange(q_BTHD.shape[1])
        scores_BHTT = scores_BHTT.masked_fill(at[None, :] > at[:, None], float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores_BHTT.softmax(dim=-1), v_BTHD)


def make_inputs(seq_len: int, shape: Shape, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and the output's gradient; the same on every rank."""
    source = torch.Generator().manual_seed(1000 * seq_len + 10 * shape.kv_heads + shape.batch)
    heads = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
    sizes = [(shape.batch, seq_len, n, HEAD_DIM) for n in heads]
    return [
        torch.randn(size, generator=source, dtype=torch.float64).to(dtype=dtype) for size in sizes
    ]


def reference(inputs: list[Tensor], mask: str) -> list[Tensor]:
    """out, dq, dk, dv of the whole sequence."""
    q, k, v = (x.clone().requires_grad_() for x in inputs[:3])
    out = attend_naively(q, k, v, mask)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), inputs[3])]


def attend_sharded(cp: ContextParallel, inputs: list[Tensor]) -> list[Tensor]:
    """out, dq, dk, dv of this rank's rows; padded rows of all inputs hold NaN."""
    local = [cp.shard(x, dim=1) for x in inputs]
    for x in local:
        x[:, ~cp.valid] = float("nan")
    q, k, v = (x.requires_grad_() for x in local[:3])
    out = cp.attend(q, k, v)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), local[3])]


def run_case(cp: ContextParallel, *, mask: str, shape: Shape) -> Outcome:
    """Attend forward and backward once and compare."""
    inputs = make_inputs(cp.partition.seq_len, shape, torch.float64)
    cp.traffic.reset()
    found = attend_sharded(cp, inputs)
    at = cp.positions[cp.valid]
    wanted = [x[:, at] for x in reference(inputs, mask)]
    planned = cp.plan.bytes(dist.get_rank(), kv_heads=shape.kv_heads, head_dim=HEAD_DIM, itemsize=8)
    return Outcome(
        error=max(_magnitude(x[:, cp.valid] - y) for x, y in zip(found, wanted, strict=True)),
        padding=max(_magnitude(x[:, ~cp.valid]) for x in found),
        moved={
            "forward_sent": cp.traffic.forward_sent_bytes,
            "forward_received": cp.traffic.forward_received_bytes,
            "backward_sent": cp.traffic.backward_sent_bytes,
            "backward_received": cp.traffic.backward_received_bytes,
        },
        planned={name: shape.batch * value for name, value in asdict(planned).items()},
    )


def run_cases(layouts: list[Layout], *, shapes: list[Shape]) -> list[Outcome]:
    """Every layout with every shape, on the default group."""
    outcomes: list[Outcome] = []
    for layout in layouts:
        cp = ContextParallel(dist.group.WORLD, **asdict(layout))
        outcomes += [run_case(cp, mask=layout.mask, shape=shape) for shape in shapes]
    return outcomes


def _magnitude(x: Tensor) -> float:
    if x.numel() == 0:
        return 0.0
    return x.abs().max().item() if x.isfinite().all() else float("inf")
