"""Attention of one block with its log-sum-exp, behind one seam.

Shapes: B batch, S query rows, R key rows, H query heads, K kv heads, G query heads of a kv head
(H = K*G, query head h reads kv head h // G), D head dim.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cptune.attention.choices import read_choice
from cptune.attention.merge import accumulator_dtype

AUTO = "auto"
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_flash_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@dataclass(frozen=True, slots=True)
class Block:
    """What one kernel call attends: never an empty row, and causal only when square.

    Kernels disagree on the log-sum-exp of an empty row (0, +inf, -inf) and on how an oblong causal
    block is aligned, so neither may reach one.
    """

    q: Tensor  # BSHD
    k: Tensor  # BRKD
    v: Tensor  # BRKD
    causal: bool
    scale: float

    def __post_init__(self) -> None:
        q_rows, kv_rows = self.q.shape[1], self.k.shape[1]
        assert q_rows > 0, "a block without queries"
        assert kv_rows > 0, "a block without keys"
        assert not self.causal or q_rows == kv_rows, f"causal but {q_rows} x {kv_rows}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What a kernel can run."""

    device_types: frozenset[str]
    dtypes: frozenset[torch.dtype]
    gqa: bool  # fewer kv heads than query heads


class Kernel(Protocol):
    """One implementation of block attention."""

    @property
    def name(self) -> str:
        """The word that asks for it."""
        ...

    @property
    def capability(self) -> Capability:
        """What it can run."""
        ...

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """Attend one block.

        Returns:
            (out_BSHD in the dtype of q, lse_BHS in fp32 or better, natural log).
        """
        ...

    def backward(
        self, block: Block, *, dout_BSHD: Tensor, out_BSHD: Tensor, lse_BHS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of one block, exact when other blocks were attended too.

        Args:
            block: As in forward.
            dout_BSHD: Gradient of the whole output, over all blocks.
            out_BSHD: The whole output.
            lse_BHS: Log-sum-exp over all blocks.

        Returns:
            (dq_BSHD, dk_BRKD, dv_BRKD): this block's part of each.
        """
        ...


class CpuFlash:
    """The flash attention of torch on CPU: no score matrix, all float types."""

    name = "cpu_flash"
    capability = Capability(device_types=frozenset({"cpu"}), dtypes=_FLOATS, gqa=True)

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """As Kernel.forward."""
        out_BHSD, lse_BHS = _flash_forward(
            *_heads_first(block.q, block.k, block.v),
            0.0,
            block.causal,
            scale=block.scale,
        )
        return out_BHSD.transpose(1, 2), lse_BHS

    def backward(
        self, block: Block, *, dout_BSHD: Tensor, out_BSHD: Tensor, lse_BHS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As Kernel.backward."""
        dout_BHSD, q_BHSD, k_BKRD, v_BKRD, out_BHSD = _heads_first(
            dout_BSHD, block.q, block.k, block.v, out_BSHD
        )
        dq_BHSD, dk_BKRD, dv_BKRD = _flash_backward(
            dout_BHSD,
            q_BHSD,
            k_BKRD,
            v_BKRD,
            out_BHSD,
            lse_BHS,
            0.0,
            block.causal,
            scale=block.scale,
        )
        return dq_BHSD.transpose(1, 2), dk_BKRD.transpose(1, 2), dv_BKRD.transpose(1, 2)


class MathReference:
    """Matrix products and exponentials written out: any device, any float type, O(S*R) memory."""

    name = "math"
    capability = Capability(device_types=frozenset({"cpu", "cuda"}), dtypes=_FLOATS, gqa=True)

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """As Kernel.forward."""
        scores_BKGSR = _scores(block)
        lse_BKGS = scores_BKGSR.logsumexp(dim=-1)
        weights_BKGSR = (scores_BKGSR - lse_BKGS.unsqueeze(-1)).exp()
        v_BRKD = block.v.to(scores_BKGSR.dtype)
        out_BSKGD = torch.einsum("bkgsr,brkd->bskgd", weights_BKGSR, v_BRKD)
        return out_BSKGD.flatten(2, 3).to(block.q.dtype), lse_BKGS.flatten(1, 2)

    def backward(
        self, block: Block, *, dout_BSHD: Tensor, out_BSHD: Tensor, lse_BHS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As Kernel.backward."""
        scores_BKGSR = _scores(block)
        acc, kv_heads = scores_BKGSR.dtype, block.k.shape[2]
        q_BSKGD = _grouped(block.q, kv_heads).to(acc)
        dout_BSKGD = _grouped(dout_BSHD, kv_heads).to(acc)
        delta_BSKG = (dout_BSKGD * _grouped(out_BSHD, kv_heads).to(acc)).sum(dim=-1)
        weights_BKGSR = (scores_BKGSR - lse_BHS.unflatten(1, (kv_heads, -1)).unsqueeze(-1)).exp()
        dv_BRKD = torch.einsum("bkgsr,bskgd->brkd", weights_BKGSR, dout_BSKGD)
        dweights_BKGSR = torch.einsum("bskgd,brkd->bkgsr", dout_BSKGD, block.v.to(acc))
        delta_BKGS1 = delta_BSKG.permute(0, 2, 3, 1).unsqueeze(-1)
        dscores_BKGSR = block.scale * weights_BKGSR * (dweights_BKGSR - delta_BKGS1)
        dq_BSKGD = torch.einsum("bkgsr,brkd->bskgd", dscores_BKGSR, block.k.to(acc))
        dk_BRKD = torch.einsum("bkgsr,bskgd->brkd", dscores_BKGSR, q_BSKGD)
        dtype = block.q.dtype
        return dq_BSKGD.flatten(2, 3).to(dtype), dk_BRKD.to(dtype), dv_BRKD.to(dtype)


KERNELS: tuple[Kernel, ...] = (CpuFlash(), MathReference())  # the first that can run is "auto"


def why_not(
    kernel: Kernel, *, device_type: str, dtype: torch.dtype, grouped: bool = False
) -> str | None:
    """Why `kernel` cannot run, or None when it can. `grouped`: fewer kv heads than query heads."""
    can = kernel.capability
    if device_type not in can.device_types:
        return f"it runs on {', '.join(sorted(can.device_types))}, not on {device_type}"
    if dtype not in can.dtypes:
        return f"it takes {', '.join(sorted(map(str, can.dtypes)))}, not {dtype}"
    if grouped and not can.gqa:
        return "it wants as many kv heads as query heads"
    return None


def read_kernel_name(name: str) -> str:
    """Return `name` when it is "auto" or a kernel's.

    Raises:
        ValueError: It is neither.
    """
    return read_choice(name, what="kernel", choices=(AUTO, *(one.name for one in KERNELS)))


def choose_kernel(
    name: str, *, device_type: str, dtype: torch.dtype, grouped: bool = False
) -> Kernel:
    """Pick the kernel that `name` asks for; "auto" is the first that can run.

    Raises:
        ValueError: The name is unknown, or what it asks for cannot run; the message says why.
    """
    name = read_kernel_name(name)
    asked = [one for one in KERNELS if name in (AUTO, one.name)]
    reasons: list[str] = []
    for kernel in asked:
        reason = why_not(kernel, device_type=device_type, dtype=dtype, grouped=grouped)
        if reason is None:
            return kernel
        reasons.append(f"{kernel.name}: {reason}")
    raise ValueError(f"kernel is {name!r}, which cannot run here ({'; '.join(reasons)})")


def _heads_first(*tensors_BSHD: Tensor) -> list[Tensor]:
    """(B, S, H, D) -> (B, H, S, D) views; the aten op reads a head's elements as neighbours."""
    dense = (one if one.stride(-1) == 1 else one.contiguous() for one in tensors_BSHD)
    return [one_BSHD.transpose(1, 2) for one_BSHD in dense]


def _grouped(x_BSHD: Tensor, kv_heads: int) -> Tensor:
    return x_BSHD.unflatten(2, (kv_heads, -1))


def _scores(block: Block) -> Tensor:
    """Scaled scores, -inf where the mask hides, in the accumulator type."""
    acc = accumulator_dtype(block.q.dtype)
    q_BSKGD = _grouped(block.q, block.k.shape[2]).to(acc)
    scores_BKGSR = torch.einsum("bskgd,brkd->bkgsr", q_BSKGD, block.k.to(acc)) * block.scale
    if not block.causal:
        return scores_BKGSR
    hidden_SR = torch.ones(scores_BKGSR.shape[-2:], dtype=torch.bool, device=scores_BKGSR.device)
    return scores_BKGSR.masked_fill(hidden_SR.triu(diagonal=1), -torch.inf)
