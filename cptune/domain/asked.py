"""A layout, or a curve, as a person asks for it on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cptune.domain.candidate import (
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
)
from cptune.domain.launcher import LauncherName


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The layout asked for; None is the first value of the spec's axis.

    Args:
        tp: Tensor-parallel ranks.
        cp: Context-parallel ranks.
        pp: Pipeline stages.
        vpp: Chunks of a stage.
        ep: Ranks that share a layer's experts, inside dp x cp.
        ulysses: Of cp, the ranks that exchange heads.
        micro_batch: Sequences of a pass.
        recompute: What is computed again in backward.
        loss: How the logits are held.
        data_parallel: What data-parallel ranks share out.
        sharding: How the sequence is cut.
        strategy: How keys and values move.
        stages: Exchanges of a ring.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    ulysses: int = 1
    ep: int = 1
    micro_batch: int | None = None
    recompute: Recompute | None = None
    loss: LossKind | None = None
    data_parallel: DataParallelKind | None = None
    sharding: ShardingKind | None = None
    strategy: Strategy | None = None
    stages: int | None = None


_USUAL_NOISE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAsked:
    """Who answers the trials.

    Args:
        address: "local" starts a Ray on this machine; else the address of a Ray cluster.
        launcher: ray runs trials; roofline answers with the prediction, replay from a table.
        table: Of a replay: Parquet or CSV, or a run directory.
        noise: Of answers without hardware: standard deviation of the step, as a share; if omitted
            0.02 of roofline, 0 of replay.
        seed: Of the search, in the place of the spec's.
    """

    address: str = "local"
    launcher: LauncherName = LauncherName.RAY
    table: Path | None = None
    noise: float | None = None
    seed: int | None = None

    @property
    def shown_noise(self) -> float:
        """The noise asked for; of a prediction 2% otherwise, as re-runs have, of a table none."""
        if self.noise is not None:
            return self.noise
        return _USUAL_NOISE if self.launcher is LauncherName.ROOFLINE else 0.0

    def words(self) -> list[str]:
        """The flags that say the same again; those of Ray go without saying."""
        if not self.launcher.is_simulated:
            return []
        table = [] if self.table is None else ["--table", str(self.table)]
        seed = [] if self.seed is None else ["--seed", str(self.seed)]
        noise = ["--noise", f"{self.shown_noise:g}"]
        return ["--launcher", self.launcher.value, *noise, *table, *seed]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveAsked:
    """What to measure, and where it goes besides the run directory.

    Args:
        seq_lens: Lengths, as in 1024,2048; if omitted a quarter, a half and all of the spec's.
        cp: CP degrees, as in 1,2,4; if omitted those of the spec.
        out: Also keep the rows in this Parquet file.
        figure: Draw peaks against lengths into this HTML file.
    """

    seq_lens: str = ""
    cp: str = ""
    out: Path | None = None
    figure: Path | None = None
