"""Context-parallel attention for anybody's training loop: shard, attend, unshard.

Shapes: B batch, S rows of this rank (padding included), T all tokens, H query heads, K kv heads,
D head dim.
"""

from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention.agreement import Agreement, Given
from cptune.attention.asked import Asked
from cptune.attention.attention import Attention, Staged, attend_staged, outside_of_graphs
from cptune.attention.call import read_call
from cptune.attention.kernels import AUTO, Kernel, choose_kernel, read_kernel_name
from cptune.attention.plan import Plan
from cptune.attention.rounding import default_rounding, read_rounding
from cptune.attention.shard import Partition
from cptune.attention.staged import Engine
from cptune.attention.tokens import Tokens
from cptune.attention.traffic import Traffic
from cptune.attention.transport import Transport
from cptune.attention.ulysses import HeadParallel, build_trade
from cptune.attention.wire import gather_objects, open_wires


class ContextParallel:
    """One sequence over the ranks of a group.

    All ranks of the group make it together, with the same arguments (which they compare), and call
    `attend`, its backward and `unshard` together. Keep it: it makes a process group of its own.
    """

    def __init__(  # noqa: PLR0913 - the public contract: each keyword is one axis of a recipe
        self,
        group: dist.ProcessGroup | None,
        *,
        seq_len: int,
        sharding: str = "zigzag",
        mask: str = "causal",
        docs: Sequence[int] | None = None,
        window: int | None = None,
        strategy: str = "ring",
        ulysses: int = 1,
        stages: int | None = None,
        kernel: str = "auto",
        nodes: Sequence[Hashable] | None = None,
        dkv_wire: str | None = None,
        heads: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Plan the exchange.

        Args:
            group: The ranks that share a sequence. None means one rank, whether or not
                torch.distributed is initialised; it is never the default group.
            seq_len: Tokens of the whole sequence, any number.
            sharding: "contiguous", "zigzag" or "balanced" (by the area of the mask).
            mask: "full", "causal" or "document": causal inside each document.
            docs: Tokens of each document, in order; they add up to seq_len, and may be 0.
            window: Tokens to the left that a query sees beside itself, under causal or document.
            strategy: "ring", "all_gather", "ulysses" or "hybrid".
            ulysses: Ranks that trade heads, under hybrid; it divides P.
            stages: Exchanges of a pass, 1..R-1 of the R = P/ulysses ranks of a ring: how many
                peers are fetched at a time. None takes the strategy's own number, R-1, or 1 for
                all_gather.
            kernel: "auto", or the name of one.
            nodes: Node of each rank of the group: what several ranks of a node need crosses a
                boundary once.
            dkv_wire: "scaled_fp16", "bf16" or "fp32": gradients of keys and values on the wire,
                each rounded once and summed in fp32 or better. "scaled_fp16" is fp16 under a power
                of two for each message. None is that for bf16 and fp16, else the inputs' type.
            heads: Query heads of this rank, if `plan.bytes` is wanted before the first attend.
                `attend` then takes no other number. As the next three.
            kv_heads: Kv heads of this rank.
            head_dim: Elements of a head.
            dtype: Element type of queries, keys and values.

        Raises:
            ValueError: An argument is not legal; the message names the nearest legal value. Or they
                differ between ranks: then all of them raise.
        """
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ValueError(f"group is {group!r}, wanted a process group of this rank, or None")
        self._group = group
        self._rank, size = (0, 1) if group is None else (group.rank(), group.size())
        promised = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "dtype": dtype}
        self._promised, self._rounding = promised, None
        self._asked_kernel = self._used_kernel = kernel

        def read() -> tuple[Asked, Given]:
            read_kernel_name(kernel)
            self._rounding = read_rounding(dkv_wire)
            asked = Asked(
                seq_len=seq_len,
                cp_size=size,
                sharding=sharding,
                mask=mask,
                docs=docs,
                window=window,
                strategy=strategy,
                ulysses=ulysses,
                stages=stages,
                nodes=nodes,
            )
            self._lay_out(asked)
            said = {"kernel": kernel, "dkv_wire": dkv_wire, **promised, "dtype": f"{dtype}"}
            return asked, asked.given() | said

        self._agreement = Agreement(self._gather, size=size)
        self._asked = self._agreement.settle(read)
        self._transport = self._build_transport(group)

    def with_docs(self, docs: Sequence[int]) -> "ContextParallel":
        """The same exchange over another pack of documents: its own plan, the same wires.

        No rendezvous, no new group, and nothing is asked of other ranks; `traffic` is shared.
        `local_len` may differ under balanced sharding.

        Args:
            docs: Tokens of each document, in order, the same on all ranks of the group.

        Raises:
            ValueError: The mask is not document, or they do not add up to seq_len.
        """
        other = copy(self)
        other._asked = replace(self._asked, docs=docs)
        other._lay_out(other._asked)
        return other

    def __deepcopy__(self, memo: object) -> "ContextParallel":
        """On the same wires, as with_docs: a copy of a module that holds it."""
        return copy(self)

    @property
    def plan(self) -> Plan:
        """Everyone's exchanges and blocks; `plan.bytes` for the shapes given, or first attended."""
        return self._plan

    @property
    def partition(self) -> Partition:
        """Who owns which tokens."""
        return self._plan.partition

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The ranks that share a sequence; None is one rank."""
        return self._group

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
        """Position of each local row in its document, int64 (S,); 0 in padding."""
        return self._tokens.positions

    @property
    def valid(self) -> Tensor:
        """True for each local row that is a token, bool (S,)."""
        return self._tokens.valid

    def shard(self, x: Tensor, dim: int) -> Tensor:
        """Take this rank's tokens of `x`, any dtype, T along `dim`; zeros in padding.

        Raises:
            ValueError: `x` does not have seq_len along `dim`.
        """
        return self._tokens.shard(x, dim)

    def unshard(self, x: Tensor, dim: int) -> Tensor:
        """Collect all ranks' tokens in global order, T along `dim`, on every rank; any dtype.

        Collective. The result is detached: no gradient flows through it.

        Raises:
            ValueError: `x` does not have local_len along `dim`.
        """
        return self._tokens.unshard(x, dim)

    @outside_of_graphs
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
            ValueError: Shapes or types do not fit together or to what was promised at the start, or
                the scale is not above 0.
        """
        first = not self._agreement.attended
        attention = self._agreement.settle_once(lambda: self._read(q_BSHD, k_BSKD, v_BSKD, scale))
        if first:
            self._transport.open(q_BSHD.device)
        return attend_staged(q_BSHD, k_BSKD, v_BSKD, attention=attention)

    def _read(
        self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, scale: float | None
    ) -> tuple[Attention, Given]:
        """What this rank attends with, and what must be the same on all."""
        call = read_call(q_BSHD, k_BSKD, v_BSKD, scale=scale)
        for what, x in (("q", q_BSHD), ("k", k_BSKD), ("v", v_BSKD)):
            self._tokens.check_local_len(x, dim=1, what=what)
        call.check_promise(self._promised)
        kernel = self._choose_kernel(q_BSHD, k_BSKD)
        attention = self._build_attention(
            q_BSHD, kv_heads=call.kv_heads, kernel=kernel, scale=call.scale
        )
        self._used_kernel = kernel.name
        self._plan = self._plan.bind(**call.sizes(), kernel=kernel.name)
        return attention, call.given() | self._asked.given()  # ranks may take another instance

    def _lay_out(self, asked: Asked) -> None:
        dtype = self._promised["dtype"]
        plan = self._build_plan(asked)
        self._plan = plan.bind(
            heads=self._promised["heads"],
            kv_heads=self._promised["kv_heads"],
            head_dim=self._promised["head_dim"],
            itemsize=None if dtype is None else dtype.itemsize,
            dkv_itemsize=self._rounding.dtype.itemsize if self._rounding else None,
            kernel=None if self._asked_kernel == AUTO else self._asked_kernel,
        )
        self._schedule = self._plan.schedule(self._rank)
        self._tokens = Tokens(plan.partition, plan.pattern, rank=self._rank, group=self._group)

    # The parts. A subclass may put another plan, transport or kernel in their place.

    def _gather(self, mine: object) -> Sequence[object]:
        return [mine] if self._group is None else gather_objects(self._group, mine)

    def _build_plan(self, asked: Asked) -> Plan:
        return asked.build_plan()

    def _build_transport(self, group: dist.ProcessGroup | None) -> Transport:
        if group is None or group.size() == 1:
            return Transport()
        return Transport(*open_wires(group))

    def _choose_kernel(self, q_BSHD: Tensor, k_BSKD: Tensor) -> Kernel:
        return choose_kernel(
            self._asked_kernel,
            device_type=q_BSHD.device.type,
            dtype=q_BSHD.dtype,
            grouped=q_BSHD.shape[2] != k_BSKD.shape[2],
            head_dim=q_BSHD.shape[3],
        )

    def _build_attention(
        self, q_BSHD: Tensor, *, kv_heads: int, kernel: Kernel, scale: float
    ) -> Attention:
        ring_rank, place = self._plan.seat(self._rank)
        shares = self._plan.shares(heads=q_BSHD.shape[2], kv_heads=kv_heads)
        engine = Engine(
            schedule=self._schedule,
            transport=self._transport.among(self._plan.peers(self._rank)),
            kernel=kernel,
            scale=scale,
            rounding=self._rounding or default_rounding(q_BSHD.dtype),
            spread=shares[place].spread,
        )
        if self._plan.ulysses == 1:
            return Staged(engine)
        peers = self._plan.groups()[ring_rank]
        trade = build_trade(
            self.partition, peers=peers, place=place, shares=shares, transport=self._transport
        )
        return HeadParallel(engine=engine, trade=trade)
