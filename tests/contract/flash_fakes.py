"""Stand-ins for the CUDA libraries: their signatures and conventions, on top of the reference.

Each says what the real one says of an unlimited window and of a row that saw nothing.
"""

from types import SimpleNamespace

import torch
from torch import Tensor

from cptune.attention.kernels import Block, MathReference
from cptune.attention.slices import Band

REFERENCE = MathReference()


def make_block(q, k, v, *, scale, causal, left, right) -> Block:
    """A block of a call's arguments; `left` and `right` are None without limit."""
    if causal or (left is None and right is None):
        return Block(q, k, v, causal=causal, scale=scale)
    last = q.shape[1] - 1
    sides = (last if left is None else left, last if right is None else right)
    return Block(q, k, v, causal=False, scale=scale, band=Band(*sides))


def limit(side: int) -> int | None:
    return None if side == -1 else side


def forward(block: Block, *, empty: float) -> tuple[Tensor, Tensor]:
    """Out and log-sum-exp; `empty` is what the library says of a row that saw nothing."""
    out, lse = REFERENCE.forward(block)
    return out, lse.masked_fill(lse == -torch.inf, empty)


def flash_2() -> SimpleNamespace:
    def _flash_attn_forward(
        q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
        alibi_slopes, return_softmax,
    ):  # fmt: skip
        assert (dropout_p, softcap, alibi_slopes, return_softmax) == (0.0, 0.0, None, False)
        sides = {"left": limit(window_size_left), "right": limit(window_size_right)}
        block = make_block(q, k, v, scale=softmax_scale, causal=causal, **sides)
        return *forward(block, empty=torch.inf), None, None

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
    ):  # fmt: skip
        assert all(one.is_contiguous() for one in (dout, q, k, v, out, softmax_lse))
        sides = {"left": limit(window_size_left), "right": limit(window_size_right)}
        block = make_block(q, k, v, scale=softmax_scale, causal=causal, **sides)
        found = REFERENCE.backward(block, dout_BSHD=dout, out_BSHD=out, lse_BHS=softmax_lse)
        for into, one in zip((dq, dk, dv), found, strict=True):
            into.copy_(one)

    return SimpleNamespace(
        _flash_attn_forward=_flash_attn_forward, _flash_attn_backward=_flash_attn_backward
    )


def flash_3() -> SimpleNamespace:
    def _flash_attn_forward(
        q, k, v, k_new=None, v_new=None, qv=None, out_=None, cu_seqlens_q=None, cu_seqlens_k=None,
        cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=None,
        max_seqlen_k=None, softmax_scale=None, causal=False, window_size_left=-1,
        window_size_right=-1, attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
        sm_margin=0,
    ):  # fmt: skip
        sides = {"left": limit(window_size_left), "right": limit(window_size_right)}
        block = make_block(q, k, v, scale=softmax_scale, causal=causal, **sides)
        return *forward(block, empty=-torch.inf), None, None

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None,
        sequed_k=None, max_seqlen_q=None, max_seqlen_k=None, dq=None, dk=None, dv=None,
        softmax_scale=None, is_causal=False, window_size_left=-1, window_size_right=-1,
        softcap=0.0, deterministic=False, sm_margin=0,
    ):  # fmt: skip
        assert all(one.is_contiguous() for one in (dout, q, k, v, out, softmax_lse))
        sides = {"left": limit(window_size_left), "right": limit(window_size_right)}
        block = make_block(q, k, v, scale=softmax_scale, causal=is_causal, **sides)
        found = REFERENCE.backward(block, dout_BSHD=dout, out_BSHD=out, lse_BHS=softmax_lse)
        for into, one in zip((dq, dk, dv), found, strict=True):
            into.copy_(one)

    return SimpleNamespace(
        _flash_attn_forward=_flash_attn_forward, _flash_attn_backward=_flash_attn_backward
    )


def flash_4() -> SimpleNamespace:
    def flash_attn_func(
        q, k, v, softmax_scale=None, causal=False, window_size=(None, None), deterministic=False,
        return_lse=False,
    ):  # fmt: skip
        assert return_lse
        left, right = window_size
        block = make_block(q, k, v, scale=softmax_scale, causal=causal, left=left, right=right)
        return forward(block, empty=-torch.inf)

    def _flash_attn_bwd(
        q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0,
        window_size_left=None, window_size_right=None, deterministic=False, dq=None, dk=None,
        dv=None, dlse=None,
    ):  # fmt: skip
        sides = {"left": window_size_left, "right": window_size_right}
        block = make_block(q, k, v, scale=softmax_scale, causal=causal, **sides)
        return REFERENCE.backward(block, dout_BSHD=dout, out_BSHD=out, lse_BHS=lse)

    return SimpleNamespace(flash_attn_func=flash_attn_func, _flash_attn_bwd=_flash_attn_bwd)


def aten() -> SimpleNamespace:
    def limited(side: int | None) -> int | None:
        return None if side is None else limit(side)

    def _flash_attention_forward(
        query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
        return_debug_mask, *, scale=None, window_size_left=None, window_size_right=None,
    ):  # fmt: skip
        assert (max_q, max_k) == (query.shape[1], key.shape[1])
        assert (cum_seq_q, cum_seq_k, dropout_p, return_debug_mask) == (None, None, 0.0, False)
        sides = {"left": limited(window_size_left), "right": limited(window_size_right)}
        block = make_block(query, key, value, scale=scale, causal=is_causal, **sides)
        return *forward(block, empty=torch.inf), None, None, None

    def _flash_attention_backward(
        grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
        is_causal, rng_state, unused, *, scale=None, window_size_left=None, window_size_right=None,
    ):  # fmt: skip
        assert logsumexp.is_contiguous()
        sides = {"left": limited(window_size_left), "right": limited(window_size_right)}
        block = make_block(query, key, value, scale=scale, causal=is_causal, **sides)
        return REFERENCE.backward(block, dout_BSHD=grad_out, out_BSHD=out, lse_BHS=logsumexp)

    return SimpleNamespace(
        _flash_attention_forward=_flash_attention_forward,
        _flash_attention_backward=_flash_attention_backward,
    )
