"""bf16: what is rounded, and that its error is that of one kernel however many ranks there are."""

from functools import lru_cache
from typing import Any

import pytest
import torch
from simulated_ranks import Switch, run_simulated
from torch import Tensor

from cptune.attention import ContextParallel

SEQ_LEN, HEADS, KV_HEADS, HEAD_DIM = 512, 4, 2, 32
FLAT = 1.10  # worst over best of 2 to 16 ranks
OF_ONE_KERNEL = 1.5
RANKS = (2, 4, 8, 16)
EXCHANGES: dict[str, dict[str, Any]] = {
    "zigzag": {},
    "contiguous": {"sharding": "contiguous"},
    "balanced": {"sharding": "balanced"},
    "all_gather": {"strategy": "all_gather"},
    "hybrid": {"strategy": "hybrid", "ulysses": 2},
}


@lru_cache
def inputs_of(dtype: torch.dtype) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, SEQ_LEN, heads, HEAD_DIM, generator=source).bfloat16().to(dtype)
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)
    ]


def attend(cp: ContextParallel, inputs: list[Tensor]) -> tuple[list[int], list[Tensor]]:
    local = [cp.shard(x, dim=1) for x in inputs]
    q, k, v = (x.requires_grad_() for x in local[:3])
    out = cp.attend(q, k, v)
    found = [out.detach(), *torch.autograd.grad(out, (q, k, v), local[3])]
    return cp.partition.positions(cp._rank), [x[:, cp.valid] for x in found]


def whole_of(parts: list[tuple[list[int], list[Tensor]]]) -> list[Tensor]:
    wholes = []
    for index in range(4):
        first = parts[0][1][index]
        whole = first.new_zeros(1, SEQ_LEN, *first.shape[2:])
        for at, found in parts:
            whole[:, at] = found[index]
        wholes.append(whole.double())
    return wholes


@lru_cache
def exact(mask: str) -> list[Tensor]:
    alone = ContextParallel(None, seq_len=SEQ_LEN, mask=mask)
    return whole_of([attend(alone, inputs_of(torch.float64))])


@lru_cache
def errors(cp_size: int, mask: str = "full", **arguments) -> list[float]:
    """Relative error of out, dq, dk, dv in bf16 against fp64 of the same inputs."""
    inputs = inputs_of(torch.bfloat16)
    arguments |= {"seq_len": SEQ_LEN, "mask": mask}
    if cp_size == 1:
        parts = [attend(ContextParallel(None, **arguments), inputs)]
    else:
        parts = run_simulated(lambda cp: attend(cp, inputs), cp_size=cp_size, **arguments)
    pairs = zip(whole_of(parts), exact(mask), strict=True)
    return [((x - y).norm() / y.norm()).item() for x, y in pairs]


def assert_near_one_kernel_and_flat(by_ranks: list[list[float]], alone: list[float]) -> None:
    for found, one in zip(zip(*by_ranks, strict=True), alone, strict=True):
        assert max(found) <= OF_ONE_KERNEL * one
        assert max(found) <= FLAT * min(found)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("kernel", ["cpu_flash", "math"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_the_error_is_that_of_one_kernel_and_flat_in_the_number_of_ranks(
    mask: str, kernel: str, exchange: str
) -> None:
    keywords = EXCHANGES[exchange]
    # A ring of one merges nothing: it rounds its output once, as the one kernel does.
    sizes = [cp_size for cp_size in RANKS if cp_size > keywords.get("ulysses", 1)]
    found = [errors(cp_size, mask, kernel=kernel, **keywords) for cp_size in sizes]
    assert_near_one_kernel_and_flat(found, errors(1, mask, kernel=kernel))


@pytest.mark.parametrize("kernel", ["cpu_flash", "math"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_two_levels_are_no_farther(mask: str, kernel: str) -> None:
    found = [
        errors(cp_size, mask, kernel=kernel, nodes=tuple("abcd"[r * 4 // cp_size] for r in ranks))
        for cp_size in (8, 16)
        for ranks in [range(cp_size)]
    ]
    assert_near_one_kernel_and_flat(found, errors(1, mask, kernel=kernel))


def test_bf16_on_the_wire_is_farther_and_not_flat() -> None:
    found = [errors(cp_size, kernel="math", dkv_wire="bf16") for cp_size in RANKS]
    alone = errors(1, kernel="math")
    with pytest.raises(AssertionError):
        assert_near_one_kernel_and_flat(found, alone)
    # Each partial but the owner's is rounded once: sqrt(1 + (P-1)/P) of the result's own rounding.
    for cp_size, one in zip(RANKS, found, strict=True):
        wanted = (2 - 1 / cp_size) ** 0.5
        assert [a / b for a, b in zip(one[2:], alone[2:], strict=True)] == pytest.approx(
            [wanted, wanted], rel=0.03
        )


def test_gradients_in_fp32_on_the_wire_are_no_farther() -> None:
    half, wide = (
        errors(8, "causal", kernel="math", stages=1, dkv_wire=wire) for wire in ("bf16", "fp32")
    )
    assert wide[:2] == half[:2]
    assert all(fine <= coarse for fine, coarse in zip(wide[2:], half[2:], strict=True))


@pytest.mark.parametrize(("wire", "itemsize"), [(None, 4), ("fp32", 4), ("bf16", 2)])
def test_the_wire_carries_gradients_in_the_type_asked_for(wire: str | None, itemsize: int) -> None:
    inputs = inputs_of(torch.float32)

    def act(cp: ContextParallel) -> tuple[int, int, int, int]:
        attend(cp, inputs)
        planned, moved = cp.plan.bytes(cp._rank), cp.traffic
        assert moved.forward_sent_bytes == planned.forward_sent
        assert moved.backward_sent_bytes == planned.backward_sent
        return (
            moved.forward_sent_bytes,
            moved.forward_received_bytes,
            moved.backward_sent_bytes,
            moved.backward_received_bytes,
        )

    switch = Switch()
    arguments = {"seq_len": SEQ_LEN, "mask": "full", "dkv_wire": wire}
    for found in run_simulated(act, cp_size=4, switch=switch, **arguments):
        forward, _, backward, _ = found
        assert backward * 4 == forward * (4 + itemsize)
    assert sum(switch.bytes_moved.values()) == sum(one[0] + one[2] for one in [found] * 4)


def test_bytes_over_the_boundary_of_two_hosts() -> None:
    """4 ranks on 2 hosts, zigzag, causal, forward and backward: 10 blocks flat, 5 in two levels."""
    inputs = inputs_of(torch.bfloat16)
    block = 2 * (SEQ_LEN // 4) * KV_HEADS * HEAD_DIM * 2
    busier = {}
    for nodes in (None, ("a", "a", "b", "b")):
        switch = Switch()
        run_simulated(
            lambda cp: attend(cp, inputs), cp_size=4, switch=switch, seq_len=SEQ_LEN, nodes=nodes
        )
        crossed = {"ab": 0, "ba": 0}
        for (sender, receiver), count in switch.bytes_moved.items():
            if (sender < 2) != (receiver < 2):
                crossed["ab" if sender < 2 else "ba"] += count
        busier[nodes] = max(crossed.values()) / block
    assert list(busier.values()) == [10, 5]
