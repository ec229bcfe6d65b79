"""One rank's tokens: taken out of a sequence, put back together, and where they stand.

Shapes: S rows of this rank (padding included), T all tokens.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention.mask import Pattern
from cptune.attention.shard import Partition


@dataclass(frozen=True, slots=True)
class Tokens:
    """The cut of any tensor with a sequence dim; `group` is collective in unshard alone."""

    partition: Partition
    pattern: Pattern
    rank: int
    group: dist.ProcessGroup | None

    @property
    def positions(self) -> Tensor:
        """Position of each local row in its document, int64 (S,); 0 in padding."""
        found = [
            position
            for interval in self.partition.intervals(self.rank)
            for position in self.pattern.positions(interval)
        ]
        return self._pad(torch.tensor(found, dtype=torch.int64), 0)

    @property
    def valid(self) -> Tensor:
        """True for each local row that is a token, bool (S,)."""
        return self._pad(torch.ones(self.partition.real_len(self.rank), dtype=torch.bool), 0)

    def shard(self, x: Tensor, dim: int) -> Tensor:
        """Take this rank's tokens, T along `dim`; zeros in padding.

        Raises:
            ValueError: `x` does not have seq_len along `dim`.
        """
        _check_dim(x, dim)
        want, seen = self.partition.seq_len, x.shape[dim]
        if seen != want:
            raise ValueError(f"x has {seen} rows along dim {dim}, wanted seq_len = {want}")
        parts = [x.narrow(dim, a, b - a) for a, b in self.partition.intervals(self.rank)]
        return self._pad(torch.cat(parts, dim=dim) if parts else x.narrow(dim, 0, 0), dim)

    def unshard(self, x: Tensor, dim: int) -> Tensor:
        """Collect all ranks' tokens in global order, detached; collective.

        Raises:
            ValueError: `x` does not have local_len along `dim`.
        """
        self.check_local_len(x, dim=dim, what="x")
        rows_first = x.detach().movedim(dim, 0).contiguous()
        shards = self._gather(rows_first) if self.group else [rows_first]
        whole = rows_first.new_empty((self.partition.seq_len, *rows_first.shape[1:]))
        for rank, shard in enumerate(shards):
            row = 0
            for start, stop in self.partition.intervals(rank):
                whole[start:stop] = shard[row : row + stop - start]
                row += stop - start
        return whole.movedim(0, dim)

    def check_local_len(self, x: Tensor, *, dim: int, what: str) -> None:
        """Refuse a tensor that is not a shard.

        Raises:
            ValueError: `x` does not have local_len along `dim`.
        """
        _check_dim(x, dim)
        want = self.partition.local_len
        if x.shape[dim] != want:
            raise ValueError(
                f"{what} has {x.shape[dim]} rows along dim {dim}, wanted local_len = "
                f"{want} (shard(x, dim) gives that many)"
            )

    def _gather(self, rows_first: Tensor) -> list[Tensor]:
        # As bytes: backends do not carry every dtype.
        mine = rows_first.view(-1).view(torch.uint8)
        shards = [torch.empty_like(mine) for _ in range(self.partition.cp_size)]
        dist.all_gather(shards, mine, group=self.group)
        return [shard.view(rows_first.dtype).view(rows_first.shape) for shard in shards]

    def _pad(self, x: Tensor, dim: int) -> Tensor:
        shape = list(x.shape)
        shape[dim] = self.partition.local_len - shape[dim]
        return torch.cat([x, x.new_zeros(shape)], dim=dim) if shape[dim] else x


def _check_dim(x: Tensor, dim: int) -> None:
    if not isinstance(x, Tensor):
        raise ValueError(f"x is a {type(x).__name__}, wanted a tensor")
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"dim is {dim}, wanted one of the {x.ndim} of x: {-x.ndim}..{x.ndim - 1}")
