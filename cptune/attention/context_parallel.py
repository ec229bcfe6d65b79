"""Context-parallel attention for anybody's training loop: shard, attend, unshard.

Shapes: B batch, S rows of this rank (padding included), T all tokens, H query heads, K kv heads,
D head dim.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention.attention import Engine, attend_staged, check_heads
from cptune.attention.choices import read_choice
from cptune.attention.kernels import Kernel, choose_kernel, read_kernel_name
from cptune.attention.mask import Mask
from cptune.attention.plan import Plan, Strategy, count_stages
from cptune.attention.shard import Partition, Sharding
from cptune.attention.traffic import Traffic
from cptune.attention.transport import Transport, split_group


class ContextParallel:
    """One sequence over the ranks of a group.

    All ranks of the group make it together, with the same arguments, and call `attend`, its
    backward and `unshard` together. Make one and keep it: it makes a process group of its own.
    """

    def __init__(  # noqa: PLR0913 - the public contract: each keyword is one axis of a recipe
        self,
        group: dist.ProcessGroup | None,
        *,
        seq_len: int,
        sharding: str = "zigzag",
        mask: str = "causal",
        strategy: str = "ring",
        stages: int | None = None,
        kernel: str = "auto",
        kv_heads: int | None = None,
        head_dim: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Plan the exchange.

        Args:
            group: The ranks that share a sequence. None means one rank, whether or not
                torch.distributed is initialised; it is never the default group.
            seq_len: Tokens of the whole sequence, any number.
            sharding: "contiguous" or "zigzag".
            mask: "full" or "causal".
            strategy: "ring" or "all_gather".
            stages: Exchanges of a pass, 1..P-1: how many peers are fetched at a time. None takes
                the strategy's own number, P-1 for ring and 1 for all_gather.
            kernel: "auto", "cpu_flash" or "math".
            kv_heads: Kv heads of this rank, if `plan.bytes` is wanted before the first attend.
                `attend` then takes no other number. As the next two.
            head_dim: Elements of a head.
            dtype: Element type of queries, keys and values.

        Raises:
            ValueError: An argument is not legal; the message names the nearest legal value.
        """
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ValueError(f"group is {group!r}, wanted a process group of this rank, or None")
        self._group = group
        self._rank = 0 if group is None else group.rank()
        cp_size = 1 if group is None else group.size()
        kernel = read_kernel_name(kernel)
        chosen = Strategy(read_choice(strategy, what="strategy", choices=Strategy))
        plan = self._build_plan(
            Partition(
                seq_len=seq_len,
                cp_size=cp_size,
                sharding=Sharding(read_choice(sharding, what="sharding", choices=Sharding)),
            ),
            mask=Mask(read_choice(mask, what="mask", choices=Mask)),
            stages=count_stages(chosen, cp_size=cp_size, stages=stages),
        )
        itemsize = None if dtype is None else dtype.itemsize
        self._plan = plan.bind(kv_heads=kv_heads, head_dim=head_dim, itemsize=itemsize)
        self._promised = {"kv_heads": kv_heads, "head_dim": head_dim, "dtype": dtype}
        self._schedule = self._plan.schedule(self._rank)
        self._transport = self._build_transport(group)
        self._asked_kernel = self._used_kernel = kernel

    @property
    def plan(self) -> Plan:
        """Everyone's exchanges and blocks; `plan.bytes` for the shapes given, or first attended."""
        return self._plan

    @property
    def partition(self) -> Partition:
        """Who owns which tokens."""
        return self._plan.partition

    @property
    def kernel(self) -> str:
        """The kernel that the last attend ran; before the first, the one asked for."""
        return self._used_kernel

    @property
    def traffic(self) -> Traffic:
        """Live counters of what this rank moved; `traffic.reset()` starts them anew."""
        return self._transport.traffic

    @property
    def local_len(self) -> int:
        """Rows of every rank, padding included."""
        return self.partition.local_len

    @property
    def positions(self) -> Tensor:
        """Global position of each local row, int64 (S,); 0 in padding, where `valid` is False."""
        return self._pad(torch.tensor(self.partition.positions(self._rank), dtype=torch.int64), 0)

    @property
    def valid(self) -> Tensor:
        """True for each local row that is a token, bool (S,)."""
        return self._pad(torch.ones(self._schedule.rows, dtype=torch.bool), 0)

    def shard(self, x: Tensor, dim: int) -> Tensor:
        """Take this rank's tokens of `x`, any dtype, T along `dim`; zeros in padding.

        Raises:
            ValueError: `x` does not have seq_len along `dim`.
        """
        want, seen = self.partition.seq_len, x.shape[dim]
        if seen != want:
            raise ValueError(f"x has {seen} rows along dim {dim}, wanted seq_len = {want}")
        parts = [x.narrow(dim, a, b - a) for a, b in self.partition.intervals(self._rank)]
        return self._pad(torch.cat(parts, dim=dim) if parts else x.narrow(dim, 0, 0), dim)

    def unshard(self, x: Tensor, dim: int) -> Tensor:
        """Collect all ranks' tokens in global order, T along `dim`, on every rank; any dtype.

        Collective. The result is detached: no gradient flows through it.

        Raises:
            ValueError: `x` does not have local_len along `dim`.
        """
        self._check_local_len(x, dim=dim, what="x")
        rows_first = x.detach().movedim(dim, 0).contiguous()
        shards = self._gather(rows_first) if self._group else [rows_first]
        whole = rows_first.new_empty((self.partition.seq_len, *rows_first.shape[1:]))
        for rank, shard in enumerate(shards):
            row = 0
            for start, stop in self.partition.intervals(rank):
                whole[start:stop] = shard[row : row + stop - start]
                row += stop - start
        return whole.movedim(0, dim)

    def attend(
        self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, scale: float | None = None
    ) -> Tensor:
        """Attend over the whole sequence from this rank's queries.

        Collective, and so is its backward. Rows in padding give zero output and zero gradient
        whatever they hold. Differentiable once.

        Args:
            q_BSHD: Queries of the local rows.
            k_BSKD: Keys; H must be a multiple of K, query head h reads kv head h // (H/K).
            v_BSKD: Values.
            scale: Factor on the scores; 1/sqrt(D) where omitted.

        Returns:
            out_BSHD in the dtype of the queries.

        Raises:
            ValueError: Shapes or types do not fit together or to what was promised at the start.
        """
        check_heads(q_BSHD, k_BSKD, v_BSKD)
        for what, x in (("q", q_BSHD), ("k", k_BSKD), ("v", v_BSKD)):
            self._check_local_len(x, dim=1, what=what)
        kv_heads, head_dim, dtype = *k_BSKD.shape[2:], k_BSKD.dtype
        self._check_promise(kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
        kernel = self._choose_kernel(q_BSHD, k_BSKD)
        self._used_kernel = kernel.name
        self._plan = self._plan.bind(kv_heads=kv_heads, head_dim=head_dim, itemsize=dtype.itemsize)
        engine = Engine(
            schedule=self._schedule,
            transport=self._transport,
            kernel=kernel,
            scale=head_dim**-0.5 if scale is None else scale,
        )
        return attend_staged(q_BSHD, k_BSKD, v_BSKD, engine=engine)

    # The parts. A subclass may put another plan, transport or kernel in their place.

    def _build_plan(self, partition: Partition, *, mask: Mask, stages: int) -> Plan:
        return Plan(partition=partition, mask=mask, stages=stages)

    def _build_transport(self, group: dist.ProcessGroup | None) -> Transport:
        if group is None or group.size() == 1:
            return Transport()
        return Transport(group, split_group(group))

    def _choose_kernel(self, q_BSHD: Tensor, k_BSKD: Tensor) -> Kernel:
        return choose_kernel(
            self._asked_kernel,
            device_type=q_BSHD.device.type,
            dtype=q_BSHD.dtype,
            grouped=q_BSHD.shape[2] != k_BSKD.shape[2],
        )

    def _gather(self, rows_first: Tensor) -> list[Tensor]:
        # As bytes: backends do not carry every dtype.
        mine = rows_first.view(-1).view(torch.uint8)
        shards = [torch.empty_like(mine) for _ in range(self.partition.cp_size)]
        dist.all_gather(shards, mine, group=self._group)
        return [shard.view(rows_first.dtype).view(rows_first.shape) for shard in shards]

    def _pad(self, x: Tensor, dim: int) -> Tensor:
        shape = list(x.shape)
        shape[dim] = self.local_len - shape[dim]
        return torch.cat([x, x.new_zeros(shape)], dim=dim) if shape[dim] else x

    def _check_local_len(self, x: Tensor, *, dim: int, what: str) -> None:
        if x.shape[dim] != self.local_len:
            raise ValueError(
                f"{what} has {x.shape[dim]} rows along dim {dim}, wanted local_len = "
                f"{self.local_len} (shard(x, dim) gives that many)"
            )

    def _check_promise(self, **seen: object) -> None:
        for name, value in seen.items():
            promised = self._promised[name]
            if promised is not None and promised != value:
                raise ValueError(
                    f"{name} is {value} in attend, wanted the {promised} given to ContextParallel"
                )
