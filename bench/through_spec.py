"""The same rows as a person would write them: a sweep.toml, parsed, and what it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.published import Published
from cptune.domain.stack import StackSpec
from cptune.domain.study import ClusterSpec, SweepSpec
from cptune.planning.machine import build_case
from cptune.predict.prediction import Predictor
from cptune.spec import parse, write_toml


def count_unlike(rows: Sequence[Published]) -> int:
    """Rows whose step time or memory band is another one when their case comes from a spec."""
    return sum(_figures(one, _spec(one)) != _figures(one) for one in rows)


def count_unlike_without_stack(rows: Sequence[Published]) -> int:
    """The same without `[stack]`: so that the count above means something."""
    plain = StackSpec()
    return sum(_figures(one, replace(_spec(one), stack=plain)) != _figures(one) for one in rows)


def _figures(one: Published, spec: SweepSpec | None = None) -> tuple[float, ...]:
    case, candidate = one.case, one.candidate
    if spec is not None:
        case = build_case(parse(write_toml(spec), source="bench", default_name="row"))
        candidate = replace(candidate, kernel="auto")  # the stack names it
    said = Predictor(case).predict(candidate)
    band = said.memory
    return (said.time.step_s, band.low_bytes, band.likely_bytes, band.high_bytes)


def _spec(one: Published) -> SweepSpec:
    case, machine = one.case, one.case.machine
    return SweepSpec(
        name="row",
        model=case.model,
        workload=case.workload,
        cluster=ClusterSpec(
            world_size=machine.world_size,
            gpu=machine.gpu.name,
            gpus_per_node=machine.node_size,
            network_bytes_per_s=machine.network_bytes_per_s,
            gather_hops=machine.gather_hops,
            reduce_hops=machine.reduce_hops,
        ),
        stack=StackSpec(
            kind=case.stack,
            kernel=one.candidate.kernel,
            pipeline=case.pipeline,
            tp_inputs=case.tp_inputs,
            check_s=case.check_s,
        ),
    )
