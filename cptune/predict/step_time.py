"""Seconds of a step and what binds them: compute, exposed communication by axis, bubble."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from cptune.domain.candidate import Candidate, DataParallelKind, Recompute
from cptune.domain.layout import Axis
from cptune.domain.stack import Stack
from cptune.predict.case import Case
from cptune.predict.checks import data_checks, layer_checks
from cptune.predict.exposure import (
    context_exposed,
    data_exposed,
    expert_exposed,
    pipeline_exposed,
    tensor_exposed,
)
from cptune.predict.lengths import straggler_factor
from cptune.predict.links import axis_span
from cptune.predict.rates import (
    Passes,
    attention_waited,
    head_seconds,
    layer_attention,
    layer_elementwise,
    layer_host,
    layer_products,
    streaming_bytes_per_s,
)
from cptune.predict.shares import (
    StageShare,
    expert_parameters,
    micro_batches,
    stage_parameters,
)
from cptune.predict.traffic import element_bytes


class Bound(StrEnum):
    """What a step spends most of its time on."""

    COMPUTE = "compute"
    MEMORY = "memory"
    NVLINK = "nvlink"
    NETWORK = "network"
    BUBBLE = "bubble"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One optimizer step, in parts that add up to it.

    Of `compute_s`, `attention_s` are the attention of the slowest data-parallel group, and of
    those `straggler_s` are beyond the mean group, which has 1 / `straggler_factor` of its work.
    """

    compute_s: float
    tp_exposed_s: float
    cp_exposed_s: float
    dp_exposed_s: float
    ep_exposed_s: float
    pp_bubble_s: float
    bound_by: Bound
    attention_s: float = 0.0
    straggler_factor: float = 1.0
    straggler_s: float = 0.0

    @property
    def attention_share(self) -> float:
        """Attention's share of the step, were all data-parallel groups even."""
        return (self.attention_s - self.straggler_s) / (self.step_s - self.straggler_s)

    @property
    def step_s(self) -> float:
        """The whole step."""
        exposed = self.tp_exposed_s + self.cp_exposed_s + self.dp_exposed_s + self.ep_exposed_s
        return self.compute_s + exposed + self.pp_bubble_s

    def scaled(self, *, compute: float, exposed: float) -> StepTime:
        """The same step with its compute and its communication corrected."""
        if compute == 1.0 and exposed == 1.0:
            return self
        return replace(
            self,
            compute_s=self.compute_s * compute,
            tp_exposed_s=self.tp_exposed_s * exposed,
            cp_exposed_s=self.cp_exposed_s * exposed,
            dp_exposed_s=self.dp_exposed_s * exposed,
            ep_exposed_s=self.ep_exposed_s * exposed,
            pp_bubble_s=self.pp_bubble_s * compute,
            attention_s=self.attention_s * compute,
            straggler_s=self.straggler_s * compute,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """One layer and one micro-batch on one rank; depends on tp, cp and how the context moves."""

    products: Passes
    attention: Passes
    waited: Passes  # of attention, for the slowest data-parallel group
    elementwise: Passes
    host: Passes
    tensor: Passes
    context: Passes
    experts: Passes
    checks: Passes  # by the host, beside launching; a part of nothing above

    @property
    def whole(self) -> Passes:
        """Everything that the layer waits for."""
        compute = self.products + self.attention + self.elementwise + self.host
        return compute + self.tensor + self.context + self.experts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """One micro-batch through one stage: parts of forward, backward and recomputation."""

    compute_s: float
    streaming_s: float  # of compute_s, what waits for memory
    attention_s: float  # of compute_s
    waited_s: float  # of attention_s
    tensor_s: float
    context_s: float
    experts_s: float
    passes: Passes

    @property
    def whole_s(self) -> float:
        """Everything that the stage waits for."""
        return self.compute_s + self.tensor_s + self.context_s + self.experts_s


def layer_time(case: Case, candidate: Candidate) -> LayerTime:
    """Compute and exposed exchanges of one layer."""
    attention = layer_attention(case, candidate)
    return LayerTime(
        products=layer_products(case, candidate),
        attention=attention,
        waited=attention_waited(case, candidate),
        elementwise=layer_elementwise(case, candidate),
        host=layer_host(case, candidate),
        tensor=tensor_exposed(case, candidate),
        context=context_exposed(case, candidate, attention),
        experts=expert_exposed(case, candidate),
        checks=layer_checks(case, candidate),
    )


def stage_time(case: Case, candidate: Candidate, share: StageShare, layer: LayerTime) -> StageTime:
    """A micro-batch through a stage; full recompute runs the forward and its exchanges again.

    A layer whose kernels are shorter than the host takes to check and launch them lasts as long as
    the host.
    """
    again = 1 if candidate.recompute is Recompute.FULL else 0
    times = 1 + again
    part = {
        name: getattr(layer, name).forward * times + getattr(layer, name).backward
        for name in LayerTime.__dataclass_fields__
    }
    compute = part["products"] + part["attention"] + part["elementwise"] + part["host"]
    selective = candidate.recompute is Recompute.SELECTIVE
    streaming = part["elementwise"] + (layer.elementwise.forward / 2 if selective else 0.0)
    compute += streaming - part["elementwise"]
    exchanged = part["tensor"] + part["context"] + part["experts"]
    launched = case.constants.layer_launch_s * (3 + again) + part["checks"] - exchanged
    even = max(launched, compute - part["waited"])
    compute = max(launched, compute)
    head, loss = head_seconds(case, candidate) if share.head else (0.0, 0.0)
    forward = share.layers * layer.whole.forward + head / 3
    whole = share.layers * (compute + exchanged) + head + loss
    return StageTime(
        compute_s=share.layers * compute + head + loss,
        streaming_s=share.layers * streaming + loss,
        attention_s=share.layers * part["attention"],
        waited_s=share.layers * (compute - even),
        tensor_s=share.layers * part["tensor"],
        context_s=share.layers * part["context"],
        experts_s=share.layers * part["experts"],
        passes=Passes(forward=forward, backward=whole - forward),
    )


def optimizer_seconds(case: Case, candidate: Candidate, parameters: float) -> float:
    """Adam reads and writes 30 bytes for each parameter that the rank owns."""
    lay, kind = candidate.layout, candidate.data_parallel
    owned = parameters if kind is DataParallelKind.DDP else parameters / (lay.dp * lay.cp)
    return 30.0 * owned / streaming_bytes_per_s(case)


def accumulation_seconds(case: Case, candidate: Candidate, parameters: float) -> float:
    """Summing the gradients of every micro-batch in fp32: read, add, write.

    Megatron Core does it inside the products that make them; fsdp sums the shard alone.
    """
    sharded = candidate.data_parallel is DataParallelKind.FSDP
    if sharded or case.stack_of(candidate) is Stack.FUSED:
        return 0.0
    return (element_bytes(case) + 8.0) * parameters / streaming_bytes_per_s(case)


def predict_step(case: Case, candidate: Candidate, layer: LayerTime | None = None) -> StepTime:
    """The slowest stage paces the step; filling and draining the pipeline is the bubble.

    1F1B leaves sum(stages) - slowest idle, interleaving 1/vpp of it (arXiv:2104.04473).
    """
    lay, batches = candidate.layout, micro_batches(candidate, case.workload)
    layer = layer or layer_time(case, candidate)
    shares = case.shares(candidate)
    stages = [stage_time(case, candidate, share, layer) for share in shares]
    slow = max(range(len(stages)), key=lambda index: stages[index].whole_s)
    pace, share = stages[slow], shares[slow]
    first, last = stages[0].whole_s, stages[-1].whole_s
    between = stages[1].whole_s if len(stages) > 2 else first
    others = first + last + between * (lay.pp - 2) if lay.pp > 1 else pace.whole_s
    parameters = max(
        stage_parameters(case.model, lay, one) + one.layers * expert_parameters(case.model, lay)
        for one in shares
    )
    optimizer = optimizer_seconds(case, candidate, parameters)
    optimizer += batches * accumulation_seconds(case, candidate, parameters)
    bubble = (others - pace.whole_s) / lay.vpp
    sent = pipeline_exposed(case, candidate, batches)
    data = data_exposed(case, candidate, parameters, layers=share.layers, passes=pace.passes)
    data += data_checks(case, candidate, layers=share.layers)
    parts = {
        Axis.TP: batches * pace.tensor_s,
        Axis.CP: batches * pace.context_s,
        Axis.DP: data + batches * pace.experts_s,  # ep lies inside dp x cp
        Axis.PP: sent,
    }
    compute = batches * pace.compute_s + optimizer
    streaming = batches * pace.streaming_s + optimizer
    return StepTime(
        compute_s=compute,
        tp_exposed_s=parts[Axis.TP],
        cp_exposed_s=parts[Axis.CP],
        dp_exposed_s=data,
        ep_exposed_s=batches * pace.experts_s,
        pp_bubble_s=bubble + sent,
        attention_s=batches * pace.attention_s,
        straggler_factor=straggler_factor(case.documents, groups=lay.dp),
        straggler_s=batches * pace.waited_s,
        bound_by=_bound(case, candidate, parts, [compute - streaming, streaming, bubble]),
    )


def _bound(
    case: Case, candidate: Candidate, exposed: dict[Axis, float], rest: list[float]
) -> Bound:
    found = dict(zip((Bound.COMPUTE, Bound.MEMORY, Bound.BUBBLE), rest, strict=True))
    found |= {Bound.NVLINK: 0.0, Bound.NETWORK: 0.0}
    for axis, seconds in exposed.items():
        crosses = axis_span(case, candidate.layout, axis).crosses
        found[Bound.NETWORK if crosses else Bound.NVLINK] += seconds
    return max(found, key=lambda bound: found[bound])
