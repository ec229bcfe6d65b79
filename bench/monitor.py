"""What counting every tensor costs a training step: the quickstart decoder, watched and not.

Trials are timed under `cptune.bench.memory.TensorBudget`, so its cost is in every step they report.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time

import torch
import torch.distributed as dist

from bench.ranks import run_on_ranks
from bench.record import Claim, Report, Table, at_most
from cptune.attention import ContextParallel
from cptune.bench.batch import load_sample
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import build_mesh
from cptune.bench.step import TrainStep
from cptune.domain.candidate import Candidate
from cptune.domain.layout import ParallelLayout
from cptune.domain.study import SweepSpec
from cptune.spec import load_quickstart

MOST = 1.5  # times a bare step; wide, since caches are shared with others
REPEATS = 7
LAYOUTS = {"one rank": ParallelLayout(), "cp=2": ParallelLayout(cp=2), "tp=2": ParallelLayout(tp=2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps of one rank: seconds on the clock, and seconds that its process had a core."""

    wall_s: list[float]
    busy_s: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Steps of one rank, watched and bare in turn; and what watching saw of one step."""

    watched: Steps
    bare: Steps
    peak_bytes: int


def run() -> Report:
    """Measure each layout."""
    spec = load_quickstart()
    rows: list[list[str]] = []
    claims: list[Claim] = []
    for name, layout in LAYOUTS.items():
        seen = run_on_ranks(step_in_turn, world=layout.world_size, spec=spec, layout=layout)
        row, ratio = _summarise(seen)
        rows.append([name, *row])
        claims.append(at_most(f"watched / bare busy seconds of a step, {name}", ratio, MOST))
    columns = [
        *("layout", "bare, wall ms", "watched, wall ms", "bare, busy ms", "watched, busy ms"),
        *("ratio, wall", "ratio, busy", "peak, MiB"),
    ]
    sizes = f"{spec.model.preset} decoder, {spec.workload.seq_len} tokens, one sequence a step"
    notes = [
        f"{sizes}, fp32, one thread a rank; {REPEATS} pairs of steps after one pair to warm up.",
        "wall: the slowest rank's. busy: seconds that the busiest rank's process had a core, which "
        "hardly depend on what else runs. Ratios are medians over pairs of watched / bare.",
    ]
    table = Table(title="One training step", columns=columns, rows=rows)
    return Report(notes=notes, tables=[table], claims=claims)


def _summarise(seen: list[Pairs]) -> tuple[list[str], float]:
    """The cells of a layout, and the ratio of busy seconds."""
    wall = [
        _worst([rank.bare.wall_s for rank in seen]),
        _worst([rank.watched.wall_s for rank in seen]),
    ]
    busy = [
        _worst([rank.bare.busy_s for rank in seen]),
        _worst([rank.watched.busy_s for rank in seen]),
    ]
    ratios = [
        median(watched / bare for bare, watched in zip(*pairs, strict=True))
        for pairs in (wall, busy)
    ]
    row = [
        *(f"{1e3 * median(one):.0f}" for one in (*wall, *busy)),
        *(f"{ratio:.3f}" for ratio in ratios),
        f"{max(rank.peak_bytes for rank in seen) / 2**20:.1f}",
    ]
    return row, ratios[1]


def _worst(of_ranks: list[list[float]]) -> list[float]:
    return [max(step) for step in zip(*of_ranks, strict=True)]


def step_in_turn(spec: SweepSpec, layout: ParallelLayout) -> Pairs:
    """Train on the same sequence, one step watched and one bare; collective over the layout."""
    mesh = build_mesh(layout)
    cp = ContextParallel(mesh.cp, seq_len=spec.workload.seq_len)
    memory = TensorBudget(1 << 40)
    with memory:
        step = TrainStep(
            Candidate(layout=layout),
            shape=spec.model,
            mesh=mesh,
            cp=cp,
            memory=memory,
            seed=0,
            dtype=torch.float32,
            micro_batches=1,
        )
    sample = load_sample(0, step=0, seed=0, workload=spec.workload, vocab=spec.model.vocab)
    seen = {kind: Steps(wall_s=[], busy_s=[]) for kind in ("watched", "bare")}
    for repeat in range(1 + REPEATS):
        # The second of a pair finds warmer caches: each is the first in turn.
        for kind in ("watched", "bare") if repeat % 2 else ("bare", "watched"):
            dist.barrier()
            with memory if kind == "watched" else nullcontext():
                wall_s, busy_s = perf_counter(), process_time()
                step.run([sample])
            if repeat:
                seen[kind].wall_s.append(perf_counter() - wall_s)
                seen[kind].busy_s.append(process_time() - busy_s)
    peak_bytes = max(memory.peak_bytes.values())
    return Pairs(watched=seen["watched"], bare=seen["bare"], peak_bytes=peak_bytes)
