"""Two depths against full depth: real trials of 2, 4 and 8 layers on two CPU ranks of a local Ray.

A sweep over a deep model with `[budget] depths` reports what this extrapolates, so it must come out
where full depth comes out.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from bench.record import Claim, Report, Table, at_most
from cptune.cluster.connection import LOCAL
from cptune.cluster.ray_launcher import RayLauncher
from cptune.cluster.session import joined_cluster, ready_for_trials
from cptune.domain.candidate import Candidate, Recompute
from cptune.domain.layout import ParallelLayout
from cptune.domain.outcome import Failure, Measurement
from cptune.domain.study import SweepSpec
from cptune.seams import Launcher
from cptune.search.depths import TwoDepthLauncher
from cptune.search.prepare import resolve
from cptune.spec import load_quickstart

RANKS = 2
LAYERS, DEPTHS = 8, (2, 4)
ROUNDS = 3
MOST_TIME, MOST_MEMORY = 0.05, 0.03
AMPLE_BYTES = 1 << 32
CANDIDATES = {
    "cp=2": Candidate(layout=ParallelLayout(cp=2), stages=1),
    "dp=2, full recompute": Candidate(
        layout=ParallelLayout(dp=2), recompute=Recompute.FULL
    ).canonical(),
}


def run() -> Report:
    """Measure each layout at both depths and in full, round by round."""
    spec = _spec()
    seen: dict[str, list[tuple[Measurement, Measurement]]] = {name: [] for name in CANDIDATES}
    with joined_cluster(LOCAL, ranks=RANKS) as (nodes, topology):
        spec = resolve(spec, topology)
        with ready_for_trials(spec, nodes=nodes, topology=topology) as ready:
            two = TwoDepthLauncher(ready.launcher, launcher_of=ready.launcher.on, spec=spec)
            for _ in range(ROUNDS):
                for name, candidate in CANDIDATES.items():
                    pair = _measure(two, candidate), _measure(ready.launcher, candidate)
                    seen[name].append(pair)
    rows, claims = [], list[Claim]()
    for name, pairs in seen.items():
        row, off_time, off_memory = _summarise(pairs)
        rows.append([name, *row])
        claims += [
            at_most(f"extrapolated / measured step - 1, {name}", off_time, MOST_TIME),
            at_most(f"extrapolated / measured peak - 1, {name}", off_memory, MOST_MEMORY),
        ]
    columns = [
        *("layout", "step, extrapolated ms", "band ms", "measured ms", "off"),
        *("peak, extrapolated MiB", "measured MiB", "off"),
    ]
    notes = [
        f"{spec.model.preset} decoder of {LAYERS} layers from {DEPTHS[0]} and {DEPTHS[1]}, "
        f"{spec.workload.seq_len} tokens, {RANKS} CPU ranks, {spec.budget.steps} steps a trial.",
        f"{ROUNDS} rounds, in each both depths and then full depth, one after the other; figures "
        "are medians over rounds, `off` the median over rounds of the distance within one round.",
    ]
    table = Table(title="Two depths against full depth", columns=columns, rows=rows)
    return Report(notes=notes, tables=[table], claims=claims)


def _spec() -> SweepSpec:
    quick = load_quickstart("depths")
    return replace(
        quick,
        model=replace(quick.model, layers=LAYERS),
        workload=replace(quick.workload, global_batch_seqs=2),
        cluster=replace(
            quick.cluster, gpu="cpu", world_size=RANKS, device_memory_bytes=AMPLE_BYTES
        ),
        axes=replace(quick.axes, tp=(1,), cp=(1, 2)),
        budget=replace(quick.budget, depths=DEPTHS, steps=7),
    )


def _measure(launcher: Launcher | RayLauncher, candidate: Candidate) -> Measurement:
    outcome = launcher.launch(candidate, launcher.place(candidate))
    if isinstance(outcome, Failure):
        raise RuntimeError(f"{candidate.describe()}: {outcome.message}")
    return outcome


def _summarise(
    pairs: list[tuple[Measurement, Measurement]],
) -> tuple[list[str], float, float]:
    """The cells of a layout, and how far time and memory are off."""
    time = [abs(drawn.step_s / full.step_s - 1) for drawn, full in pairs]
    memory = [
        abs(drawn.peak_allocated_bytes / full.peak_allocated_bytes - 1) for drawn, full in pairs
    ]
    bands = [one.depth for one, _ in pairs if one.depth is not None]
    row = [
        f"{1e3 * median(drawn.step_s for drawn, _ in pairs):.0f}",
        f"{1e3 * median(one.step_lo_s for one in bands):.0f} to "
        f"{1e3 * median(one.step_hi_s for one in bands):.0f}",
        f"{1e3 * median(full.step_s for _, full in pairs):.0f}",
        f"{median(time):.1%}",
        f"{median(drawn.peak_allocated_bytes for drawn, _ in pairs) / 2**20:.2f}",
        f"{median(full.peak_allocated_bytes for _, full in pairs) / 2**20:.2f}",
        f"{median(memory):.2%}",
    ]
    return row, median(time), median(memory)
