"""The head and the cross-entropy: all logits at once, or a few tokens at a time."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from cptune.bench.batch import IGNORED
from cptune.bench.decoder import Decoder
from cptune.domain.candidate import LossKind

#: Tokens whose logits are held at once by the chunked loss.
CHUNK_TOKENS = 512


def summed_loss(model: Decoder, x_BSE: Tensor, labels_BS: Tensor, *, kind: LossKind) -> Tensor:
    """Cross-entropy summed over the tokens that have a label, a scalar.

    Args:
        model: The last chunk, which owns the head.
        x_BSE: What its head reads, all rows of this context rank.
        labels_BS: Labels; `IGNORED` where there is none.
        kind: `full` holds the logits of all tokens from forward to backward; `chunked` holds those
            of `CHUNK_TOKENS` at a time and computes them again in backward.
    """
    if kind is LossKind.FULL:
        return _sum(model, x_BSE, labels_BS)
    parts = zip(x_BSE.split(CHUNK_TOKENS, dim=1), labels_BS.split(CHUNK_TOKENS, dim=1), strict=True)
    total: Tensor | None = None
    for part_BSE, part_BS in parts:
        loss = checkpoint(_sum, model, part_BSE, part_BS, use_reentrant=False)
        total = loss if total is None else total + loss
    assert total is not None, "a shard has at least one row"
    return total


def _sum(model: Decoder, x_BSE: Tensor, labels_BS: Tensor) -> Tensor:
    logits_BSV = model.head(x_BSE)
    if logits_BSV.dtype.itemsize < 4:  # a half type sums its exponents in fp32
        logits_BSV = logits_BSV.float()
    return cross_entropy(
        logits_BSV.flatten(0, 1), labels_BS.flatten(), ignore_index=IGNORED, reduction="sum"
    )
