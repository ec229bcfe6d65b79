"""Every line that only a CUDA device runs: each kernel that loads there, alone and on ranks.

One run on a Hopper GPU (conftest.py has the command; flash-attn is used where it is installed)
is to pass in less than four minutes, and skips the kernels whose libraries are not installed, each
with the reason; the file it leaves holds device, versions, seconds and errors. A rehearsal on any
machine, with the kernels for CPU in their place: --device cpu.
"""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gpu_ranks import exchange_over_nccl, run_rank
from torch import Tensor

from cptune.attention import ContextParallel
from cptune.attention.kernels import (
    KERNELS,
    Ask,
    Block,
    Kernel,
    MathReference,
    choose_kernel,
    why_not,
)
from cptune.attention.rounding import read_rounding
from cptune.attention.slices import Band

pytestmark = pytest.mark.gpu

ROWS = 640  # several blocks of every kernel, and not a multiple of them
MOST = 1.5e-2  # bf16, relative L2 against fp64
KINDS = [
    {"causal": False},
    {"causal": True},
    {"causal": False, "band": Band(100, 0)},
    {"causal": False, "band": Band(0, ROWS - 1)},
    {"causal": False, "band": Band(0, 70)},
]
# Calls that plans make and kernels take another way: one row, one row of some keys, some columns.
SHORT = [(1, 1, True), (1, 300, False), (3, 3, True), (130, 1, False), (640, 128, False)]


def ask_of(gpu: torch.device, **changed) -> Ask:
    compute = torch.cuda.get_device_capability() if gpu.type == "cuda" else None
    wanted = {"dtype": torch.bfloat16, "grouped": True, "head_dim": 64}
    return Ask(device_type=gpu.type, compute=compute, **wanted | changed)


def skip_if_it_cannot_run(kernel: Kernel, gpu: torch.device, **changed) -> None:
    if reason := why_not(kernel, ask_of(gpu, **changed)):
        pytest.skip(f"{kernel.name}: {reason}")


def make_block(
    gpu: torch.device, *, kv_heads: int, rows: int = ROWS, keys: int = ROWS, dim: int = 64, **kind
) -> Block:
    source = torch.Generator().manual_seed(kv_heads)
    q, k, v = (
        torch.randn(2, count, heads, dim, generator=source).to(gpu, torch.bfloat16)
        for count, heads in ((rows, 8), (keys, kv_heads), (keys, kv_heads))
    )
    return Block(q, k, v, scale=0.125, **kind)


def in_fp64(block: Block) -> Block:
    return replace(block, q=block.q.double(), k=block.k.double(), v=block.v.double())


