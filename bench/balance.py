"""Balance: what simulation costs, the published spread, the 1/CP law, and kernels against both."""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time

import numpy as np

from bench.record import Claim, Report, Table, at_most
from cptune.balance.asked import Packing
from cptune.balance.batches import RANKS, Compared, compare, sample_batches
from cptune.balance.distributions import read_distribution
from cptune.balance.histogram import Histogram
from cptune.balance.processes import measure
from cptune.balance.simulate import Setting, Simulation
from cptune.balance.spread import Spread, fit_exponent
from cptune.balance.theory import predict_spread
from cptune.balance.work import Work, published_token_keys

WORLD = 512
STEPS = 100
REPETITIONS = 100
DOCUMENTS = 1_000_000
MOST_S = 10.0
LEAST_CORRELATION = 0.95
# max/min by CP of a derived simulation over the same published lengths and kernel times
PUBLISHED = {
    ("prolong", 8192, 8192): {1: 3.3, 2: 2.7, 4: 2.1, 8: 1.7, 16: 1.4, 32: 1.2},
    ("wlb-llm", 8192, 8192): {1: 2.9, 2: 2.1, 4: 1.6, 8: 1.4, 16: 1.2, 32: 1.1},
    ("wlb-llm", None, 32768): {1: 7.7, 2: 14, 4: 21, 8: 13, 16: 8.8, 32: 5.8},
    ("prolong", None, 32768): {1: 9.5, 2: 16, 4: 28, 8: 21, 16: 16, 32: 7.6},
}


def run() -> Report:
    """Run everything; about a minute on one core."""
    cost_s = simulation_cost_s()
    spread_rows, spread_claims = published_spreads()
    law_rows, law_claims = law_exponents()
    compared = measured_groups()
    return Report(
        notes=[
            f"{WORLD} GPUs, sequential packing, every document split evenly over its group",
            "work of a document: its causal pairs and, for each token, "
            f"{published_token_keys():.0f} keys: FlashAttention-2 on H100, published",
        ],
        tables=[
            Table(
                title="Spread of attention time: cv (max/min)",
                columns=(
                    "documents",
                    "cut at",
                    "tokens/GPU",
                    "CP",
                    "simulated",
                    "theory",
                    "published",
                ),
                rows=spread_rows,
            ),
            Table(
                title="Exponent of variance against CP, 1 to 16",
                columns=("documents", "cut at", "tokens/GPU", "simulated", "theory"),
                rows=law_rows,
            ),
            Table(
                title="CPU kernels in four processes",
                columns=("CP", "cv measured", "cv of single documents", "correlation"),
                rows=[_compared_cells(one) for one in compared],
            ),
        ],
        claims=[
            at_most(
                f"seconds of one core: {DOCUMENTS:,} lengths, CP 1 to 64, {REPETITIONS} times",
                cost_s,
                MOST_S,
            ),
            *spread_claims,
            *law_claims,
            *(
                _between(f"correlation at CP={one.cp}", one.correlation, LEAST_CORRELATION, 1.0)
                for one in compared
            ),
        ],
    )


def simulation_cost_s() -> float:
    """Process seconds of the largest simulation that is promised to be quick."""
    setting = Setting(world=WORLD, tokens_per_gpu=8192, cps=(1, 2, 4, 8, 16, 32, 64), work=_work())
    lengths = read_distribution("prolong")
    rng = np.random.default_rng(0)
    simulation = Simulation(setting, Packing.SEQUENTIAL)
    begin = process_time()
    for _ in range(REPETITIONS):
        simulation.feed(lengths.draw(DOCUMENTS, rng))
    return process_time() - begin


def published_spreads() -> tuple[list[Sequence[str]], list[Claim]]:
    """The published table again, with theory beside it."""
    rows: list[Sequence[str]] = []
    claims: list[Claim] = []
    for (name, cut, tokens), published in PUBLISHED.items():
        simulated, theory = spreads(name, cut=cut, tokens_per_gpu=tokens, cps=tuple(published))
        rows += [
            (
                name,
                str(cut or "-"),
                str(tokens),
                str(cp),
                _cell(simulated[cp]),
                _cell(theory[cp]),
                f"({seen})",
            )
            for cp, seen in published.items()
        ]
        if cut is None:
            rise = simulated[2].variance / simulated[1].variance
            claims.append(_between(f"{name} uncut: variance at CP=2 over CP=1", rise, 1.2, 9.0))
        else:
            claims += [
                _between(
                    f"{name} cut at {cut}: max/min at CP={cp}",
                    simulated[cp].max_over_min,
                    published[cp] * 0.85,
                    published[cp] * 1.15,
                )
                for cp in (1, 8)
            ]
    return rows, claims


def law_exponents() -> tuple[list[Sequence[str]], list[Claim]]:
    """How variance falls while documents are short, and when they fill a GPU."""
    rows: list[Sequence[str]] = []
    claims: list[Claim] = []
    for name in ("prolong", "wlb-llm"):
        for cut in (2048, 8192):
            by_source = spreads(name, cut=cut, tokens_per_gpu=8192, cps=(1, 2, 4, 8, 16))
            simulated, theory = (
                fit_exponent(list(one), [spread.variance for spread in one.values()])
                for one in by_source
            )
            rows.append((name, str(cut), "8192", f"{simulated:.3f}", f"{theory:.3f}"))
            if cut == 2048:
                claims.append(_between(f"{name} cut at {cut}: exponent", simulated, -1.1, -0.9))
    return rows, claims


def measured_groups() -> list[Compared]:
    """Groups timed on kernels, beside the times of their documents alone."""
    lengths = Histogram()
    lengths.add(read_distribution("prolong(max=8192)").table)
    setting = Setting(world=WORLD, tokens_per_gpu=8192, cps=(1, 2, 4))
    batches = sample_batches(lengths, setting=setting, seed=0)
    return compare(batches, measure(batches, ranks=RANKS))


def spreads(
    name: str, *, cut: int | None, tokens_per_gpu: int, cps: tuple[int, ...]
) -> tuple[dict[int, Spread], dict[int, Spread]]:
    """By CP: simulated, and by theory."""
    setting = Setting(world=WORLD, tokens_per_gpu=tokens_per_gpu, cps=cps, work=_work())
    simulation, seen = Simulation(setting, Packing.SEQUENTIAL), Histogram()
    drawn = read_distribution(name if cut is None else f"{name}(max={cut})")
    for documents in drawn.chunks(STEPS * setting.step_tokens, seed=0):
        simulation.feed(documents)
        seen.add(documents)
    theory = {cp: predict_spread(seen, setting=setting, cp=cp) for cp in cps}
    return {cp: meter.spread() for cp, meter in simulation.meters.items()}, theory


def _work() -> Work:
    return Work(token_keys=published_token_keys())


def _cell(spread: Spread) -> str:
    return f"{spread.cv:.2f} ({spread.max_over_min:.1f})"


def _compared_cells(one: Compared) -> Sequence[str]:
    return (
        str(one.cp),
        f"{one.measured.cv:.3f}",
        f"{one.counted.cv:.3f}",
        f"{one.correlation:.3f}",
    )


def _between(what: str, seen: float, low: float, high: float) -> Claim:
    wanted = f"{low:.4g} to {high:.4g}"
    return Claim(what=what, seen=seen, wanted=wanted, holds=low <= seen <= high)
