"""The whole question in one pass over the documents: theory, simulation, measurement, advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from cptune.balance.advice import (
    Advice,
    advise,
    attention_share,
    batches_by_cp,
    keys_per_token,
)
from cptune.balance.asked import Packing, Split
from cptune.balance.batches import RANKS, Batches, Compared, Timed, compare, sample_batches
from cptune.balance.effort import DRAWN_STEPS, check_drawn, in_blocks
from cptune.balance.histogram import Histogram
from cptune.balance.layers import works_by_kind
from cptune.balance.simulate import Setting, Simulation
from cptune.balance.spread import Layers, Source, Spread, SpreadRow, build_row
from cptune.balance.theory import describe_regime, predict_spread
from cptune.balance.work import Tokens, Work
from cptune.domain.workload import ModelShape

_PACKED_STEPS = (10, 2000)  # of a packing that looks at every document by itself
_PACKED_TOKENS = 2_000_000  # at least


class Measurer(Protocol):
    """Runs `time_batches` on every rank."""

    def __call__(self, batches: Batches, *, ranks: int) -> Sequence[Timed]:
        """What each rank timed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What came out."""

    lengths: Histogram
    rows: tuple[SpreadRow, ...]
    advice: Advice
    compared: tuple[Compared, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """The lengths and the rows."""
        lengths = {
            "count": self.lengths.count,
            "mean_tokens": self.lengths.mean_tokens,
            "max_tokens": self.lengths.max_tokens,
        }
        return {"lengths": lengths, "rows": [row_fields(row) for row in self.rows]}


def row_fields(row: SpreadRow) -> dict[str, object]:
    """A row as plain values, in the order of its fields."""
    return {name: getattr(row, name) for name in SpreadRow.__dataclass_fields__} | {
        "source": row.source.value,
        "layers": row.layers.value,
    }


def run_study(
    stream: Iterable[Tokens],
    *,
    setting: Setting,
    packing: Packing = Packing.SEQUENTIAL,
    seed: int = 0,
    measurer: Measurer | None = None,
    model: ModelShape | None = None,
) -> Study:
    """Take one pass over a stream of documents.

    Args:
        stream: Blocks of lengths.
        setting: The hardware and the batch; CP=1 is added, against which the others are held. The
            kinds of layer that its work is made of have rows of their own; packing and advice go by
            the whole.
        packing: Which documents share a row, beside `sequential`.
        seed: Of whatever is drawn.
        measurer: Times kernels as well.
        model: Weighs attention against the rest of its step; without, attention alone counts.

    Raises:
        SpecError: when the documents and the batch are more than can be counted out.
        ClusterError: when a measuring process fails.
    """
    asked = setting.cps
    setting = replace(setting, cps=tuple(sorted({1, *asked})))
    lengths = Histogram()
    other = Packing.QUADRATIC if packing is Packing.SEQUENTIAL else packing
    runs = {
        Packing.SEQUENTIAL: _simulation(setting, Packing.SEQUENTIAL),
        other: _simulation(setting, other),
    }
    works = works_by_kind(setting.work)
    by_kind = {
        kind: runs[packing] if work == setting.work else _simulation(setting, packing, work)
        for kind, work in works.items()
    }
    every = [*runs.values(), *(run for run in by_kind.values() if run is not runs[packing])]
    notes = _feed(stream, lengths=lengths, runs=every, seed=seed)
    spreads = {
        one.value: {cp: meter.spread() for cp, meter in run.meters.items()}
        for one, run in runs.items()
    }
    keys = keys_per_token(lengths, work=setting.work)
    share = 1.0 if model is None else attention_share(model, keys_per_token=keys)
    compared, measured_notes = _measure(lengths, setting=setting, seed=seed, measurer=measurer)
    rows = [*_kind_rows(lengths, works=works, runs=by_kind), *_measured_rows(compared)]
    return Study(
        lengths=lengths,
        rows=tuple(row for row in rows if row.cp in asked),
        advice=advise(spreads, histogram=lengths, setting=setting, attention_share=share),
        compared=tuple(compared),
        notes=(
            *notes,
            *_steps_notes(runs.values()),
            *measured_notes,
            *_theory_notes(setting),
            *_layer_notes(works, measured=bool(compared)),
            describe_regime(lengths, setting=setting),
            _batches_note(lengths, setting=setting),
        ),
    )


def _simulation(setting: Setting, packing: Packing, work: Work | None = None) -> Simulation:
    by_row = packing is Packing.SEQUENTIAL and setting.split is Split.DOCUMENT
    few, many = _PACKED_STEPS
    most = max(few, min(many, _PACKED_TOKENS // setting.step_tokens))
    return Simulation(setting, packing, max_steps=None if by_row else most, work=work)


def _feed(
    stream: Iterable[Tokens], *, lengths: Histogram, runs: Sequence[Simulation], seed: int
) -> list[str]:
    for documents in in_blocks(stream, tokens_per_gpu=runs[0].setting.tokens_per_gpu):
        lengths.add(documents)
        for run in runs:
            run.feed(documents)
    if runs[0].steps:
        return []
    rng = np.random.default_rng(seed)
    step_tokens = runs[0].setting.step_tokens
    check_drawn(step_tokens, mean_tokens=lengths.mean_tokens)
    per_draw = min(1 << 20, 1 + int(DRAWN_STEPS * step_tokens / lengths.mean_tokens))
    while runs[0].steps < DRAWN_STEPS and not runs[0].is_done:
        drawn = lengths.draw(per_draw, rng)
        for run in runs:
            run.feed(drawn)
    return [
        f"{lengths.total_tokens:,} tokens are less than one step of {step_tokens:,}: "
        f"{runs[0].steps} steps were drawn from these lengths with seed {seed}"
    ]


def _measure(
    lengths: Histogram, *, setting: Setting, seed: int, measurer: Measurer | None
) -> tuple[list[Compared], list[str]]:
    if measurer is None:
        return [], []
    batches = sample_batches(lengths, setting=setting, seed=seed)
    note = (
        f"measured {batches.steps} steps on {RANKS} ranks, forward, all lengths times "
        f"{batches.scale:.3g}; variance in s2"
    )
    return compare(batches, measurer(batches, ranks=RANKS)), [note]


def _kind_rows(
    lengths: Histogram, *, works: Mapping[Layers, Work], runs: Mapping[Layers, Simulation]
) -> Iterator[SpreadRow]:
    """Theory and simulation of each kind of layer."""
    for kind, run in runs.items():
        setting = replace(run.setting, work=works[kind])
        theory = {cp: predict_spread(lengths, setting=setting, cp=cp) for cp in setting.cps}
        seen = {cp: meter.spread() for cp, meter in run.meters.items()}
        rows = [
            *_rows(theory, setting=setting, packing=Packing.SEQUENTIAL, source=Source.THEORY),
            *_rows(seen, setting=setting, packing=run.packing, source=Source.SIMULATED),
        ]
        yield from (replace(row, layers=kind) for row in rows)


def _rows(
    spreads: dict[int, Spread], *, setting: Setting, packing: Packing, source: Source
) -> list[SpreadRow]:
    return [
        build_row(
            spread,
            base=spreads[1],
            cp=cp,
            dp=setting.world // cp,
            packing=packing.value,
            source=source,
        )
        for cp, spread in spreads.items()
    ]


def _measured_rows(compared: Sequence[Compared]) -> list[SpreadRow]:
    return [
        build_row(
            one.measured,
            base=compared[0].measured,
            cp=one.cp,
            dp=one.dp,
            packing=Packing.SEQUENTIAL.value,
            source=Source.MEASURED,
        )
        for one in compared
    ]


def _steps_notes(runs: Iterable[Simulation]) -> list[str]:
    told = ", ".join(f"{run.steps} steps {run.packing}" for run in runs)
    return [f"simulated {told}"]


def _theory_notes(setting: Setting) -> list[str]:
    if setting.split is Split.DOCUMENT:
        return []
    return [f"theory splits every document evenly; the simulation splits {setting.split}"]


def _layer_notes(works: Mapping[Layers, Work], *, measured: bool) -> Iterator[str]:
    mixture = works.get(Layers.MIXTURE)
    if mixture is not None:
        yield (
            f"mixture: the mean layer, {mixture.full_share:.0%} of the layers full and the others "
            f"with a window of {mixture.window:,} tokens; advice and regime are of it"
        )
    if measured and set(works) != {Layers.FULL}:
        yield "the kernels that are measured have no window"


def _batches_note(lengths: Histogram, *, setting: Setting) -> str:
    largest, sizes = max(setting.cps), list(setting.cps)
    while sizes[-1] * setting.tokens_per_gpu < lengths.max_tokens:
        sizes.append(2 * sizes[-1])
    shares = batches_by_cp(lengths, setting=setting, cps=sizes)
    told = ", ".join(f"CP={cp} {share:.0%}" for cp, share in shares.items() if share >= 0.005)
    need = -(-lengths.max_tokens // setting.tokens_per_gpu)
    beyond = ""
    if need > largest:
        beyond = f"; the longest document needs CP={need}, and {largest} is the largest looked at"
    return f"steps by the CP that their longest document needs: {told}{beyond}"
