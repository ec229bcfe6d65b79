"""Every line that only a CUDA device runs: each kernel that loads there, alone and on ranks.

One run takes less than four minutes on one Hopper GPU.
"""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gpu_ranks import run_rank
from torch import Tensor

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
ON_CUDA = [one for one in KERNELS if "cuda" in one.capability.device_types]
KINDS = [
    {"causal": False},
    {"causal": True},
    {"causal": False, "band": Band(100, 0)},
    {"causal": False, "band": Band(0, ROWS - 1)},
    {"causal": False, "band": Band(0, 70)},
]
every_kernel = pytest.mark.parametrize("kernel", ON_CUDA, ids=[one.name for one in ON_CUDA])


def skip_if_it_cannot_run(kernel: Kernel, *, head_dim: int = 64) -> None:
    ask = Ask(
        device_type="cuda",
        dtype=torch.bfloat16,
        grouped=True,
        head_dim=head_dim,
        compute=torch.cuda.get_device_capability(),
    )
    if reason := why_not(kernel, ask):
        pytest.skip(f"{kernel.name}: {reason}")


def make_block(gpu: torch.device, *, kv_heads: int, **kind) -> Block:
    source = torch.Generator().manual_seed(kv_heads)
    q, k, v = (
        torch.randn(2, ROWS, heads, 64, generator=source).to(gpu, torch.bfloat16)
        for heads in (8, kv_heads, kv_heads)
    )
    return Block(q, k, v, scale=0.125, **kind)


def in_fp64(block: Block) -> Block:
    return replace(block, q=block.q.double(), k=block.k.double(), v=block.v.double())


def error(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


@every_kernel
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_a_kernel_is_near_fp64_forward_and_backward(
    gpu: torch.device, kernel: Kernel, kind, kv_heads: int
) -> None:
    skip_if_it_cannot_run(kernel)
    block = make_block(gpu, kv_heads=kv_heads, **kind)
    exact = in_fp64(block)
    out, lse = kernel.forward(block)
    wanted_out, wanted_lse = MathReference().forward(exact)
    assert out.dtype in (torch.bfloat16, torch.float32)
    assert lse.dtype == torch.float32
    assert error(out, wanted_out) <= MOST
    assert error(lse, wanted_lse) <= MOST
    out = out.bfloat16()  # as it is kept for backward
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out)
    # The log-sum-exp comes as rows of a longer one in use.
    longer = torch.cat([lse, lse], dim=2)[:, :, :ROWS]
    found = kernel.backward(block, dout_BSHD=dout, out_BSHD=out, lse_BHS=longer)
    wanted = MathReference().backward(
        exact, dout_BSHD=dout.double(), out_BSHD=wanted_out, lse_BHS=wanted_lse
    )
    for mine, theirs in zip(found, wanted, strict=True):
        assert error(mine, theirs) <= MOST


@every_kernel
def test_keys_of_another_number_and_rows_of_a_longer_tensor(
    gpu: torch.device, kernel: Kernel
) -> None:
    skip_if_it_cannot_run(kernel)
    block = make_block(gpu, kv_heads=2, causal=False)
    part = replace(block, q=block.q[:, 100:613], k=block.k[:, 3:201], v=block.v[:, 3:201])
    out, lse = kernel.forward(part)
    wanted_out, wanted_lse = MathReference().forward(in_fp64(part))
    assert error(out, wanted_out) <= MOST
    out = out.bfloat16()
    found = kernel.backward(part, dout_BSHD=out, out_BSHD=out, lse_BHS=lse)
    wanted = MathReference().backward(
        in_fp64(part), dout_BSHD=out.double(), out_BSHD=wanted_out, lse_BHS=wanted_lse
    )
    for mine, theirs in zip(found, wanted, strict=True):
        assert error(mine, theirs) <= MOST


def test_auto_takes_a_kernel_for_halves_and_the_reference_for_the_rest(gpu: torch.device) -> None:
    fast = choose_kernel("auto", device_type="cuda", dtype=torch.bfloat16, head_dim=64)
    assert fast.name not in ("math", "cpu_flash")
    assert choose_kernel("auto", device_type="cuda", dtype=torch.float64).name == "math"


def test_a_kernel_that_is_not_built_for_the_device_is_an_error_that_says_why(
    gpu: torch.device,
) -> None:
    for kernel in ON_CUDA:
        ask = {"device_type": "cuda", "dtype": torch.bfloat16, "head_dim": 64}
        reason = why_not(kernel, Ask(**ask, compute=torch.cuda.get_device_capability()))
        if reason is not None:
            with pytest.raises(ValueError, match="which cannot run here"):
                choose_kernel(kernel.name, **ask)


def test_a_scaled_message_is_the_same_as_on_the_host(gpu: torch.device) -> None:
    rounding = read_rounding("scaled_fp16")
    for magnitude in (0.0, 1e-25, 1.0, 1e12, torch.inf):
        part = torch.randn(5, 2, 1, 2, 64, generator=torch.Generator().manual_seed(1)) * magnitude
        host, device = rounding.encode(part.clone()), rounding.encode(part.to(gpu))
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


def test_ranks_on_one_device_are_near_fp64_with_every_kernel_that_loads(gpu: torch.device) -> None:
    world, seq_len = 3, 1023
    usable = [
        one.name
        for one in ON_CUDA
        if why_not(
            one,
            Ask(
                device_type="cuda",
                dtype=torch.bfloat16,
                grouped=True,
                head_dim=64,
                compute=torch.cuda.get_device_capability(),
            ),
        )
        is None
    ]
    cases = [case | {"kernel": name} for name in usable for case in CASES]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    ranks = [
        context.Process(
            target=run_rank, args=(rank, world, store.port, cases, seq_len, results), daemon=True
        )
        for rank in range(world)
    ]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(100)
        assert one.exitcode == 0
    for _ in ranks:
        _, found = results.get()
        assert [name for name, _ in found] == [case["kernel"] for case in cases]
        assert max(worst for _, worst in found) <= MOST
