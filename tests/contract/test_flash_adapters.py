"""The adapters of CUDA kernels call what their libraries offer, and read their conventions."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from flash_fakes import REFERENCE, aten, flash_2, flash_3, flash_4

from cptune.attention.kernels import (
    Block,
    CudaFlash,
    FlashAttention2,
    FlashAttention3,
    FlashAttention4,
    Kernel,
)
from cptune.attention.kernels.cuda_flash import nothing_seen_is_minus_infinity
from cptune.attention.slices import Band

ADAPTERS = [
    CudaFlash(aten()),
    FlashAttention2(flash_2),
    FlashAttention3(flash_3),
    FlashAttention4(flash_4),
]
SHAPES = [
    {"causal": False},
    {"causal": True},
    {"causal": False, "band": Band(3, 0)},
    {"causal": False, "band": Band(0, 8)},
    {"causal": False, "band": Band(0, 2)},
]
every_adapter = pytest.mark.parametrize("kernel", ADAPTERS, ids=[one.name for one in ADAPTERS])


def make_block(**kind) -> Block:
    source = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, heads, 8, generator=source).double() for heads in (4, 2, 2))
    # Rows of a longer tensor, as an adapter gets them.
    k, v = (torch.cat([x, x], dim=1)[:, :9] for x in (k, v))
    return Block(q, k, v, scale=0.3, **kind)


@every_adapter
@pytest.mark.parametrize("kind", SHAPES, ids=str)
def test_an_adapter_asks_its_library_for_the_block_that_it_got(kernel: Kernel, kind) -> None:
    block = make_block(**kind)
    out, lse = kernel.forward(block)
    wanted_out, wanted_lse = REFERENCE.forward(block)
    torch.testing.assert_close(out, wanted_out, rtol=0, atol=0)
    torch.testing.assert_close(lse, wanted_lse, rtol=0, atol=0)
    longer = torch.cat([lse, lse], dim=2)[:, :, :9]
    found = kernel.backward(block, dout_BSHD=out, out_BSHD=out, lse_BHS=longer)
    wanted = REFERENCE.backward(block, dout_BSHD=out, out_BSHD=out, lse_BHS=lse)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_a_row_that_saw_nothing_is_minus_infinity_whatever_the_library_says() -> None:
    lse = torch.tensor([[[1.0, torch.inf, -torch.inf]]])
    assert nothing_seen_is_minus_infinity(lse).tolist() == [[[1.0, -torch.inf, -torch.inf]]]


@every_adapter
def test_halves_alone_and_fewer_kv_heads_are_its_capability(kernel: Kernel) -> None:
    assert kernel.capability.dtypes == {torch.float16, torch.bfloat16}
    assert kernel.capability.device_types == {"cuda"}
    assert kernel.capability.gqa
    assert kernel.why_missing() is None


def fails_with(error: Exception):
    def load():
        raise error

    return load


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("no", name="flash_attn"), "flash_attn is not installed"),
        (ModuleNotFoundError("no", name="einops"), "flash_attn misses einops"),
        (ImportError("undefined symbol: _ZN3"), "flash_attn does not load: undefined symbol: _ZN3"),
    ],
)
def test_a_library_that_does_not_load_says_why(error: Exception, reason: str) -> None:
    assert FlashAttention2(fails_with(error)).why_missing() == reason


def older_flash_3() -> SimpleNamespace:
    """As of flash-attn 2.8.3: sides of a window in a pair, and every argument without default."""

    def _flash_attn_forward(q, k, v, k_new, v_new, softmax_scale, causal, window_size=(-1, -1)): ...

    return SimpleNamespace(**vars(flash_3()) | {"_flash_attn_forward": _flash_attn_forward})


def stricter_flash_2() -> SimpleNamespace:
    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, softcap, alibi_slopes, deterministic, sink,
    ): ...  # fmt: skip

    return SimpleNamespace(**vars(flash_2()) | {"_flash_attn_backward": _flash_attn_backward})


def half_of_flash_4() -> SimpleNamespace:
    return SimpleNamespace(flash_attn_func=flash_4().flash_attn_func)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (
            FlashAttention3(older_flash_3),
            "flash_attn_interface is of another version: _flash_attn_forward has no "
            "window_size_left, window_size_right",
        ),
        (
            FlashAttention2(stricter_flash_2),
            "flash_attn is of another version: _flash_attn_backward wants sink too",
        ),
        (
            FlashAttention4(half_of_flash_4),
            "flash_attn.cute is of another version: it has no _flash_attn_bwd",
        ),
    ],
)
def test_a_library_of_another_version_is_not_called(kernel: Kernel, reason: str) -> None:
    assert kernel.why_missing() == reason


def as_operators() -> SimpleNamespace:
    """As libraries wrap their functions for torch.compile."""
    made = vars(flash_3()) | {}
    return SimpleNamespace(
        **{name: SimpleNamespace(__call__=one, _init_fn=one) for name, one in made.items()}
    )


def test_the_signature_of_an_operator_is_that_of_its_function() -> None:
    assert FlashAttention3(as_operators).why_missing() is None


@pytest.mark.parametrize("kind", SHAPES, ids=str)
def test_torch_itself_takes_what_its_operators_are_given(kind) -> None:
    block = make_block(**kind)
    q, k, v = (x.to("meta", torch.bfloat16) for x in (block.q, block.k, block.v))
    block = replace(block, q=q, k=k, v=v)
    kernel = CudaFlash()
    out, lse = kernel.forward(block)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    assert (lse.shape, lse.dtype) == ((2, 4, 9), torch.float32)
    found = kernel.backward(block, dout_BSHD=out, out_BSHD=out, lse_BHS=lse)
    assert [one.shape for one in found] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize("kernel", [FlashAttention2(), FlashAttention3(), FlashAttention4()])
def test_nothing_is_imported_before_it_is_asked_for(kernel: Kernel) -> None:
    reason = kernel.why_missing()
    assert reason is None or "not installed" in reason
