"""The attention of every sequence of a step: one plan for all, or one for each pack of documents.

A rank's rows are padded so that tensor-parallel ranks share them evenly (sequence parallel). Rows
of padding hold token 0 and no label, and attention never sees them.

Shapes: B sequences of a pass, S rows of this rank (padding included), T all tokens, H query heads,
K kv heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from cptune.attention import ContextParallel
from cptune.bench.batch import IGNORED, Documents, Sample
from cptune.bench.decoder import Attend, Context


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """One pack on this rank; S is without the padding for tp."""

    cp: ContextParallel
    positions_S: Tensor
    valid_S: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWork:
    """What the plans of some sequences say of this rank, for one layer each."""

    pairs: int
    forward_sent_bytes: int
    backward_sent_bytes: int

    def __add__(self, other: PlannedWork) -> PlannedWork:
        return PlannedWork(
            pairs=self.pairs + other.pairs,
            forward_sent_bytes=self.forward_sent_bytes + other.forward_sent_bytes,
            backward_sent_bytes=self.backward_sent_bytes + other.backward_sent_bytes,
        )


#: Puts something around attention.
Watch = Callable[[Attend], Attend]


def _unwatched(attend: Attend) -> Attend:
    return attend


class Packs:
    """Plans of the sequences of a step, made before it is timed.

    Args:
        cp: The plan of a sequence without documents, and the wires of all.
        row_multiple: What the rows of a rank are a multiple of.
        watch: Wraps the attention of every pass.
        device: Where rows and positions are wanted; they are cut on the host.
    """

    def __init__(
        self,
        cp: ContextParallel,
        *,
        row_multiple: int = 1,
        watch: Watch = _unwatched,
        device: torch.device | None = None,
    ) -> None:
        self.cp, self._multiple, self._watch = cp, row_multiple, watch
        self._device = device or torch.device("cpu")
        self._whole = _planned(cp)
        self._plans: dict[Documents, _Planned] = {}
        self._works: dict[Documents, PlannedWork] = {}
        self._rows = self._rows_of([self._whole])

    @property
    def whole(self) -> Context:
        """The attention of a sequence without documents."""
        return self._context([self._whole], self._rows_of([self._whole]))

    @property
    def kernel(self) -> str:
        """The kernel that ran in the last step; before the first, the one asked for."""
        return next(iter(self._plans.values()), self._whole).cp.kernel

    def prepare(self, packs: Sequence[Documents]) -> None:
        """Plan the sequences of the next step; costs nothing for those planned already."""
        wanted = dict.fromkeys(docs for docs in packs if docs)
        known = self._plans
        self._plans = {
            docs: known.get(docs) or _planned(self.cp.with_docs(docs)) for docs in wanted
        }
        self._works = {docs: one for docs, one in self._works.items() if docs in {*wanted, ()}}
        self._rows = self._rows_of([self._of(docs) for docs in packs])

    def shard(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """This rank's rows of the step: tokens_BS and labels_BS."""
        tokens, labels = list[Tensor](), list[Tensor]()
        for sample in samples:
            plan = self._of(sample.docs)
            own_S = plan.cp.shard(sample.labels_T, dim=0).masked_fill(~plan.valid_S, IGNORED)
            padding = (0, self._rows - len(own_S))
            tokens.append(pad(plan.cp.shard(sample.tokens_T, dim=0), padding))
            labels.append(pad(own_S, padding, value=IGNORED))
        return torch.stack(tokens).to(self._device), torch.stack(labels).to(self._device)

    def contexts(self, packs: Sequence[Documents], *, micro_batch: int) -> list[Context]:
        """The attention of each pass."""
        plans = [self._of(docs) for docs in packs]
        return [
            self._context(plans[at : at + micro_batch], self._rows)
            for at in range(0, len(plans), micro_batch)
        ]

    def work(self, packs: Sequence[Documents]) -> PlannedWork:
        """What these sequences have this rank do in one layer."""
        nothing = PlannedWork(pairs=0, forward_sent_bytes=0, backward_sent_bytes=0)
        return sum(map(self._work, packs), nothing)

    def _work(self, docs: Documents) -> PlannedWork:
        if docs not in self._works:
            rank = 0 if self.cp.group is None else self.cp.group.rank()
            plan = self._of(docs).cp.plan
            sent = plan.bytes(rank)
            self._works[docs] = PlannedWork(
                pairs=plan.pairs(rank),
                forward_sent_bytes=sent.forward_sent,
                backward_sent_bytes=sent.backward_sent,
            )
        return self._works[docs]

    def _of(self, docs: Documents) -> _Planned:
        return self._plans[docs] if docs else self._whole

    def _rows_of(self, plans: Sequence[_Planned]) -> int:
        longest = max(plan.cp.local_len for plan in plans)
        return -(-longest // self._multiple) * self._multiple

    def _context(self, plans: Sequence[_Planned], rows: int) -> Context:
        if all(plan is plans[0] for plan in plans):
            plans = plans[:1]
        positions = [pad(plan.positions_S, (0, rows - len(plan.positions_S))) for plan in plans]
        attends = [_within(plan.cp, rows=rows) for plan in plans]
        return Context(
            positions_BS=torch.stack(positions).to(self._device),
            attend=self._watch(attends[0] if len(attends) == 1 else _one_by_one(attends)),
        )


def _planned(cp: ContextParallel) -> _Planned:
    return _Planned(cp=cp, positions_S=cp.positions, valid_S=cp.valid)


def _within(cp: ContextParallel, *, rows: int) -> Attend:
    """Attention of the first `local_len` of so many rows; zeros for the others."""
    own = cp.local_len
    if own == rows:
        return cp.attend

    def attend(q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> Tensor:
        out_BSHD = cp.attend(q_BSHD[:, :own], k_BSKD[:, :own], v_BSKD[:, :own])
        return pad(out_BSHD, (0, 0, 0, 0, 0, rows - own))

    return attend


def _one_by_one(attends: Sequence[Attend]) -> Attend:
    """Each sequence of a pass over its own documents."""

    def attend(q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> Tensor:
        sequences = zip(attends, q_BSHD.split(1), k_BSKD.split(1), v_BSKD.split(1), strict=True)
        return torch.cat([one(q_1SHD, k_1SKD, v_1SKD) for one, q_1SHD, k_1SKD, v_1SKD in sequences])

    return attend
