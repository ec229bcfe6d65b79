"""What every figure of a page is of: input, configuration and window, in the same words."""

from __future__ import annotations

from cptune.domain.study import SweepSpec, TraceKind
from cptune.domain.workload import AttentionMask
from cptune.report.page_parts import Basis
from cptune.report.run import ReportedRun


def basis_of_all(run: ReportedRun) -> Basis:
    """Of figures about every candidate."""
    world_size = run.spec.cluster.world_size
    ranks = "" if world_size is None else f" on {world_size} ranks"
    return Basis(
        input=input_words(run.spec),
        configuration=f"{len(run.judged)} candidates{ranks}, each with the same weights and batch",
        window=timed_words(run.spec),
    )


def basis_of_recipe(run: ReportedRun, *, window: str) -> Basis:
    """Of figures about the recipe alone."""
    chosen = run.chosen
    which = "" if chosen is None else f"#{chosen.trial.number} {chosen.trial.source}"
    return Basis(input=input_words(run.spec), configuration=which, window=window)


def input_words(spec: SweepSpec) -> str:
    """The batch and the model."""
    work, model = spec.workload, spec.model
    lengths = f" of lengths {work.lengths}" if work.mask is AttentionMask.DOCUMENT else ""
    named = f"{model.preset}, " if model.preset else ""
    return (
        f"{work.global_batch_seqs} x {work.seq_len} tokens, mask {work.mask}{lengths}, "
        f"{work.precision}, {work.optimizer}; model {named}{model.layers} layers, hidden "
        f"{model.hidden}, {model.heads} heads, {model.kv_heads} kv heads, vocabulary {model.vocab}"
    )


def timed_words(spec: SweepSpec) -> str:
    """The steps that figures of a trial are over."""
    budget = spec.budget
    several = "" if budget.max_steps <= budget.steps else f" to {budget.max_steps}"
    return (
        f"{budget.warmup_steps} steps of warm-up thrown away, then {budget.steps}{several} timed: "
        "the median over steps of the slowest rank; peaks are over warm-up and timed steps together"
    )


def traced_words(run: ReportedRun) -> str:
    """The step that exposed communication was seen in."""
    chosen, spec = run.chosen, run.spec
    seen = None if chosen is None else chosen.trial.measurement
    if chosen is None or seen is None:
        return "no step"
    if seen.traced_step_s is None:
        return f"{timed_words(spec)}; seconds blocked in waits ({seen.exposed_method})"
    more = spec.budget.finalist_trace is TraceKind.ABLATION or spec.budget.trace is (
        TraceKind.ABLATION
    )
    after = "; ablation is of steps after the timed ones" if more else ""
    return (
        f"one traced step of {seen.traced_step_s * 1e3:,.0f} ms, the last of warm-up, of trial "
        f"{chosen.trial.number} attempt {chosen.trial.attempt}, mean over ranks "
        f"({seen.exposed_method}){after}"
    )
