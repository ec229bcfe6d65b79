"""The forward and backward of staged attention on one rank.

Shapes: B batch, S rows of this rank (padding included), R rows of a stage, 2 key and value,
H query heads, K kv heads, D head dim.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cptune.attention.kernels import Block, Kernel
from cptune.attention.merge import Partial, accumulator_dtype
from cptune.attention.rounding import Rounding
from cptune.attention.slices import Rows, Slice
from cptune.attention.stages import Schedule, Stage
from cptune.attention.traffic import Pass
from cptune.attention.transport import KeyValue, Transport, unpack_kv
from cptune.attention.wire import Exchange


@dataclass(frozen=True, slots=True)
class Saved:
    """What backward needs: the inputs, the whole output and its log-sum-exp over all keys."""

    q: Tensor  # BSHD
    k: Tensor  # BSKD
    v: Tensor  # BSKD
    out: Tensor  # BSHD
    lse: Tensor  # BHS


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One rank's schedule with what carries it out. Collective: all ranks run both halves.

    `rounding` is that of gradients of keys and values on the wire. `spread` names the kv head of
    each query head where they are not equal runs.
    """

    schedule: Schedule
    transport: Transport
    kernel: Kernel
    scale: float
    rounding: Rounding
    spread: tuple[int, ...] | None = None

    def forward(self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> Partial:
        """Attend the own rows, then stage by stage; padded rows stay (0, -inf)."""
        own = KeyValue(k_BSKD, v_BSKD)
        stream = self.transport.stream(self.schedule.stages, own, during=Pass.FORWARD)
        partial = Partial.empty(q_BSHD)
        self._attend(partial, self.schedule.local, q_BSHD=q_BSHD, kv=own)
        for index, kv in stream:
            self._attend(partial, self.schedule.stages[index].slices, q_BSHD=q_BSHD, kv=kv)
            del kv  # before the stream makes room for the stage after next
        return partial

    def backward(self, dout_BSHD: Tensor, saved: Saved) -> tuple[Tensor, Tensor]:
        """Fetch keys and values again; send each stage's gradients straight to their owners.

        Host work stands at both ends: the causal blocks hide the first fetch, the own full blocks
        hide the last return.

        Returns:
            (dq_BSHD, dkv_R2BKD of the real rows), both in the type that they were summed in.
        """
        own = KeyValue(saved.k, saved.v)
        stream = self.transport.stream(self.schedule.stages, own, during=Pass.BACKWARD)
        sums = _Sums(self, dout_BSHD=dout_BSHD, saved=saved)
        returns = _Returns(self, dkv_R2BKD=_zeros_of(own, rows=self.schedule.rows))
        first = [one for one in self.schedule.local if not one.full]
        last = [one for one in self.schedule.local if one.full]
        sums.add(first, kv=own, dkv_R2BKD=returns.dkv_R2BKD)
        for index, kv in stream:
            stage = self.schedule.stages[index]
            peers_R2BKD = _zeros_of(kv, rows=stage.num_rows)
            sums.add(stage.slices, kv=kv, dkv_R2BKD=peers_R2BKD)
            del kv  # before the stream makes room for the stage after next
            returns.give(index, peers_R2BKD)
            del peers_R2BKD
        sums.add(last, kv=own, dkv_R2BKD=returns.dkv_R2BKD)
        returns.finish()
        return sums.dq_BSHD, returns.dkv_R2BKD

    def block(self, one: Slice, *, q_BSHD: Tensor, kv: KeyValue) -> Block:
        """The rows of one slice."""
        k_BRKD, v_BRKD = (x_BRKD[:, one.kv_start : one.kv_stop] for x_BRKD in kv)
        if self.spread is not None:
            k_BRKD, v_BRKD = k_BRKD[:, :, self.spread], v_BRKD[:, :, self.spread]
        q_BSHD = q_BSHD[:, one.q_start : one.q_stop]
        return Block(q_BSHD, k_BRKD, v_BRKD, causal=one.causal, scale=self.scale, band=one.band)

    def _attend(
        self, partial: Partial, slices: Sequence[Slice], *, q_BSHD: Tensor, kv: KeyValue
    ) -> None:
        for one in slices:
            out_BSHD, lse_BHS = self.kernel.forward(self.block(one, q_BSHD=q_BSHD, kv=kv))
            partial.add(Rows(one.q_start, one.q_stop), out_BSHD, lse_BHS)
            del out_BSHD, lse_BHS


class _Returns:
    """Gradients on their way from the ranks that computed them to the owners of the rows.

    A return is taken in once the next one is posted, so that at most two are in flight: of a ring,
    neither keys nor gradients ever hold more than a few shards. Gradients of rows that were handed
    on wait for the partial sums of the ranks that they were handed to.
    """

    def __init__(self, engine: Engine, *, dkv_R2BKD: Tensor) -> None:
        self.dkv_R2BKD = dkv_R2BKD
        self._engine, self._stages = engine, engine.schedule.stages
        self._last_use = {one.source: at for at, one in enumerate(self._stages)}
        self._gathering: dict[int, Tensor] = {}
        self._flying: deque[tuple[int, Exchange]] = deque()

    def give(self, index: int, peers_R2BKD: Tensor) -> None:
        """Take the gradients of the peers' rows of a stage, in the type they are summed in."""
        if index in self._last_use:
            self._gathering[index] = peers_R2BKD
            return
        before = len(self._flying)
        self._post(index, peers_R2BKD)
        for _ in range(before):
            self._take_in()

    def finish(self) -> None:
        """Wait for everything."""
        while self._flying:
            self._take_in()

    def _post(self, index: int, peers_R2BKD: Tensor) -> None:
        stage = self._stages[index]
        given = self._engine.transport.give_back(stage, peers_R2BKD, rounding=self._rounding(stage))
        self._flying.append((index, given))

    def _take_in(self) -> None:
        index, exchange = self._flying.popleft()
        stage = self._stages[index]
        into = self.dkv_R2BKD if stage.source is None else self._gathering[stage.source]
        _add_returned(into, stage, exchange.wait(), rounding=self._rounding(stage))
        exchange.finish()
        if stage.source is not None and self._last_use[stage.source] == index:
            self._post(stage.source, self._gathering.pop(stage.source))

    def _rounding(self, stage: Stage) -> Rounding:
        """Once, on the way to the owner; what is summed on the way there stays as it is."""
        summed = Rounding(self.dkv_R2BKD.dtype)
        return self._engine.rounding if stage.source is None else summed


class _Sums:
    """The query gradient of one backward, and where each block's parts are added."""

    def __init__(self, engine: Engine, *, dout_BSHD: Tensor, saved: Saved) -> None:
        self._engine, self._dout_BSHD, self._saved = engine, dout_BSHD, saved
        self.dq_BSHD = torch.zeros_like(
            saved.q, dtype=accumulator_dtype(saved.q.dtype), memory_format=torch.contiguous_format
        )

    def add(self, slices: Sequence[Slice], *, kv: KeyValue, dkv_R2BKD: Tensor) -> None:
        """Add blocks: to the query gradient, and to `dkv_R2BKD` where their keys lie."""
        dk_BRKD, dv_BRKD = unpack_kv(dkv_R2BKD)
        for one in slices:
            queries, keys = slice(one.q_start, one.q_stop), slice(one.kv_start, one.kv_stop)
            dq, dk, dv = self._engine.kernel.backward(
                self._engine.block(one, q_BSHD=self._saved.q, kv=kv),
                dout_BSHD=self._dout_BSHD[:, queries],
                out_BSHD=self._saved.out[:, queries],
                lse_BHS=self._saved.lse[:, :, queries],
            )
            self.dq_BSHD[:, queries] += dq
            self._add_heads(dk_BRKD[:, keys], dk)
            self._add_heads(dv_BRKD[:, keys], dv)
            del dq, dk, dv

    def _add_heads(self, into_BRKD: Tensor, part: Tensor) -> None:
        if self._engine.spread is None:
            into_BRKD += part
        else:
            index = torch.tensor(self._engine.spread, device=part.device)
            into_BRKD.index_add_(2, index, part.to(into_BRKD.dtype))


def _add_returned(
    into_R2BKD: Tensor, stage: Stage, found_R2BKD: Tensor, *, rounding: Rounding
) -> None:
    """Add what came for our rows, in the order of the stage's sends."""
    messages = found_R2BKD.split([transfer.num_rows for transfer in stage.send])
    for transfer, message_R2BKD in zip(stage.send, messages, strict=True):
        factor = rounding.factor(message_R2BKD)
        parts = message_R2BKD.split([one.num_rows for one in transfer.rows])
        for one, part_R2BKD in zip(transfer.rows, parts, strict=True):
            into_R2BKD[one.start : one.stop].addcmul_(part_R2BKD, factor)


def _zeros_of(kv: KeyValue, *, rows: int) -> Tensor:
    """Gradients of keys and values, summed from here on, (R, 2, B, K, D)."""
    batch, _, *row = kv.k.shape
    return kv.k.new_zeros((rows, 2, batch, *row), dtype=accumulator_dtype(kv.k.dtype))
