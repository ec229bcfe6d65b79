"""What one rank of the attention benchmark runs: every scheme, its time, bytes and live tensors.

Shapes: B batch, S rows of this rank, T all tokens, H query heads, K kv heads, D head dim.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from bench.relay import RelayRing
from cptune.attention import ContextParallel, Sharding
from cptune.attention.kernels import choose_kernel
from cptune.attention.wire import split_group
from cptune.bench.memory import TensorBudget

Phase = Callable[[str], AbstractContextManager[None]]
PERFECT = "perfect split"
RING = "ring zigzag"
STRATEGIES = ("relay", "ring", "all_gather")
_EVERYTHING = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """One attention layer at batch 1."""

    seq_len: int
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    docs: tuple[int, ...] = ()  # causal inside each; none: one causal sequence

    @property
    def mask(self) -> dict[str, Any]:
        """The keywords of the mask."""
        return {"mask": "document", "docs": self.docs} if self.docs else {"mask": "causal"}

    def block_bytes(self, cp_size: int) -> int:
        """Keys and values of one rank."""
        rows = self.seq_len // cp_size
        return 2 * rows * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One scheme, one step, one rank. Peaks are live tensor bytes beside the inputs."""

    forward_bytes: int
    backward_bytes: int
    planned: tuple[int, int] | None  # what `plan.bytes` promised of both
    forward_peak_bytes: int
    backward_peak_bytes: int
    imbalance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One timed step: seconds on the clock, and seconds that this process had a core."""

    wall_s: float
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All schemes on one rank. `difference`: largest of ring and relay over out, dq, dk, dv."""

    turns: dict[str, list[Turn]]
    costs: dict[str, Cost]
    difference: float


class _Scheme(Protocol):
    def cut(self, x_BTHD: Tensor) -> Tensor:
        """This rank's part of an input."""
        ...

    def step(self, local: list[Tensor], phase: Phase) -> list[Tensor]:
        """Forward and backward of q, k, v and the output's gradient: out, dq, dk, dv."""
        ...


class _Staged:
    def __init__(self, sizes: Sizes, *, strategy: str, sharding: str) -> None:
        self.cp = ContextParallel(
            dist.group.WORLD,
            seq_len=sizes.seq_len,
            sharding=sharding,
            strategy=strategy,
            **sizes.mask,
        )

    def cut(self, x_BTHD: Tensor) -> Tensor:
        return self.cp.shard(x_BTHD, dim=1)

    def step(self, local: list[Tensor], phase: Phase) -> list[Tensor]:
        return _step(self.cp, local, phase)


class _Relayed:
    def __init__(self, sizes: Sizes, *, sharding: str) -> None:
        world = dist.group.WORLD
        assert world is not None, "runs inside a job"
        self.cutter = ContextParallel(world, seq_len=sizes.seq_len, sharding=sharding, **sizes.mask)
        self.ring = RelayRing(
            self.cutter.partition,
            kernel=choose_kernel("auto", device_type="cpu", dtype=sizes.dtype, grouped=True),
            groups=(world, split_group(world)),
        )

    def cut(self, x_BTHD: Tensor) -> Tensor:
        return self.cutter.shard(x_BTHD, dim=1)

    def step(self, local: list[Tensor], phase: Phase) -> list[Tensor]:
        q_BSHD, k_BSKD, v_BSKD, dout_BSHD = local
        with phase("forward"):
            result = self.ring.forward(q_BSHD, k_BSKD, v_BSKD)
        with phase("backward"):
            grads = self.ring.backward(dout_BSHD, inputs=(q_BSHD, k_BSKD, v_BSKD), result=result)
        return [result.out, *grads]


class _Perfect:
    """One P-th of the heads over the whole sequence: equal work, one kernel call, no message."""

    def __init__(self, sizes: Sizes) -> None:
        self._cp = ContextParallel(None, seq_len=sizes.seq_len, **sizes.mask)

    def cut(self, x_BTHD: Tensor) -> Tensor:
        return x_BTHD.chunk(dist.get_world_size(), dim=2)[dist.get_rank()].contiguous()

    def step(self, local: list[Tensor], phase: Phase) -> list[Tensor]:
        return _step(self._cp, local, phase)


