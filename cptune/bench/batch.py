"""The global batch: the same samples for every candidate, whoever computes them.

Sample i of step t is a pure function of (seed, t, i), so that no layout, sharding or micro-batch
can change what is trained on.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from cptune.domain.workload import Workload

#: Label of a token without a loss: padding, and what the mask of the sample excludes.
IGNORED = -100


def sample_ids(*, dp_rank: int, dp_size: int, global_batch_seqs: int) -> range:
    """The samples of one data-parallel group, the same in every step."""
    share = global_batch_seqs // dp_size
    return range(dp_rank * share, (dp_rank + 1) * share)


def sample_hash(ids: range) -> str:
    """A short hash of the sample ids, equal on all ranks that must hold the same samples."""
    return hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:16]


def load_sample(
    sample: int, *, step: int, seed: int, workload: Workload, vocab: int
) -> tuple[Tensor, Tensor]:
    """Tokens and labels of one sample, (T,) each; labels are shifted before any sharding."""
    generator = torch.Generator().manual_seed((seed << 40) + (step << 20) + sample)
    text_T1 = torch.randint(vocab, (workload.seq_len + 1,), generator=generator)
    return text_T1[:-1], text_T1[1:]
