"""The known ring: whole blocks of keys and values relayed from rank to rank.

The schedule of ring-flash-attention (github.com/zhuzilin/ring-flash-attention, 8996282): P-1 hops
forward; in backward P-1 hops again, and the fp32 gradient of a block travels with it for P hops,
home included. It runs our kernel and merge, so that only the schedule differs.

Shapes: B batch, S rows of this rank, R rows of a block, 2 key and value, H query heads, K kv heads,
D head dim.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention.kernels import Block, Kernel
from cptune.attention.mask import Mask, Pattern
from cptune.attention.merge import Partial
from cptune.attention.shard import Partition
from cptune.attention.slices import Rows, Slice, build_slices
from cptune.attention.traffic import Pass, PassTraffic, Traffic
from cptune.attention.transport import unpack_kv


class _Hop:
    """One block on its way to the next rank while the one before it arrives."""

    def __init__(
        self,
        block_R2BKD: Tensor,
        group: dist.ProcessGroup,
        *,
        counters: tuple[Traffic, PassTraffic],
    ) -> None:
        rank, size = group.rank(), group.size()
        traffic, half = counters
        before, after = traffic.peer((rank - 1) % size), traffic.peer((rank + 1) % size)
        for sent, received in ((after, before), (half, half)):
            sent.sent_bytes += block_R2BKD.nbytes
            received.received_bytes += block_R2BKD.nbytes
        self._held, self._buffer = block_R2BKD, torch.empty_like(block_R2BKD)
        self._works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.irecv, self._buffer, (rank - 1) % size, group),
                dist.P2POp(dist.isend, block_R2BKD, (rank + 1) % size, group),
            ]
        )

    def wait(self) -> Tensor:
        """The block that arrived."""
        for work in self._works:
            work.wait()
        return self._buffer


class RelayRing:
    """Causal attention over the ranks of the whole job; forward, then backward of the same.

    Args:
        partition: Who owns what; every rank the same number of rows.
        kernel: Runs the blocks.
        groups: One for keys and values, one for their gradients, both over all ranks in order.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        kernel: Kernel,
        groups: tuple[dist.ProcessGroup, dist.ProcessGroup],
    ) -> None:
        self._kernel, (self._kv_group, self._dkv_group) = kernel, groups
        rank, size = groups[0].rank(), groups[0].size()
        own = partition.intervals(rank)
        owners = [partition.intervals((rank - hop) % size) for hop in range(size)]
        pattern = partition.pattern or Pattern(mask=Mask.CAUSAL, seq_len=partition.seq_len)
        self._slices = [build_slices(pattern, q_intervals=own, kv_intervals=kv) for kv in owners]
        self.traffic = Traffic()

    def forward(self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> Partial:
        """Attend block after block as they come by."""
        partial = Partial.empty(q_BSHD)
        kv_R2BKD, coming = _pack_kv(k_BSKD, v_BSKD), None
        for hop, slices in enumerate(self._slices):
            if hop + 1 < len(self._slices):
                coming = self._hop(kv_R2BKD, self._kv_group, during=Pass.FORWARD)
            for one in slices:
                out_BSHD, lse_BHS = self._kernel.forward(_block(one, q_BSHD, kv_R2BKD))
                partial.add(Rows(one.q_start, one.q_stop), out_BSHD, lse_BHS)
                del out_BSHD, lse_BHS
            if coming:
                kv_R2BKD, coming = coming.wait(), None
        return partial

    def backward(
        self, dout_BSHD: Tensor, *, inputs: tuple[Tensor, Tensor, Tensor], result: Partial
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Relay the blocks again; a block's gradient follows it one hop behind."""
        q_BSHD, k_BSKD, v_BSKD = inputs
        out_BSHD = result.out.to(q_BSHD.dtype)
        dq_BSHD = torch.zeros_like(q_BSHD, dtype=torch.float32)
        kv_R2BKD, coming = _pack_kv(k_BSKD, v_BSKD), None
        gradient: _Hop | None = None
        for hop, slices in enumerate(self._slices):
            if hop + 1 < len(self._slices):
                coming = self._hop(kv_R2BKD, self._kv_group, during=Pass.BACKWARD)
            mine_R2BKD = torch.zeros_like(kv_R2BKD, dtype=torch.float32)
            dk_BRKD, dv_BRKD = unpack_kv(mine_R2BKD)
            for one in slices:
                queries, keys = slice(one.q_start, one.q_stop), slice(one.kv_start, one.kv_stop)
                dq, dk, dv = self._kernel.backward(
                    _block(one, q_BSHD, kv_R2BKD),
                    dout_BSHD=dout_BSHD[:, queries],
                    out_BSHD=out_BSHD[:, queries],
                    lse_BHS=result.lse[:, :, queries],
                )
                dq_BSHD[:, queries] += dq
                dk_BRKD[:, keys] += dk
                dv_BRKD[:, keys] += dv
                del dq, dk, dv
            if gradient:
                mine_R2BKD += gradient.wait()
            if coming:
                kv_R2BKD, coming = coming.wait(), None
            gradient = self._hop(mine_R2BKD, self._dkv_group, during=Pass.BACKWARD)
        assert gradient is not None, "at least the own block went round"
        dk_BRKD, dv_BRKD = unpack_kv(gradient.wait())
        dtype = q_BSHD.dtype
        return dq_BSHD.to(dtype), dk_BRKD.to(dtype), dv_BRKD.to(dtype)

    def _hop(self, block_R2BKD: Tensor, group: dist.ProcessGroup, *, during: Pass) -> _Hop:
        return _Hop(block_R2BKD, group, counters=(self.traffic, self.traffic.of(during)))


def _pack_kv(k_BSKD: Tensor, v_BSKD: Tensor) -> Tensor:
    """A block as one message: (R, 2, B, K, D)."""
    return torch.stack([k_BSKD.transpose(0, 1), v_BSKD.transpose(0, 1)], dim=1)


def _block(one: Slice, q_BSHD: Tensor, kv_R2BKD: Tensor) -> Block:
    k_BRKD, v_BRKD = unpack_kv(kv_R2BKD[one.kv_start : one.kv_stop])
    scale = q_BSHD.shape[-1] ** -0.5
    q_BSHD = q_BSHD[:, one.q_start : one.q_stop]
    return Block(q_BSHD, k_BRKD, v_BRKD, causal=one.causal, scale=scale, band=one.band)
