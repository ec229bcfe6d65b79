"""What the user asked for: the cluster, the axes to search, the objective and the budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cptune.domain.candidate import (
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
)
from cptune.domain.checks import (
    LARGEST_SEED,
    MOST_BYTES,
    MOST_BYTES_PER_S,
    MOST_LAYERS,
    MOST_RANKS,
    MOST_REPEATS,
    require_hops,
    require_range,
    require_share,
)
from cptune.domain.stack import StackSpec
from cptune.domain.timing import CI_SHARE
from cptune.domain.workload import ModelShape, Workload

_LONGEST_S = 1e7  # 115 days; Ray and gloo overflow far beyond
_LONGEST_NAME = 100
#: Why a ring is listed under another name.
ONE_STAGE = "a ring in 1 stage over more than two ranks is an all_gather, and shown as one"
_MOST_ROUNDS = 100


SQLITE = "sqlite"
_JOURNALS = ("journal", "journal file")
#: `[storage] study` for a file in the run directory.
STUDY_WORDS = (SQLITE, *_JOURNALS)


class SamplerName(StrEnum):
    """Who proposes the next candidate.

    `residual-gp` corrects the prediction by a Gaussian process, `gp` learns from trials alone.
    """

    RESIDUAL_GP = "residual-gp"
    TPE = "tpe"
    GP = "gp"
    RANDOM = "random"
    BRUTE_FORCE = "brute-force"


class TraceKind(StrEnum):
    """What is seen of a trial beside its timed steps.

    `step`: transfers and compute windows of the last step of warm-up are written down; `ablation`:
    those of steps after the timed ones, in turns with steps of the same plan without transfers,
    then the transfers without compute.
    """

    OFF = "off"
    STEP = "step"
    ABLATION = "ablation"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The hardware that the recipe is for. None: what the inventory finds.

    `device_memory_bytes` 0 is the device's own; on CPU it is a budget per rank. Where trials run,
    `gpu` is the name of the GPUs found or "cpu", which means CPU processes also where there are
    some; to a plan it may name any. `gpus_per_node`, `network_bytes_per_s` and `topology` describe
    hardware that is not here; where trials run, the inventory decides. `gather_hops` and
    `reduce_hops` are what all-gathers and all-reduces measured on a slow fabric: [ranks, seconds
    that each rank adds], ascending.
    """

    world_size: int | None = None
    gpu: str | None = None
    gpus_per_node: int | None = None
    network_bytes_per_s: float | None = None
    topology: str | None = None
    gather_hops: tuple[tuple[int, float], ...] = ()
    reduce_hops: tuple[tuple[int, float], ...] = ()
    memory_margin: float = 0.08
    device_memory_bytes: int = 0

    def __post_init__(self) -> None:
        require_share(self, "memory_margin")
        require_range(self, 1, MOST_RANKS, "world_size")
        require_range(self, 1, MOST_RANKS, "gpus_per_node")
        require_range(self, 1, MOST_BYTES_PER_S, "network_bytes_per_s")
        require_range(self, 0, MOST_BYTES, "device_memory_bytes")
        require_hops(self, "gather_hops", "reduce_hops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The values to search on each axis; an empty list is everything legal."""

    tp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    vpp: tuple[int, ...] = (1,)
    micro_batch: tuple[int, ...] = ()
    sharding: tuple[ShardingKind, ...] = (ShardingKind.ZIGZAG,)
    strategy: tuple[Strategy, ...] = (Strategy.RING, Strategy.ALL_GATHER)
    stages: tuple[int, ...] = ()
    recompute: tuple[Recompute, ...] = (Recompute.NONE,)
    loss: tuple[LossKind, ...] = (LossKind.FULL,)
    data_parallel: tuple[DataParallelKind, ...] = (DataParallelKind.DDP,)

    def __post_init__(self) -> None:
        require_range(self, 1, MOST_RANKS, "tp", "cp", "pp", "vpp", "micro_batch", "stages")

    def renamed(self) -> list[str]:
        """Why a strategy is tried that the list has not, where one is."""
        listed = {Strategy.RING, Strategy.ALL_GATHER} & {*self.strategy}
        if listed == {Strategy.RING} and 1 in self.stages and max(self.cp, default=MOST_RANKS) > 2:
            return [f"{ONE_STAGE}: axes.stages has 1, and axes.strategy no all_gather"]
        if listed == {Strategy.ALL_GATHER} and 2 in (self.cp or (2,)):
            return ["an all_gather over two ranks is a ring in 1 stage, and shown as one"]
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The user's configuration of today: trial 0. None: the smallest legal layout with CP=1."""

    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        require_range(self, 1, MOST_RANKS, "tp", "cp", "pp", "micro_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a recipe must keep to, after it fits.

    `exposed_comm_share` is of the step; `throughput_slack` is of the best throughput found.
    """

    exposed_comm_share: float = 0.10
    throughput_slack: float = 0.02

    def __post_init__(self) -> None:
        require_share(self, "exposed_comm_share", "throughput_slack")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Who searches, and from which seed."""

    sampler: SamplerName = SamplerName.RESIDUAL_GP
    seed: int = 0

    def __post_init__(self) -> None:
        require_range(self, 0, LARGEST_SEED, "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop, and how long one trial may take.

    At least `warmup_steps` are run and thrown away, two or more where the last is traced; then at
    least `steps` are timed, and more, up to `max_steps` and `timed_s` seconds, until half the 95%
    interval of their median is within `ci_share` of it; `trace` says what else is seen. `trial_s`
    is the deadline of one trial; its ranks are replaced after it. The finalists are measured in
    turns for `finalist_rounds` rounds after the search; `finalist_trace` says what follows the
    steps of the first, unless `trace` is off. A model with more layers than both `depths` is tried
    at these two and extrapolated; its finalists, and what is chosen, run at full depth.
    """

    trials: int = 20
    wall_s: float = 3600.0
    warmup_steps: int = 2
    steps: int = 5
    trial_s: float = 300.0
    trace: TraceKind = TraceKind.STEP
    max_steps: int = 20
    ci_share: float = CI_SHARE
    timed_s: float = 60.0
    finalist_rounds: int = 2
    finalist_trace: TraceKind = TraceKind.ABLATION
    depths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_range(self, 1, MOST_REPEATS, "trials", "steps", "warmup_steps", "max_steps")
        require_range(self, 1e-3, _LONGEST_S, "wall_s", "trial_s", "timed_s")
        require_range(self, 0, _MOST_ROUNDS, "finalist_rounds")
        require_share(self, "ci_share")
        if self.depths and not (len(self.depths) == 2 and 0 < self.depths[0] < self.depths[1]):
            raise ValueError(
                f"depths is {list(self.depths)}; wanted two ascending layer counts, as in [2, 4]"
            )
        require_range(self, 1, MOST_LAYERS, "depths")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where Optuna keeps the study: a word of `STUDY_WORDS` or a SQLAlchemy URL."""

    study: str = SQLITE

    @property
    def is_journal(self) -> bool:
        """Whether it is a journal file in the run directory."""
        return self.study in _JOURNALS

    @property
    def file_name(self) -> str | None:
        """Of the study in the run directory; None where it is elsewhere."""
        if self.is_journal:
            return "study.journal"
        return "study.db" if self.study == SQLITE else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """A whole sweep.toml."""

    name: str
    model: ModelShape
    workload: Workload
    cluster: ClusterSpec = field(default_factory=ClusterSpec)
    stack: StackSpec = field(default_factory=StackSpec)
    axes: Axes = field(default_factory=Axes)
    baseline: Baseline = field(default_factory=Baseline)
    objective: Objective = field(default_factory=Objective)
    search: SearchSettings = field(default_factory=SearchSettings)
    budget: Budget = field(default_factory=Budget)
    storage: Storage = field(default_factory=Storage)

    def __post_init__(self) -> None:
        plain = self.name.replace("-", "").replace("_", "").replace(".", "")
        if not plain.isalnum() or self.name.startswith((".", "-")):
            raise ValueError(
                f"name is {self.name!r}; wanted letters, digits, '-', '_' and '.', "
                "since it names the run directory"
            )
        if len(self.name) > _LONGEST_NAME:
            raise ValueError(
                f"name has {len(self.name)} characters; wanted {_LONGEST_NAME} or fewer, since it "
                "names the run directory"
            )

    def notes(self) -> list[str]:
        """What was given and has no effect, or another than its word says, a line each."""
        return [*self.workload.unused(), *self._unused_depths(), *self.axes.renamed()]

    def _unused_depths(self) -> list[str]:
        depths, layers = self.budget.depths, self.model.layers
        if not depths or layers > depths[-1]:
            return []
        return [
            f"budget.depths {list(depths)} is not used: wanted two counts below the {layers} "
            "layers of the model"
        ]
