"""What a user asks of context parallelism, in words, read into a plan."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from cptune.attention.choices import read_choice
from cptune.attention.mask import Mask, build_pattern
from cptune.attention.plan import Plan
from cptune.attention.shard import Partition, Sharding
from cptune.attention.strategy import Strategy, count_stages, count_ulysses


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The keywords of ContextParallel that make a plan, as they were given."""

    seq_len: int
    cp_size: int
    sharding: str
    mask: str
    docs: Sequence[int] | None
    window: int | None
    strategy: str
    ulysses: int
    stages: int | None
    nodes: Sequence[Hashable] | None

    def build_plan(self) -> Plan:
        """Read every word.

        Raises:
            ValueError: One is not legal; the message names the nearest legal value.
        """
        strategy = Strategy(read_choice(self.strategy, what="strategy", choices=Strategy))
        sharding = Sharding(read_choice(self.sharding, what="sharding", choices=Sharding))
        mask = Mask(read_choice(self.mask, what="mask", choices=Mask))
        degree = count_ulysses(strategy, cp_size=self.cp_size, ulysses=self.ulysses)
        stages = count_stages(strategy, cp_size=self.cp_size // degree, stages=self.stages)
        if self.nodes is not None and len(self.nodes) != self.cp_size:
            raise ValueError(
                f"nodes names {len(self.nodes)} ranks, wanted the {self.cp_size} of the group"
            )
        pattern = build_pattern(mask, seq_len=self.seq_len, docs=self.docs, window=self.window)
        return Plan(
            partition=Partition(
                seq_len=self.seq_len, cp_size=self.cp_size, sharding=sharding, pattern=pattern
            ),
            mask=mask,
            docs=pattern.docs,
            window=self.window,
            stages=stages,
            ulysses=degree,
            nodes=None if self.nodes is None else tuple(self.nodes),
        )
