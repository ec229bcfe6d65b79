"""One call of attention, read: do its tensors fit together, and what is the same on all ranks.

Shapes: B batch, S rows of this rank (padding included), H query heads, K kv heads, D head dim.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf, nan

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What ranks must agree on."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device_type: str
    scale: float
    backward: bool  # will gradients be asked for?

    def given(self) -> dict[str, object]:
        """Plain values by name."""
        return asdict(self) | {"dtype": f"{self.dtype}"}

    def sizes(self) -> dict[str, int]:
        """What turns rows into bytes."""
        return {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "itemsize": self.dtype.itemsize,
        }

    def check_promise(self, promised: Mapping[str, object]) -> None:
        """Refuse other sizes than were given at the start; None promises nothing.

        Raises:
            ValueError: One differs.
        """
        for name, value in promised.items():
            seen = getattr(self, name)
            if value is not None and value != seen:
                raise ValueError(
                    f"{name} is {seen} in attend, wanted the {value} given to ContextParallel"
                )


def read_call(q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, *, scale: float | None) -> Call:
    """Read tensors and scale; 1/sqrt(D) where that is omitted.

    Raises:
        ValueError: Shapes or types do not fit together, or the scale is not a number above 0.
    """
    _check_tensors(q=q_BSHD, k=k_BSKD, v=v_BSKD)
    _check_heads(q_BSHD, k_BSKD, v_BSKD)
    batch, _, heads, head_dim = q_BSHD.shape
    return Call(
        batch=batch,
        heads=heads,
        kv_heads=k_BSKD.shape[2],
        head_dim=head_dim,
        dtype=q_BSHD.dtype,
        device_type=q_BSHD.device.type,
        scale=head_dim**-0.5 if scale is None else _read_scale(scale),
        backward=torch.is_grad_enabled() and any(x.requires_grad for x in (q_BSHD, k_BSKD, v_BSKD)),
    )


def _read_scale(scale: object) -> float:
    if isinstance(scale, Tensor) and scale.requires_grad:
        raise ValueError(
            "scale wants a gradient, which attention has none for; multiply the queries by it"
        )
    try:
        found = float(scale)  # pyrefly: ignore[bad-argument-type] - which is what it refuses
    except (TypeError, ValueError):
        found = nan
    if not 0 < found < inf:
        raise ValueError(f"scale is {scale!r}, wanted a finite number above 0")
    return found


def _check_tensors(**given: Tensor) -> None:
    for name, x in given.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} is a {type(x).__name__}, wanted a tensor")
    devices = {name: x.device for name, x in given.items()}
    if len(set(devices.values())) > 1:
        told = ", ".join(f"{name} {device}" for name, device in devices.items())
        raise ValueError(f"devices are {told}, wanted one")


def _check_heads(q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> None:
    """Refuse queries, keys and values that do not fit together.

    Raises:
        ValueError: Their shapes or types differ where they must not.
    """
    shapes = f"q {tuple(q_BSHD.shape)}, k {tuple(k_BSKD.shape)}, v {tuple(v_BSKD.shape)}"
    if {q_BSHD.ndim, k_BSKD.ndim, v_BSKD.ndim} != {4}:
        raise ValueError(f"shapes are {shapes}, wanted (batch, rows, heads, head_dim) each")
    if k_BSKD.shape != v_BSKD.shape:
        raise ValueError(f"shapes are {shapes}, wanted k and v alike")
    (batch, _, heads, head_dim), (kv_batch, _, kv_heads, kv_head_dim) = q_BSHD.shape, k_BSKD.shape
    if (batch, head_dim) != (kv_batch, kv_head_dim):
        raise ValueError(f"shapes are {shapes}, wanted equal batch and head_dim")
    if min(heads, kv_heads, head_dim) < 1:
        raise ValueError(f"shapes are {shapes}, wanted at least one head, of one element")
    if heads % kv_heads:
        nearest = max(kv_heads, heads - heads % kv_heads)
        raise ValueError(
            f"q has {heads} heads, wanted a multiple of the {kv_heads} kv heads; "
            f"nearest is {nearest}"
        )
    if not q_BSHD.dtype == k_BSKD.dtype == v_BSKD.dtype:
        raise ValueError(
            f"dtypes are q {q_BSHD.dtype}, k {k_BSKD.dtype}, v {v_BSKD.dtype}, wanted one"
        )
