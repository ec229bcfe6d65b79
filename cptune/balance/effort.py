"""What a study may cost: more than hours or the memory of a machine is refused, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from cptune.balance.work import Tokens
from cptune.errors import SpecError

DRAWN_STEPS = 100  # of a distribution, or of a file that holds no whole step
_MOST_DOCUMENTS = 100_000_000  # to draw: a minute or two
_MOST_ROWS = 100_000_000  # of one GPU, over all steps: the same
_BLOCK_ROWS = 4_000_000  # at once: a few hundred megabytes


def check_drawn(step_tokens: int, *, mean_tokens: float) -> None:
    """Refuse steps that hold more documents than can be drawn.

    Raises:
        SpecError: with their number and the bound.
    """
    documents = DRAWN_STEPS * step_tokens / mean_tokens
    if documents > _MOST_DOCUMENTS:
        raise SpecError(
            f"{DRAWN_STEPS} steps of {step_tokens:,} tokens hold {documents:,.0f} documents of "
            f"{mean_tokens:,.0f} tokens; wanted {_MOST_DOCUMENTS:,} at most",
            hint="wanted a smaller --world or --tokens-per-gpu, or longer documents",
        )


def in_blocks(stream: Iterable[Tokens], *, tokens_per_gpu: int) -> Iterator[Tokens]:
    """The stream in blocks that a simulation has the memory for.

    Raises:
        SpecError: when the documents fill more rows of a GPU than can be counted out.
    """
    seen = 0.0
    for documents in stream:
        rows = float(documents.sum(dtype=np.float64)) / tokens_per_gpu
        seen += rows
        longest = int(documents.max(initial=0))
        if seen > _MOST_ROWS or longest / tokens_per_gpu > _BLOCK_ROWS:
            raise SpecError(
                f"documents of up to {longest:,} tokens fill more than {_MOST_ROWS:,} rows of "
                f"{tokens_per_gpu:,} tokens, or one of them more than {_BLOCK_ROWS:,}",
                hint="wanted a larger --tokens-per-gpu, a --cap, or fewer documents",
            )
        yield from np.array_split(documents, 1 + int(rows // _BLOCK_ROWS))
