"""What is trained: the shape of the model and the batch that every candidate must see."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from math import isqrt

from cptune.domain.checks import (
    MOST_LAYERS,
    MOST_SEQUENCES,
    MOST_TOKENS,
    MOST_WIDE,
    require_range,
)
from topology.words import suggestion


class Mlp(StrEnum):
    """The feed-forward block."""

    SWIGLU = "swiglu"
    GELU = "gelu"


class Norm(StrEnum):
    """The normalisation layer."""

    RMS = "rms"
    LAYER = "layer"


class AttentionMask(StrEnum):
    """Which keys a query may see."""

    FULL = "full"
    CAUSAL = "causal"
    DOCUMENT = "document"


#: `lengths` of a workload whose documents each fill a sequence.
FULL_LENGTHS = "full"


class Precision(StrEnum):
    """The type that the model computes in."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer, by its sizes.

    With `experts`, every layer's feed-forward block is that many of width `expert_ffn`, of which
    a token visits `experts_per_token`; such models are planned and not tried.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    preset: str | None = None
    tied_embeddings: bool = False
    mlp: Mlp = Mlp.SWIGLU
    norm: Norm = Norm.RMS
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0

    def __post_init__(self) -> None:
        require_range(self, 1, MOST_LAYERS, "layers")
        widths = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
        require_range(self, 1, MOST_WIDE, *widths)
        require_range(self, 0, MOST_WIDE, "experts", "experts_per_token", "expert_ffn")
        if self.heads % self.kv_heads:
            near = nearest_divisor(self.heads, self.kv_heads)
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads}); "
                f"nearest legal kv_heads: {near}"
            )
        if self.experts and not (self.expert_ffn and 0 < self.experts_per_token <= self.experts):
            raise ValueError(
                f"experts ({self.experts}) have experts_per_token ({self.experts_per_token}) and "
                f"expert_ffn ({self.expert_ffn}); wanted 1 to {self.experts} and 1 or more"
            )

    @property
    def parameters(self) -> int:
        """Weights of the whole model: no biases, norms counted, a tied embedding once."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        mlp = self.hidden * (self.experts or 1) * (self.expert_ffn if self.experts else self.ffn)
        mlp *= 3 if self.mlp == Mlp.SWIGLU else 2
        mlp += self.hidden * self.experts  # the router
        embedding = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * (attention + mlp + 2 * self.hidden) + embedding + self.hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The batch and the numerics that stay identical over every candidate of a study.

    `lengths` of documents, under the document mask: a file, a distribution or `FULL_LENGTHS`.
    """

    seq_len: int
    global_batch_seqs: int
    mask: AttentionMask = AttentionMask.CAUSAL
    lengths: str = FULL_LENGTHS
    precision: Precision = Precision.BF16
    optimizer: str = "adamw-fp32"

    def __post_init__(self) -> None:
        require_range(self, 1, MOST_TOKENS, "seq_len")
        require_range(self, 1, MOST_SEQUENCES, "global_batch_seqs")

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over the whole job."""
        return self.seq_len * self.global_batch_seqs

    def unused(self) -> list[str]:
        """What was given and has no effect, a line each."""
        is_document = self.mask is AttentionMask.DOCUMENT
        if self.lengths != FULL_LENGTHS and not is_document:
            return [
                f"workload.lengths {self.lengths!r} is not used under mask {self.mask.value!r}: "
                'wanted mask = "document"'
            ]
        if self.lengths == FULL_LENGTHS and is_document:
            return [
                'mask = "document" with lengths "full" is one document a sequence, as causal is: '
                "wanted lengths, a file or a distribution"
            ]
        return []


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` closest to `wanted`; the smaller one of two that are as close."""
    return min(divisors(number), key=lambda d: (abs(d - wanted), d))


@cache
def _preset_table() -> dict[str, dict[str, object]]:
    text = resources.files("cptune.domain").joinpath("models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def preset_names() -> list[str]:
    """Names that `[model] preset` accepts."""
    return sorted(_preset_table())


def preset_fields(name: str) -> dict[str, object]:
    """The shape of a public model as plain fields, without its source.

    Raises:
        ValueError: when the name is not known; the message lists the names that are.
    """
    table = _preset_table()
    if name not in table:
        meant = suggestion(name, preset_names())
        stop = "" if meant.endswith("?") else ";"
        raise ValueError(
            f"preset {name!r} is not known{meant}{stop} known: {', '.join(preset_names())}"
        )
    return {"preset": name, **{k: v for k, v in table[name].items() if k != "source"}}
