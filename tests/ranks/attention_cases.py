"""One attention case on a rank: sharded against a reference that shares no code with it.

Shapes: B batch, S rows of this rank, T all tokens, H query heads, K kv heads, D head dim.
"""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention import ContextParallel
from cptune.attention.transport import Transport
from cptune.attention.wire import GroupWire, open_wires

HEAD_DIM = 8


@dataclass(frozen=True)
class Layout:
    seq_len: int
    sharding: str
    mask: str
    stages: int | None = None
    strategy: str = "ring"
    kernel: str = "auto"
    docs: tuple[int, ...] | None = None
    window: int | None = None
    ulysses: int = 1
    nodes: tuple[str, ...] | None = None


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


class OnSharedWires(ContextParallel):
    """Makes one pair of process groups a run, not one an instance."""

    wires: tuple[GroupWire, GroupWire] | None = None
    most: tuple[int, int] | None = None  # of a batch of messages, where it is not the usual

    def _build_transport(self, group: dist.ProcessGroup | None) -> Transport:
        assert group is not None
        if group.size() > 1 and OnSharedWires.wires is None:
            OnSharedWires.wires = open_wires(group)
            if self.most:
                a, b = (replace(wire, most=self.most) for wire in OnSharedWires.wires)
                OnSharedWires.wires = a, b
        return Transport(*(OnSharedWires.wires or ()))


@dataclass(frozen=True)
class View:
    """A mask by its keywords."""

    mask: str
    docs: tuple[int, ...] | None = None
    window: int | None = None

    def hides(self, seq_len: int) -> Tensor:
        """True where a query (row) may not see a key (column), token by token."""
        at = torch.arange(seq_len)
        query, key = at[:, None], at[None, :]
        hidden = torch.zeros(seq_len, seq_len, dtype=torch.bool)
        if self.mask != "full":
            hidden |= key > query
        if self.docs is not None:
            document = torch.tensor(
                [i for i, length in enumerate(self.docs) for _ in range(length)]
            )
            hidden |= document[:, None] != document[None, :]
        if self.window is not None:
            hidden |= query - key > self.window
        return hidden


def attend_naively(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, view: View) -> Tensor:
    """Softmax attention of the whole sequence, written out."""
    repeats = q_BTHD.shape[2] // k_BTKD.shape[2]
    k_BTHD, v_BTHD = (x.repeat_interleave(repeats, dim=2) for x in (k_BTKD, v_BTKD))
    scores_BHTT = torch.einsum("bqhd,bkhd->bhqk", q_BTHD, k_BTHD) / q_BTHD.shape[-1] ** 0.5
    scores_BHTT = scores_BHTT.masked_fill(view.hides(q_BTHD.shape[1]), float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores_BHTT.softmax(dim=-1), v_BTHD)


def make_inputs(seq_len: int, shape: Shape, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and the output's gradient; the same on every rank."""
    source = torch.Generator().manual_seed(1000 * seq_len + 10 * shape.kv_heads + shape.batch)
    heads = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
    sizes = [(shape.batch, seq_len, n, HEAD_DIM) for n in heads]
    return [
        torch.randn(size, generator=source, dtype=torch.float64).to(dtype=dtype) for size in sizes
    ]


def reference(inputs: list[Tensor], view: View) -> list[Tensor]:
    """out, dq, dk, dv of the whole sequence."""
    q, k, v = (x.clone().requires_grad_() for x in inputs[:3])
    out = attend_naively(q, k, v, view)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), inputs[3])]


@lru_cache(maxsize=64)
def exact_reference(seq_len: int, shape: Shape, view: View) -> tuple[list[Tensor], list[Tensor]]:
    """(inputs, out and gradients) in fp64."""
    inputs = make_inputs(seq_len, shape, torch.float64)
    return inputs, reference(inputs, view)


def attend_sharded(cp: ContextParallel, inputs: list[Tensor]) -> list[Tensor]:
    """out, dq, dk, dv of this rank's rows; padded rows of all inputs hold NaN."""
    local = [cp.shard(x, dim=1) for x in inputs]
    for x in local:
        x[:, ~cp.valid] = float("nan")
    q, k, v = (x.requires_grad_() for x in local[:3])
    out = cp.attend(q, k, v)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), local[3])]


def rotate(x_BSHD: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of pairs of elements."""
    pairs = x_BSHD.unflatten(-1, (-1, 2))
    frequencies = 0.5 ** torch.arange(pairs.shape[-2], dtype=torch.float64)
    angles = (positions[:, None] * frequencies)[None, :, None]
    a, b = pairs.unbind(-1)
    turned = (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos())
    return torch.stack(turned, dim=-1).flatten(-2)


def run_case(cp: ContextParallel, *, view: View, shape: Shape) -> Outcome:
    """Attend forward and backward once and compare."""
    inputs, whole = exact_reference(cp.partition.seq_len, shape, view)
    cp.traffic.reset()
    found = attend_sharded(cp, inputs)
    at = torch.tensor(cp.partition.positions(cp._rank), dtype=torch.int64)
    wanted = [x[:, at] for x in whole]
    sizes = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": HEAD_DIM, "itemsize": 8}
    planned = cp.plan.bytes(cp._rank, **sizes)
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


def run_cases(
    layouts: list[Layout], *, shapes: list[Shape], most: tuple[int, int] | None = None
) -> list[Outcome]:
    """Every layout with every shape, on the default group; buffers hold NaN until written."""
    OnSharedWires.wires, OnSharedWires.most = None, most
    outcomes: list[Outcome] = []
    torch.use_deterministic_algorithms(True)  # fills what is allocated and not yet written
    try:
        assert torch.empty(1).isnan()
        for layout in layouts:
            cp = OnSharedWires(dist.group.WORLD, **asdict(layout))
            view = View(layout.mask, layout.docs, layout.window)
            outcomes += [run_case(cp, view=view, shape=shape) for shape in shapes]
    finally:
        torch.use_deterministic_algorithms(False)
        OnSharedWires.most = None
    return outcomes


def _magnitude(x: Tensor) -> float:
    if x.numel() == 0:
        return 0.0
    return x.abs().max().item() if x.isfinite().all() else float("inf")
