"""What a person asks of `cptune balance`, without numpy: the command line reads it to show help."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Packing(StrEnum):
    """Which documents share a row.

    sequential: as they come. first-fit: each whole in the first row with room. quadratic: the
    costliest first, each whole in the row with the least work that has room.
    """

    SEQUENTIAL = "sequential"
    FIRST_FIT = "first-fit"
    QUADRATIC = "quadratic"


class Split(StrEnum):
    """How a row goes over the ranks of its context group.

    document: every document evenly over all ranks. zigzag, contiguous: the row as a whole, as
    `cptune.attention.Sharding`. whole: each document on one rank, the costliest first.
    """

    DOCUMENT = "document"
    ZIGZAG = "zigzag"
    CONTIGUOUS = "contiguous"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceAsked:
    """The flags.

    Args:
        lengths: Document lengths: a text, CSV, JSONL or Parquet file, a distribution like
            "lognormal(mean=3000, sigma=0.8)", or published statistics: prolong, wlb-llm.
        column: Column or key of the file that holds them.
        cap: Cut longer documents to this many tokens.
        world: Ranks, dp x cp, the same for every CP.
        tokens_per_gpu: Tokens of a rank, the same for every CP.
        cp: Sizes of a context group.
        packing: Which documents share a row.
        split: How a row goes over its group; document is even.
        window: Of a window layer: tokens to the left; full attention if omitted.
        layers: Layers of each kind, like full=1,window=5: rows of both and of their mixture.
        token_keys: Cost of a token beside its pairs, in keys; that of FlashAttention-2 on H100
            if omitted, 0 counts pairs alone.
        model: A preset, to weigh attention against the rest of its step.
        measured: Time real kernels too, in four CPU processes of this machine or of --address.
        seed: Of whatever is drawn.
        out: Keep the rows in this Parquet file.
        figure: Draw spread against CP into this HTML file.
    """

    lengths: str = "prolong"
    column: str | None = None
    cap: int | None = None
    world: int = 512
    tokens_per_gpu: int = 8192
    cp: str = "1,2,4,8"
    packing: Packing = Packing.SEQUENTIAL
    split: Split = Split.DOCUMENT
    window: int | None = None
    layers: str | None = None
    token_keys: float | None = None
    model: str | None = None
    measured: bool = True
    seed: int = 0
    out: Path | None = None
    figure: Path | None = None
