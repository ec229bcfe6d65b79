"""The global batch: the same samples for every candidate, whoever computes them.

Sample i of step t, its text and its documents, is a pure function of (seed, t, i), so that no
layout, sharding or micro-batch can change what is trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from cptune.domain.guards import BATCH_HASH_BITS
from cptune.domain.workload import Workload

#: Label of a token without a loss: padding, and what the mask of the sample excludes.
IGNORED = -100
#: Tokens of each document of one sequence, in order; empty where the mask knows no documents.
Documents = tuple[int, ...]


class Sample(NamedTuple):
    """One sequence; tokens and labels are (T,), and labels are shifted before any sharding."""

    tokens_T: Tensor
    labels_T: Tensor
    docs: Documents = ()


def sample_ids(*, dp_rank: int, dp_size: int, global_batch_seqs: int) -> range:
    """The samples of one data-parallel group, the same in every step."""
    share = global_batch_seqs // dp_size
    return range(dp_rank * share, (dp_rank + 1) * share)


def sample_hash(ids: Iterable[int], samples: Iterable[Sample]) -> str:
    """A hash of samples: which they are, their documents, their text and their labels.

    Hashes of disjoint sets add up, modulo 2^64, to the hash of their union, so that the whole
    batch has the same one however it is shared out (`cptune.domain.guards`).
    """
    total = 0
    for identity, sample in zip(ids, samples, strict=True):
        digest = hashlib.sha256(repr((identity, sample.docs)).encode())
        for tensor in (sample.tokens_T, sample.labels_T):
            digest.update(tensor.numpy().tobytes())
        total += int.from_bytes(digest.digest()[: BATCH_HASH_BITS // 8], "big")
    return f"{total % (1 << BATCH_HASH_BITS):0{BATCH_HASH_BITS // 4}x}"


def load_sample(
    sample: int,
    *,
    step: int,
    seed: int,
    workload: Workload,
    vocab: int,
    lengths: Sequence[int] = (),
) -> Sample:
    """One sample; with `lengths`, packed with documents drawn from them.

    The last token of a document has no label: what follows is another text.
    """
    generator = torch.Generator().manual_seed((seed << 40) + (step << 20) + sample)
    text_T1 = torch.randint(vocab, (workload.seq_len + 1,), generator=generator)
    tokens_T, labels_T = text_T1[:-1], text_T1[1:]
    if not lengths:
        return Sample(tokens_T, labels_T)
    docs = draw_documents(lengths, seq_len=workload.seq_len, draw=Random(f"{seed}:{step}:{sample}"))
    labels_T = labels_T.clone()
    labels_T[[end - 1 for end in accumulate(docs)]] = IGNORED
    return Sample(tokens_T, labels_T, docs)


def draw_documents(lengths: Sequence[int], *, seq_len: int, draw: Random) -> Documents:
    """Independent documents that fill one sequence; the last is cut to fit."""
    docs: list[int] = []
    left = seq_len
    while left:
        docs.append(min(left, lengths[int(draw.random() * len(lengths))]))
        left -= docs[-1]
    return tuple(docs)
