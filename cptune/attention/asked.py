"""What a user asks of context parallelism, in words, read into a plan."""

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from operator import index

from cptune.attention.choices import read_choice
from cptune.attention.mask import Mask, build_pattern
from cptune.attention.plan import Plan
from cptune.attention.shard import Partition, Sharding
from cptune.attention.strategy import Strategy, count_stages, count_ulysses

_GIVEN = frozenset({"seq_len", "ulysses"})  # the others may be None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The keywords of ContextParallel that make a plan, as they were given.

    Raises:
        ValueError: A number is not a whole one.
    """

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

    def __post_init__(self) -> None:
        for name in ("seq_len", "window", "ulysses", "stages"):
            value = getattr(self, name)
            if value is not None or name in _GIVEN:
                object.__setattr__(self, name, _whole(value, what=name))
        if self.docs is not None:
            object.__setattr__(self, "docs", _lengths(self.docs))

    def given(self) -> dict[str, object]:
        """Values that ranks can compare: nodes are numbered as they appear."""
        found = asdict(self)
        if self.nodes is not None:
            found["nodes"] = tuple(map(list(dict.fromkeys(self.nodes)).index, self.nodes))
        return found

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


def _lengths(docs: object) -> tuple[int, ...]:
    try:
        given = tuple(docs)  # pyrefly: ignore[bad-argument-type] - which is what it refuses
    except TypeError:
        raise ValueError(f"docs is {docs!r}, wanted the lengths of the documents") from None
    return tuple(_whole(length, what="a length in docs") for length in given)


def _whole(value: object, *, what: str) -> int:
    """An integer of any type; 2.0 is none, since what computed it may come to 2.5."""
    try:
        if not isinstance(value, bool):
            return index(value)  # pyrefly: ignore[bad-argument-type] - which is what it refuses
    except TypeError:
        pass
    raise ValueError(f"{what} is {value!r}, wanted a whole number")