def _step(cp: ContextParallel, local: list[Tensor], phase: Phase) -> list[Tensor]:
    inputs = [x.detach().requires_grad_() for x in local[:3]]
    with phase("forward"):
        out_BSHD = cp.attend(*inputs)
    with phase("backward"):
        return [out_BSHD.detach(), *torch.autograd.grad(out_BSHD, inputs, local[3])]


def measure(sizes: Sizes, *, repeats: int) -> Seen:
    """Run every scheme on the default group; collective.

    Args:
        sizes: The layer.
        repeats: Timed steps of each scheme, one of each in turn; with 0 they are counted only.
    """
    schemes: dict[str, _Scheme] = {PERFECT: _Perfect(sizes)} if repeats else {}
    costs: dict[str, Cost] = {}
    difference = 0.0
    for sharding in Sharding:
        found: dict[str, list[Tensor]] = {}
        for strategy in STRATEGIES:
            scheme: _Staged | _Relayed
            if strategy == "relay":
                scheme = _Relayed(sizes, sharding=sharding)
            else:
                scheme = _Staged(sizes, strategy=strategy, sharding=sharding)
            schemes[f"{strategy} {sharding}"] = scheme
            found[strategy], costs[f"{strategy} {sharding}"] = _count(scheme, sizes)
        pairs = zip(found["relay"], found["ring"], strict=True)
        difference = max(difference, *((a - b).abs().max().item() for a, b in pairs))
    turns = _time(schemes, sizes, repeats=repeats)
    return Seen(turns=turns, costs=costs, difference=difference)


def measure_speed(sizes: Sizes, *, repeats: int) -> dict[str, list[Turn]]:
    """Time the perfect split and the ring alone, turn by turn; collective."""
    ring = _Staged(sizes, strategy="ring", sharding="zigzag")
    return _time({PERFECT: _Perfect(sizes), RING: ring}, sizes, repeats=repeats)


def _count(scheme: _Staged | _Relayed, sizes: Sizes) -> tuple[list[Tensor], Cost]:
    with TensorBudget(_EVERYTHING) as memory:
        local = [scheme.cut(x).clone() for x in _inputs(sizes)]
        inputs_bytes = memory.live_bytes
        found = scheme.step(local, memory.phase)
    if isinstance(scheme, _Relayed):
        traffic, plan, planned = scheme.ring.traffic, scheme.cutter.plan, None
    else:
        traffic, plan = scheme.cp.traffic, scheme.cp.plan
        promise = plan.bytes(dist.get_rank())
        planned = (promise.forward_sent, promise.backward_sent)
    return found, Cost(
        forward_bytes=traffic.forward_sent_bytes,
        backward_bytes=traffic.backward_sent_bytes,
        planned=planned,
        forward_peak_bytes=memory.peak_bytes["forward"] - inputs_bytes,
        backward_peak_bytes=memory.peak_bytes["backward"] - inputs_bytes,
        imbalance=plan.imbalance(),
    )


def _time(schemes: dict[str, _Scheme], sizes: Sizes, *, repeats: int) -> dict[str, list[Turn]]:
    inputs = _inputs(sizes)
    local = {name: [scheme.cut(x) for x in inputs] for name, scheme in schemes.items()}
    turns: dict[str, list[Turn]] = {name: [] for name in schemes}
    for _ in range(repeats):
        for name, scheme in schemes.items():
            dist.barrier()
            wall_s, busy_s = time.perf_counter(), time.process_time()
            scheme.step(local[name], lambda _: nullcontext())
            wall_s, busy_s = time.perf_counter() - wall_s, time.process_time() - busy_s
            turns[name].append(Turn(wall_s=wall_s, busy_s=busy_s))
    return turns


def _inputs(sizes: Sizes) -> list[Tensor]:
    """q, k, v and the output's gradient of the whole sequence; the same on every rank."""
    source = torch.Generator().manual_seed(0)
    heads = (sizes.heads, sizes.kv_heads, sizes.kv_heads, sizes.heads)
    return [
        torch.randn(1, sizes.seq_len, n, sizes.head_dim, generator=source).to(sizes.dtype)
        for n in heads
    ]
