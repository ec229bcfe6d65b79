"""The short deterministic case that a candidate is proven on; made without torch.

Everything that costs nothing in mathematics is made small: heads, layers, tokens, data-parallel
samples. The sizes are odd on purpose: no shard of a sequence is as long as another, a rank may have
no token with a loss, and documents end inside shards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import count

from cptune.domain.candidate import Candidate
from cptune.domain.rules import Setting, Violation, why_infeasible
from cptune.domain.workload import FULL_LENGTHS, AttentionMask, ModelShape, Precision, Workload

_HEAD_DIM = 8
_LEAST_LAYERS = 2
_LEAST_TOKENS = 23
_LEAST_FFN = 32
_LEAST_VOCAB = 40
_MOST_SEQUENCES = 2  # of a micro-batch: more of them are the same once more
_LENGTHS = (3, 5, 8, 30)  # of documents; the longest fills most sequences
UPDATES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    """One case: a model, a batch, a mask.

    `ignored` are (sample, start, stop) whose tokens have no loss; `docs` those of the sequence that
    attention alone is compared on, empty without documents.
    """

    shape: ModelShape
    workload: Workload
    passes: int
    lengths: tuple[int, ...]
    ignored: tuple[tuple[int, int, int], ...]
    docs: tuple[int, ...]
    updates: int = UPDATES
    seed: int = 7

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence."""
        return self.workload.seq_len

    @property
    def name(self) -> str:
        """The mask, before the name of each check."""
        return self.workload.mask.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofCase:
    """A candidate as it is proven, and the cases; `precision` is that of the trials."""

    candidate: Candidate
    fixtures: tuple[Fixture, ...]
    precision: Precision

    @property
    def digest(self) -> str:
        """A hash of everything that the checks compute with."""
        content = [asdict(self.candidate), [asdict(one) for one in self.fixtures], self.precision]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def proof_case(candidate: Candidate, *, model: ModelShape, workload: Workload) -> ProofCase:
    """The case of a candidate of a workload: its own mask, causal and documents.

    Args:
        candidate: A legal one.
        model: The model that it trains.
        workload: What it trains on.
    """
    proven = replace(candidate, micro_batch=min(candidate.micro_batch, _MOST_SEQUENCES))
    masks = dict.fromkeys((workload.mask, AttentionMask.CAUSAL, AttentionMask.DOCUMENT))
    fixtures = (_fixture(proven, model=model, mask=mask) for mask in masks)
    return ProofCase(
        candidate=proven,
        fixtures=tuple(one for one in fixtures if one is not None),
        precision=workload.precision,
    )


def _fixture(candidate: Candidate, *, model: ModelShape, mask: AttentionMask) -> Fixture | None:
    """None where trials of the candidate cannot have that mask."""
    lay = candidate.layout
    passes = lay.pp if lay.pp > 1 else 2
    seq_len = max(_LEAST_TOKENS, 4 * lay.cp + 3)
    has_documents = mask is AttentionMask.DOCUMENT
    workload = Workload(
        seq_len=seq_len,
        global_batch_seqs=lay.dp * candidate.micro_batch * passes,
        precision=Precision.FP32,
        mask=mask,
        lengths=FULL_LENGTHS,
    )
    broken: tuple[Violation, ...] = ()
    for shape in _shapes(candidate, model):
        setting = Setting(model=shape, workload=workload, world_size=lay.world_size)
        broken = why_infeasible(candidate, setting)
        if not broken:
            return Fixture(
                shape=shape,
                workload=workload,
                passes=passes,
                lengths=_LENGTHS if has_documents else (),
                ignored=((0, 0, seq_len), (1, 5, 9)),
                docs=_documents(seq_len) if has_documents else (),
            )
        if not any(one.intrinsic for one in broken):
            return None
    raise AssertionError(f"{candidate.describe()} is legal for no small model: {broken}")


def _shapes(candidate: Candidate, model: ModelShape) -> Iterator[ModelShape]:
    """Ever larger models whose heads are grouped and shared over tp as the model's are."""
    lay = candidate.layout
    group = model.heads // model.kv_heads
    for kv_heads in count(min(2, model.kv_heads)):
        if kv_heads > model.kv_heads:
            return
        if (kv_heads % lay.tp == 0) != (model.kv_heads % lay.tp == 0):
            continue
        heads = group * kv_heads
        yield replace(
            model,
            preset=None,
            layers=max(_LEAST_LAYERS, lay.pp * lay.vpp),
            hidden=heads * _HEAD_DIM,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=_HEAD_DIM,
            ffn=_multiple(_LEAST_FFN, lay.tp),
            vocab=_multiple(_LEAST_VOCAB, lay.tp),
        )


def _multiple(least: int, of: int) -> int:
    return -(-least // of) * of


def _documents(seq_len: int) -> tuple[int, ...]:
    """Documents of all kinds: short, empty, of one token, and one that crosses the middle."""
    first = (3, 0, 5, 1)
    return (*first, seq_len - sum(first) - 2, 2)
