"""The unsharded model in plain PyTorch, in one process; it shares no code with what it judges.

Shapes: B batch, T all tokens, H query heads, K kv heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cptune.bench.batch import IGNORED, Sample, load_sample, sample_ids
from cptune.bench.decoder import Chunk, Context, Decoder, initialise
from cptune.bench.optimizer import LEARNING_RATE
from cptune.domain.workload import AttentionMask
from cptune.proof.fixture import Fixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The first step's loss and gradients, and the weights after all updates, by name."""

    loss: float
    gradient_norm: float
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def hidden_pairs(fixture: Fixture, docs: tuple[int, ...]) -> Tensor:
    """(T, T), True where a query (row) may not see a key (column), token by token."""
    at = torch.arange(fixture.seq_len)
    query, key = at[:, None], at[None, :]
    hidden = torch.zeros(fixture.seq_len, fixture.seq_len, dtype=torch.bool)
    if fixture.workload.mask is not AttentionMask.FULL:
        hidden |= key > query
    if docs:
        document = torch.repeat_interleave(torch.arange(len(docs)), torch.tensor(docs))
        hidden |= document[:, None] != document[None, :]
    return hidden


def token_positions(fixture: Fixture, docs: tuple[int, ...]) -> Tensor:
    """Position of each token in its document, int64 (T,)."""
    return torch.cat([torch.arange(length) for length in docs or (fixture.seq_len,)])


def attend_whole(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, hidden_TT: Tensor) -> Tensor:
    """Softmax attention of the whole sequence, written out."""
    group = q_BTHD.shape[2] // k_BTKD.shape[2]
    k_BTHD, v_BTHD = (x.repeat_interleave(group, dim=2) for x in (k_BTKD, v_BTKD))
    scores_BHTT = torch.einsum("bqhd,bkhd->bhqk", q_BTHD, k_BTHD) / q_BTHD.shape[-1] ** 0.5
    scores_BHTT = scores_BHTT.masked_fill(hidden_TT, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores_BHTT.softmax(dim=-1), v_BTHD)


def load_samples(fixture: Fixture, *, dp_rank: int, dp_size: int, step: int = 0) -> list[Sample]:
    """The samples of one data-parallel group, without the losses that the fixture ignores."""
    ignored = {sample: (start, stop) for sample, start, stop in fixture.ignored}
    batch, found = fixture.workload.global_batch_seqs, list[Sample]()
    for sample in sample_ids(dp_rank=dp_rank, dp_size=dp_size, global_batch_seqs=batch):
        tokens_T, labels_T, docs = load_sample(
            sample,
            step=step,
            seed=fixture.seed,
            workload=fixture.workload,
            vocab=fixture.shape.vocab,
            lengths=fixture.lengths,
        )
        start, stop = ignored.get(sample, (0, 0))
        labels_T = labels_T.clone()
        labels_T[start:stop] = IGNORED
        found.append(Sample(tokens_T, labels_T, docs))
    return found


@lru_cache(maxsize=32)
def train_whole(fixture: Fixture) -> Trained:
    """Train the whole model on every sample, one sequence at a time.

    Kept: the candidates of a sweep share few fixtures, and a rank is asked for each many times.
    """
    shape = fixture.shape
    positions_T = torch.arange(fixture.seq_len)
    hidden_TT = hidden_pairs(fixture, ())
    attend = partial(attend_whole, hidden_TT=hidden_TT)
    model = Decoder(shape, chunk=Chunk.whole(shape), attend=attend, positions_S=positions_T)
    model = model.double()
    initialise(model, seed=fixture.seed)
    adamw = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    first: tuple[float, dict[str, Tensor]] | None = None
    for step in range(fixture.updates):
        samples = load_samples(fixture, dp_rank=0, dp_size=1, step=step)
        valid = sum(int((one.labels_T != IGNORED).sum()) for one in samples)
        adamw.zero_grad()
        loss = torch.stack([_summed_loss(model, one, fixture) for one in samples]).sum()
        loss = loss / max(1, valid)
        loss.backward()
        if first is None:
            grads = {name: _gradient(one).clone() for name, one in model.named_parameters()}
            first = loss.item(), grads
        adamw.step()
    assert first is not None, "a fixture has updates"
    loss_0, grads = first
    return Trained(
        loss=loss_0,
        gradient_norm=torch.cat([grad.reshape(-1) for grad in grads.values()]).norm().item(),
        gradients=grads,
        weights={name: one.detach() for name, one in model.named_parameters()},
    )


def _summed_loss(model: Decoder, sample: Sample, fixture: Fixture) -> Tensor:
    attend = partial(attend_whole, hidden_TT=hidden_pairs(fixture, sample.docs))
    positions_T = token_positions(fixture, sample.docs)
    model.context = Context(positions_BS=positions_T[None], attend=attend)
    logits_BTV = model.head(model(sample.tokens_T[None]))
    return cross_entropy(
        logits_BTV.flatten(0, 1), sample.labels_T, ignore_index=IGNORED, reduction="sum"
    )


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