def error(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


def errors(kernel: Kernel, block: Block) -> dict[str, float]:
    """Of out, lse, dq, dk, dv; gradients given what is kept for backward."""
    exact = in_fp64(block)
    out, lse = kernel.forward(block)
    wanted_out, wanted_lse = MathReference().forward(exact)
    assert out.dtype in (torch.bfloat16, torch.float32)
    assert lse.dtype == torch.float32
    assert lse.shape == wanted_lse.shape
    kept = out.bfloat16()
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(kept)
    # The log-sum-exp comes as rows of a longer one in use.
    longer = torch.cat([lse, lse], dim=2)[:, :, : lse.shape[2]]
    found = kernel.backward(block, dout_BSHD=dout, out_BSHD=kept, lse_BHS=longer)
    wanted = MathReference().backward(
        exact, dout_BSHD=dout.double(), out_BSHD=wanted_out, lse_BHS=wanted_lse
    )
    pairs = zip((out, lse, *found), (wanted_out, wanted_lse, *wanted), strict=True)
    return {
        name: error(mine, theirs)
        for name, (mine, theirs) in zip(("out", "lse", "dq", "dk", "dv"), pairs, strict=True)
        if theirs.norm() > 0  # one key: the weight is 1 whatever the query, and dq and dk are 0
    }


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_a_kernel_is_near_fp64_forward_and_backward(
    gpu: torch.device, kernel: Kernel, kind, kv_heads: int, record_property
) -> None:
    skip_if_it_cannot_run(kernel, gpu)
    found = errors(kernel, make_block(gpu, kv_heads=kv_heads, **kind))
    record_property("errors", found)
    assert max(found.values()) <= MOST


@pytest.mark.parametrize(("rows", "keys", "causal"), SHORT)
def test_short_and_oblong_blocks(
    gpu: torch.device, kernel: Kernel, rows: int, keys: int, causal: bool
) -> None:
    skip_if_it_cannot_run(kernel, gpu)
    block = make_block(gpu, kv_heads=2, rows=rows, keys=keys, causal=causal)
    found = errors(kernel, block)
    assert {"out", "lse", "dv"} <= found.keys()
    assert max(found[name] for name in ("out", "lse", "dv")) <= MOST
    if keys > 3:  # of few keys the gradients of scores are small differences of large numbers
        assert max(found.values()) <= MOST


@pytest.mark.parametrize("dim", [8, 40, 128, 256])
def test_heads_of_every_size_that_it_says_it_takes(
    gpu: torch.device, kernel: Kernel, dim: int
) -> None:
    skip_if_it_cannot_run(kernel, gpu, head_dim=dim)
    found = errors(kernel, make_block(gpu, kv_heads=2, dim=dim, causal=True))
    assert max(found.values()) <= MOST


def test_keys_of_another_number_and_rows_of_a_longer_tensor(
    gpu: torch.device, kernel: Kernel
) -> None:
    skip_if_it_cannot_run(kernel, gpu)
    block = make_block(gpu, kv_heads=2, causal=False)
    part = replace(block, q=block.q[:, 100:613], k=block.k[:, 3:201], v=block.v[:, 3:201])
    assert max(errors(kernel, part).values()) <= MOST


def test_the_plan_foresees_what_the_allocator_sees(
    gpu: torch.device, kernel: Kernel, record_property
) -> None:
    skip_if_it_cannot_run(kernel, gpu)
    if gpu.type != "cuda":
        pytest.skip("the host has no such counter; tests/unit measures its kernels otherwise")
    rows = 2048
    cp = ContextParallel(None, seq_len=rows, mask="full", kernel=kernel.name)
    q, k, v, dout = (
        torch.randn(1, rows, heads, 64, device=gpu, dtype=torch.bfloat16) for heads in (8, 2, 2, 8)
    )
    inputs = [x.requires_grad_() for x in (q, k, v)]
    for _ in range(2):  # the first time a library may make a workspace, and keep it
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = cp.attend(*inputs)
        forward = torch.cuda.max_memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()
        found = torch.autograd.grad(out, inputs, dout)
        backward = torch.cuda.max_memory_allocated() - before
        del out, found
    planned = cp.plan.peak_bytes(0)
    record_property("forward: measured, planned", (forward, planned.forward))
    record_property("backward: measured, planned", (backward, planned.backward))
    assert forward <= 1.3 * planned.forward <= 1.3 * 1.3 * forward
    assert backward <= 1.3 * planned.backward <= 1.3 * 1.3 * backward


def test_auto_takes_a_kernel_for_halves_and_the_reference_for_the_rest(gpu: torch.device) -> None:
    fast = choose_kernel("auto", device_type=gpu.type, dtype=torch.bfloat16, head_dim=64)
    assert fast.name != "math"
    if gpu.type == "cuda":
        assert choose_kernel("auto", device_type="cuda", dtype=torch.float64).name == "math"


def test_a_kernel_that_cannot_run_here_is_an_error_that_says_why(
    gpu: torch.device, kernel: Kernel
) -> None:
    ask = ask_of(gpu)
    arguments = {"device_type": gpu.type, "dtype": ask.dtype, "head_dim": ask.head_dim}
    if why_not(kernel, ask) is None:
        assert choose_kernel(kernel.name, **arguments).name == kernel.name
    else:
        with pytest.raises(ValueError, match="which cannot run here"):
            choose_kernel(kernel.name, **arguments)


def test_a_scaled_message_is_the_same_as_on_the_host(gpu: torch.device) -> None:
    rounding = read_rounding("scaled_fp16")
    for magnitude in (0.0, 1e-25, 1.0, 1e12, torch.inf):
        part = torch.randn(5, 2, 1, 2, 64, generator=torch.Generator().manual_seed(1)) * magnitude
        host, device = rounding.encode(part.clone()), rounding.encode(part.to(gpu, copy=True))
        assert torch.equal(host.view(torch.int16), device.cpu().view(torch.int16))
        assert torch.equal(rounding.factor(host), rounding.factor(device).cpu())


CASES = [
    {"mask": "causal"},
    {"mask": "causal", "dkv_wire": "bf16"},
    {"mask": "full", "sharding": "contiguous", "strategy": "all_gather"},
    {"mask": "document", "docs": (300, 0, 1, 211, 511), "sharding": "balanced"},
    {"mask": "causal", "window": 77},
    {"mask": "causal", "strategy": "ulysses"},
    {"mask": "causal", "nodes": ("a", "a", "b"), "dkv_wire": "fp32"},
]
WORLD, SEQ_LEN = 3, 1023


def run_processes(run: Callable[..., None], *arguments: object, count: int, limit_s: float) -> None:
    """Run one process for each rank; raise with the traceback of the first that fails."""
    running = mp.spawn(run, args=arguments, nprocs=count, join=False, daemon=True)
    until_s = time.monotonic() + limit_s
    while not running.join(timeout=5):
        if time.monotonic() > until_s:
            for process in running.processes:
                process.kill()
            pytest.fail(f"{run.__name__} gave no answer in {limit_s} s")


@pytest.mark.timeout(200)
def test_ranks_on_one_device_are_near_fp64_with_every_kernel_that_loads(
    gpu: torch.device, tmp_path: Path, record_property
) -> None:
    usable = [one.name for one in KERNELS if why_not(one, ask_of(gpu)) is None]
    cases = [case | {"kernel": name} for name in usable for case in CASES]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    arguments = (WORLD, store.port, cases, SEQ_LEN, gpu.type, tmp_path)
    run_processes(run_rank, *arguments, count=WORLD, limit_s=170)
    for rank in range(WORLD):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert [name for name, _ in found] == [case["kernel"] for case in cases]
        assert max(worst for _, worst in found) <= MOST
        record_property(f"errors of rank {rank}", found)


def test_messages_over_nccl_arrive_batch_by_batch(gpu: torch.device) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    run_processes(exchange_over_nccl, store.port, gpu.type, count=1, limit_s=60)
