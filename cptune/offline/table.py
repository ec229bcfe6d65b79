"""Rows of a table as landscapes; what is unreadable, illegal or there twice is named and counted.

A row has the axes by their plain names, `workload`, the fields of [model], [workload] and
[cluster] of a sweep.toml, `stack` and `pipeline` of its [stack], `step_s`, `peak_bytes`, `outcome`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cptune.domain.candidate import (
    Candidate,
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
)
from cptune.domain.checks import LONGEST_STEP_S, MOST_BYTES, SHORTEST_STEP_S
from cptune.domain.layout import Axis, ParallelLayout
from cptune.domain.outcome import OutcomeKind
from cptune.domain.rules import describe, why_infeasible
from cptune.domain.stack import PipelineSplit, Stack, StackSpec
from cptune.domain.study import ClusterSpec, SweepSpec
from cptune.domain.workload import (
    FULL_LENGTHS,
    AttentionMask,
    Mlp,
    ModelShape,
    Norm,
    Precision,
    Workload,
    preset_fields,
)
from cptune.errors import SpecError
from cptune.offline.cells import Cells
from cptune.offline.landscape import TIMED, Foresight, Landscape, Result, foresee, landscape_of

#: Columns that may be left out: every row then has the default of the axis.
_OPTIONAL = ("sharding", "strategy", "recompute", "loss", "data_parallel")
_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
_EXPERTS = ("experts", "experts_per_token", "expert_ffn")


@dataclass(slots=True, kw_only=True)
class Sifted:
    """What a table came to. `unreadable`, `illegal` and `duplicates` have a line for each row."""

    rows: int = 0
    landscapes: list[Landscape] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    illegal: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Group:
    """The rows of one workload."""

    def __init__(self, name: str, foresight: Foresight) -> None:
        self.name, self.foresight = name, foresight
        self.results: dict[Candidate, Result] = {}
        self.lines: dict[Candidate, int] = {}


def sift(rows: Iterable[Mapping[str, Any]]) -> Sifted:
    """Read every row, group them by workload, and leave out by name what cannot be used.

    Line 1 is the header, so the first row is line 2.
    """
    found, groups = Sifted(), dict[tuple[str, SweepSpec], _Group]()
    defaults = dict[str, None]()
    for line, row in enumerate(rows, start=2):
        found.rows += 1
        cells = Cells(row)
        defaults |= {name: None for name in _OPTIONAL if not cells.has(name)}
        try:
            name, spec = cells.text("workload"), _spec(cells)
            candidate, result = _candidate(cells), _result(cells)
            key = (name, spec)
            group = groups.get(key) or _Group(name, foresee(spec))
        except (SpecError, ValueError) as exc:
            found.unreadable.append(f"line {line}: {exc}")
            continue
        groups[key] = group
        _add(found, group, candidate, result, line=line)
    _finish(found, [*groups.values()])
    if defaults:
        found.notes.append(f"not in every row, so of its default there: {', '.join(defaults)}")
    return found


def _add(found: Sifted, group: _Group, candidate: Candidate, result: Result, *, line: int) -> None:
    if broken := why_infeasible(candidate, group.foresight.setting):
        found.illegal.append(f"line {line}: {describe(candidate, broken)}")
    elif candidate in group.results:
        first = group.lines[candidate]
        found.duplicates.append(f"line {line}: {candidate.describe()} as line {first}")
    else:
        group.results[candidate], group.lines[candidate] = result, line


def _finish(found: Sifted, groups: list[_Group]) -> None:
    seen: dict[str, int] = {}
    for group in groups:
        number = seen[group.name] = seen.get(group.name, 0) + 1
        name = group.name if number == 1 else f"{group.name} ({number})"
        if number == 2:
            found.notes.append(
                f"workload {group.name!r} names several models, batches or clusters: told apart"
            )
        if any(one.step_s is not None for one in group.results.values()):
            found.landscapes.append(landscape_of(name, group.results, group.foresight))
        else:
            found.notes.append(f"workload {name!r} has no step time and is left out")


def _spec(cells: Cells) -> SweepSpec:
    """What the rows of one workload agree on."""
    return SweepSpec(
        name="replay",
        model=_model(cells),
        workload=Workload(
            seq_len=cells.whole("seq_len"),
            global_batch_seqs=cells.whole("global_batch_seqs"),
            mask=cells.word("mask", AttentionMask, AttentionMask.CAUSAL),
            lengths=cells.text("lengths", FULL_LENGTHS),
            precision=cells.word("precision", Precision, Precision.BF16),
            optimizer=cells.text("optimizer", "adamw-fp32"),
        ),
        cluster=ClusterSpec(
            world_size=cells.whole("world_size"),
            gpu=cells.text("gpu"),
            gpus_per_node=cells.whole("gpus_per_node", 0) or None,
            network_bytes_per_s=cells.real("network_bytes_per_s", 0.0) or None,
            gather_hops=cells.hops("gather_hops"),
            reduce_hops=cells.hops("reduce_hops"),
            device_memory_bytes=cells.whole("device_memory_bytes", 0),
        ),
        stack=StackSpec(
            kind=cells.word("stack", Stack) if cells.has("stack") else None,
            pipeline=cells.word("pipeline", PipelineSplit, PipelineSplit.EVEN),
        ),
    )


def _model(cells: Cells) -> ModelShape:
    """The shape of a row: that of its preset, but for what other cells say."""
    known: dict[str, Any] = preset_fields(cells.text("preset")) if cells.has("preset") else {}
    shape: dict[str, Any] = {name: cells.whole(name, known.get(name)) for name in _SIZES}
    shape |= {name: cells.whole(name, known.get(name, 0)) for name in _EXPERTS}
    return ModelShape(
        **shape,
        tied_embeddings=cells.yes("tied_embeddings", default=known.get("tied_embeddings", False)),
        mlp=cells.word("mlp", Mlp, Mlp(known.get("mlp", Mlp.SWIGLU))),
        norm=cells.word("norm", Norm, Norm(known.get("norm", Norm.RMS))),
    )


def _candidate(cells: Cells) -> Candidate:
    """The candidate of a row; dp fills the world and stages the ring where they are not told."""
    tp, cp, pp = (cells.whole(name) for name in ("tp", "cp", "pp"))
    rest = max(1, cells.whole("world_size") // max(1, tp * cp * pp))
    strategy = cells.word("strategy", Strategy, Strategy.RING)
    ulysses = cells.whole("ulysses", cp if strategy is Strategy.ULYSSES else 1)
    layout = ParallelLayout(
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=cells.whole("vpp", 1),
        dp=cells.whole("dp", rest),
        ulysses=ulysses,
        ep=cells.whole("ep", 1),
    )
    most = layout.ring - 1
    stages = min(1, most) if strategy is Strategy.ALL_GATHER else most
    return Candidate(
        layout=layout,
        sharding=cells.word("sharding", ShardingKind, ShardingKind.ZIGZAG),
        strategy=strategy,
        stages=cells.whole("stages", max(0, stages)),
        micro_batch=cells.whole("micro_batch"),
        recompute=cells.word("recompute", Recompute, Recompute.NONE),
        loss=cells.word("loss", LossKind, LossKind.FULL),
        data_parallel=cells.word("data_parallel", DataParallelKind, DataParallelKind.DDP),
        kernel=cells.text("kernel", "auto"),
    ).canonical()


def _result(cells: Cells) -> Result:
    kind = cells.word("outcome", OutcomeKind)
    step_s = cells.real("step_s") if kind in TIMED else None
    if step_s is not None and not SHORTEST_STEP_S <= step_s <= LONGEST_STEP_S:
        raise ValueError(
            f"step_s is {step_s}: wanted {SHORTEST_STEP_S:g} to {LONGEST_STEP_S:g} s for outcome "
            f"{kind.value}"
        )
    peak_bytes = cells.whole("peak_bytes", 0)
    if not 0 <= peak_bytes <= MOST_BYTES:
        raise ValueError(f"peak_bytes is {peak_bytes}: wanted 0 to {MOST_BYTES} bytes")
    exposed = {axis.value: f"{axis.value}_exposed_s" for axis in Axis}
    told = all(map(cells.has, exposed.values()))
    return Result(
        kind=kind,
        step_s=step_s,
        peak_bytes=peak_bytes or None,
        exposed_s={axis: cells.real(name) for axis, name in exposed.items()} if told else None,
        reason=cells.text("reason", ""),
    )
