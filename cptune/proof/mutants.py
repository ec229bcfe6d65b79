"""Faults to plant: each is a way in which implementations were wrong, and must be refused.

`cptune verify --self-test` plants them one by one. Each has the smallest candidate that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from cptune.attention import ContextParallel
from cptune.domain.candidate import Candidate, DataParallelKind, Recompute, Strategy
from cptune.domain.layout import ParallelLayout
from cptune.domain.workload import AttentionMask, ModelShape, Precision, Workload
from cptune.proof import attention_mutants, model_mutants

SELF_TEST_RANKS = 4
#: Fewer kv heads than tensor ranks, so that some share one.
SELF_TEST_MODEL = ModelShape(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=32, vocab=40)
SELF_TEST_WORKLOAD = Workload(seq_len=64, global_batch_seqs=4, precision=Precision.FP32)
_PACKED = AttentionMask.DOCUMENT
_RING = Candidate(layout=ParallelLayout(cp=4), stages=3)
_ULYSSES = Candidate(
    layout=ParallelLayout(cp=4, ulysses=4),
    strategy=Strategy.ULYSSES,
)
_TENSOR = Candidate(layout=ParallelLayout(tp=4))
_BOTH = Candidate(layout=ParallelLayout(tp=2, cp=2), stages=1)
_RECOMPUTED = Candidate(
    layout=ParallelLayout(cp=2, dp=2),
    stages=1,
    recompute=Recompute.FULL,
    data_parallel=DataParallelKind.ZERO1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault, and a candidate that has it.

    `plant` puts a fault of the model there for a while; those of attention are `made_by`.
    """

    name: str
    fault: str
    candidate: Candidate
    mask: AttentionMask = AttentionMask.CAUSAL
    made_by: type[ContextParallel] = ContextParallel
    plant: Callable[[], AbstractContextManager[None]] = nullcontext


def _of_attention(
    made_by: type[ContextParallel],
    candidate: Candidate = _RING,
    *,
    mask: AttentionMask = AttentionMask.CAUSAL,
) -> Mutant:
    name, fault = _named(made_by.__name__, made_by.__doc__)
    return Mutant(name=name, fault=fault, candidate=candidate, mask=mask, made_by=made_by)


def _of_model(
    plant: Callable[[], AbstractContextManager[None]],
    candidate: Candidate,
    *,
    mask: AttentionMask = AttentionMask.CAUSAL,
) -> Mutant:
    name, fault = _named(plant.__name__, plant.__doc__)
    return Mutant(name=name, fault=fault, candidate=candidate, mask=mask, plant=plant)


def _named(name: str, doc: str | None) -> tuple[str, str]:
    words = "".join(f"-{one.lower()}" if one.isupper() else one for one in name)
    return words.strip("-").replace("_", "-"), (doc or "").strip()


MUTANTS: Sequence[Mutant] = (
    _of_attention(attention_mutants.NothingFetched),
    _of_attention(attention_mutants.CausalDropped),
    _of_attention(attention_mutants.TopLeft),
    _of_attention(attention_mutants.WrongHalf),
    _of_attention(attention_mutants.ValuesForKeys),
    _of_attention(attention_mutants.StaleInBackward),
    _of_attention(attention_mutants.GradientsLost),
    _of_attention(attention_mutants.EmptyRowSaysZero),
    _of_attention(attention_mutants.PartialLse),
    _of_attention(attention_mutants.RunningSumInBf16),
    _of_attention(attention_mutants.HeadsTiled),
    _of_attention(attention_mutants.WrongScale),
    _of_attention(attention_mutants.LocalPositions),
    _of_attention(attention_mutants.SeamLate),
    _of_attention(attention_mutants.PaddingAttended),
    _of_attention(attention_mutants.DocumentsPadded, mask=_PACKED),
    _of_attention(attention_mutants.TokensOutOfOrder, _ULYSSES),
    _of_model(model_mutants.kv_gradients_not_summed, _TENSOR),
    _of_model(model_mutants.norm_gradients_not_summed, _BOTH),
    _of_model(model_mutants.padded_rows_attended, _BOTH),
    _of_model(model_mutants.documents_of_another_sample, _RECOMPUTED, mask=_PACKED),
    _of_model(
        model_mutants.recompute_with_the_attention_of_another_pass, _RECOMPUTED, mask=_PACKED
    ),
    _of_model(model_mutants.loss_averaged_by_rank, _RECOMPUTED),
)


def find_mutant(name: str) -> Mutant:
    """The mutant of that name.

    Raises:
        ValueError: when there is none.
    """
    for mutant in MUTANTS:
        if mutant.name == name:
            return mutant
    raise ValueError(f"mutant is {name!r}; wanted one of {', '.join(one.name for one in MUTANTS)}")
