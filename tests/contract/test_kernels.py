"""One contract for every kernel: values, types, gradients from global results, and refusals."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cptune.attention.kernels import (
    KERNELS,
    Ask,
    Block,
    Capability,
    CpuFlash,
    CudaFlash,
    Kernel,
    MathReference,
    choose_kernel,
    why_not,
)
from cptune.attention.slices import Band

SCALE = 0.3
# Relative L2 error against fp64.
TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}

on_cpu = [one for one in KERNELS if "cpu" in one.capability.device_types]
every_kernel = pytest.mark.parametrize("kernel", on_cpu, ids=[one.name for one in on_cpu])
every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
every_ratio = pytest.mark.parametrize("kv_heads", [4, 2, 1])
every_mask = pytest.mark.parametrize("causal", [False, True])


def make_block(
    dtype: torch.dtype, *, rows: int, keys: int, kv_heads: int = 4, causal: bool = False
) -> Block:
    source = torch.Generator().manual_seed(rows + 100 * keys)
    sizes = [(2, rows, 4, 8), (2, keys, kv_heads, 8), (2, keys, kv_heads, 8)]
    q, k, v = (torch.randn(size, generator=source).to(dtype) for size in sizes)
    return Block(q, k, v, causal=causal, scale=SCALE)


def naive(block: Block) -> tuple[list[Tensor], Tensor, Tensor]:
    """fp64 leaves q, k, v with out and lse on top of them, by autograd."""
    leaves = [x.double().requires_grad_() for x in (block.q, block.k, block.v)]
    repeats = block.q.shape[2] // block.k.shape[2]
    k, v = (x.repeat_interleave(repeats, dim=2) for x in leaves[1:])
    scores = torch.einsum("bqhd,bkhd->bhqk", leaves[0], k) * block.scale
    at = torch.arange(scores.shape[-1])
    if block.causal:
        scores = scores.masked_fill(at[None, :] > at[:, None], float("-inf"))
    if block.band:
        left, right = block.band
        row, column = torch.arange(scores.shape[-2])[:, None], at[None, :]
        hidden = (column < row - left) | (column > row + right)
        scores = scores.masked_fill(hidden, float("-inf"))
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)
    return leaves, out, scores.logsumexp(dim=-1)


def assert_near(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    error = (found.double() - wanted).norm() / wanted.norm()
    assert error.item() <= tolerance


@every_kernel
@every_dtype
@every_ratio
@every_mask
def test_forward_and_backward_equal_the_naive_ones(
    kernel: Kernel, dtype: torch.dtype, kv_heads: int, causal: bool
) -> None:
    block = make_block(dtype, rows=13, keys=13, kv_heads=kv_heads, causal=causal)
    assert_equals_naive(kernel, block, dtype)


def assert_equals_naive(kernel: Kernel, block: Block, dtype: torch.dtype) -> None:
    leaves, wanted_out, wanted_lse = naive(block)
    dout = torch.randn(wanted_out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    out, lse = kernel.forward(block)
    found = kernel.backward(block, dout_BSHD=dout, out_BSHD=out, lse_BHS=lse)
    assert_near(out, wanted_out, TOLERANCES[dtype])
    assert_near(lse, wanted_lse, max(1e-6, TOLERANCES[dtype]) if lse.dtype != dtype else 2e-6)
    for mine, theirs in zip(
        found, torch.autograd.grad(wanted_out, leaves, dout.double()), strict=True
    ):
        assert mine.shape == theirs.shape
        assert_near(mine, theirs, 2 * TOLERANCES[dtype])


@every_kernel
@every_dtype
@every_ratio
@pytest.mark.parametrize("band", [(1, 0), (3, 0), (0, 12), (0, 4), (2, 1), (40, 40)])
def test_a_band_equals_the_naive_one(
    kernel: Kernel, dtype: torch.dtype, kv_heads: int, band: tuple[int, int]
) -> None:
    block = make_block(dtype, rows=13, keys=13, kv_heads=kv_heads)
    assert_equals_naive(kernel, replace(block, band=Band(*band)), dtype)


@every_kernel
@pytest.mark.parametrize("band", [(300, 0), (0, 599), (70, 0)])
def test_a_band_longer_than_one_run_of_rows_equals_the_naive_one(
    kernel: Kernel, band: tuple[int, int]
) -> None:
    block = make_block(torch.float64, rows=600, keys=600, kv_heads=2)
    assert_equals_naive(kernel, replace(block, band=Band(*band)), torch.float64)


@every_kernel
@every_dtype
def test_outputs_are_as_wide_as_the_inputs_or_wider_and_lse_is_fp32_or_better(
    kernel: Kernel, dtype: torch.dtype
) -> None:
    block = make_block(dtype, rows=5, keys=7, kv_heads=2)
    out, lse = kernel.forward(block)
    gradients = kernel.backward(block, dout_BSHD=out, out_BSHD=out, lse_BHS=lse)
    assert out.shape == (2, 5, 4, 8)
    assert lse.shape == (2, 4, 5)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert out.dtype in (dtype, wide)
    assert {one.dtype for one in gradients} == {wide}
    assert lse.dtype == wide


@every_kernel
@every_ratio
def test_gradients_of_parts_add_up_when_given_the_global_output_and_lse(
    kernel: Kernel, kv_heads: int
) -> None:
    whole = make_block(torch.float64, rows=6, keys=11, kv_heads=kv_heads)
    leaves, out, lse = naive(whole)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    wanted_dq, wanted_dk, wanted_dv = torch.autograd.grad(out, leaves, dout)
    parts = [
        kernel.backward(
            Block(whole.q, whole.k[:, keys], whole.v[:, keys], causal=False, scale=SCALE),
            dout_BSHD=dout,
            out_BSHD=out.detach(),
            lse_BHS=lse.detach(),
        )
        for keys in (slice(0, 4), slice(4, 11))
    ]
    torch.testing.assert_close(parts[0][0] + parts[1][0], wanted_dq, rtol=0, atol=1e-13)
    for index, wanted in ((1, wanted_dk), (2, wanted_dv)):
        found = torch.cat([part[index] for part in parts], dim=1)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)


@every_kernel
def test_strided_rows_heads_and_elements_read_right(kernel: Kernel) -> None:
    dense = make_block(torch.float64, rows=4, keys=4, kv_heads=2, causal=True)
    by_heads = Block(
        *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (dense.q, dense.k, dense.v)),
        causal=True,
        scale=SCALE,
    )
    by_elements = Block(
        *(x.transpose(2, 3).contiguous().transpose(2, 3) for x in (dense.q, dense.k, dense.v)),
        causal=True,
        scale=SCALE,
    )
    wanted = run(kernel, dense)
    for strided in (by_heads, by_elements):
        for mine, theirs in zip(run(kernel, strided), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-14)


def run(kernel: Kernel, block: Block) -> list[Tensor]:
    out, lse = kernel.forward(block)
    # The log-sum-exp comes as rows of a longer one in use.
    longer = torch.cat([lse, lse], dim=2)[:, :, : lse.shape[2]]
    return [out, lse, *kernel.backward(block, dout_BSHD=out, out_BSHD=out, lse_BHS=longer)]


@every_kernel
def test_large_scores_do_not_overflow(kernel: Kernel) -> None:
    block = make_block(torch.float32, rows=4, keys=4)
    huge = Block(block.q * 200, block.k * 200, block.v, causal=True, scale=1.0)
    assert all(one.isfinite().all() for one in run(kernel, huge))


@pytest.mark.parametrize(("rows", "keys"), [(0, 3), (3, 0)])
def test_no_kernel_ever_sees_an_empty_row(rows: int, keys: int) -> None:
    # Kernels answer 0, +inf or -inf for its log-sum-exp; two of the three corrupt a merge.
    with pytest.raises(AssertionError, match="a block without"):
        make_block(torch.float32, rows=rows, keys=keys)


def test_no_kernel_ever_sees_an_oblong_band() -> None:
    with pytest.raises(AssertionError, match="a band but 3 x 4"):
        replace(make_block(torch.float32, rows=3, keys=4), band=Band(1, 0))


def test_no_kernel_ever_sees_an_oblong_causal_block() -> None:
    with pytest.raises(AssertionError, match="causal but 3 x 4"):
        make_block(torch.float32, rows=3, keys=4, causal=True)


def test_auto_takes_the_first_that_can_run() -> None:
    assert isinstance(choose_kernel("auto", device_type="cpu", dtype=torch.bfloat16), CpuFlash)
    assert isinstance(choose_kernel("auto", device_type="cuda", dtype=torch.float32), MathReference)
    assert choose_kernel("math", device_type="cpu", dtype=torch.float64).name == "math"


@pytest.mark.parametrize(
    ("name", "device_type", "dtype", "message"),
    [
        ("cpu_flash", "cuda", torch.float32, "cpu_flash: it runs on cpu, not on cuda"),
        ("math", "cpu", torch.int32, r"math: it takes .*, not torch\.int32"),
        ("auto", "meta", torch.float32, "cpu_flash: .* not on meta; math: .* not on meta"),
        ("fa5", "cpu", torch.float32, "kernel is 'fa5', wanted one of auto, .*, cpu_flash, math"),
        ("flash_attn_2", "cpu", torch.float16, "flash_attn_2: it runs on cuda, not on cpu"),
        ("flash_attn_3", "cuda", torch.float32, "flash_attn_3: it takes .*, not torch.float32"),
        ("flash_attn_2", "cuda", torch.float16, "flash_attn_2: flash_attn is not installed"),
        ("flash_attn_4", "cuda", torch.float16, "flash_attn_4: flash_attn.cute is not installed"),
        ("flash_attn_3", "cuda", torch.float16, "flash_attn_interface is not installed"),
    ],
)
def test_a_kernel_that_cannot_run_says_why(
    name: str, device_type: str, dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        choose_kernel(name, device_type=device_type, dtype=dtype)


class OneHeadEach(MathReference):
    capability = Capability(
        device_types=frozenset({"cpu"}), dtypes=frozenset({torch.float32}), gqa=False
    )


def test_a_kernel_without_grouped_heads_is_not_given_any() -> None:
    ask = Ask(device_type="cpu", dtype=torch.float32)
    assert why_not(OneHeadEach(), ask) is None
    reason = why_not(OneHeadEach(), replace(ask, grouped=True))
    assert reason == "it wants as many kv heads as query heads"


def test_head_sizes_and_devices_that_a_kernel_is_not_built_for_are_named() -> None:
    ask = Ask(device_type="cuda", dtype=torch.bfloat16, compute=(9, 0), head_dim=64)
    assert why_not(CudaFlash(), ask) is None
    assert why_not(CudaFlash(), replace(ask, head_dim=512)) == (
        "it takes heads of at most 256 elements, not 512"
    )
    assert why_not(CudaFlash(), replace(ask, head_dim=12)) == (
        "it takes heads of multiples of 8 elements, not 12"
    )
    assert why_not(CudaFlash(), replace(ask, compute=(7, 5))) == (
        "it is built for compute capability 8.0 to below 99.0, not 7.5"
    )
