"""The rules that no candidate may break, with the value seen, the one wanted and the nearest.

`why_infeasible` reports every broken rule at once. The rules of the mathematics hold everywhere;
`Support` adds what the backend that runs the trials can do, so that a candidate it cannot run is
refused by name and never tried in another form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cptune.domain.candidate import Candidate, ShardingKind, Strategy
from cptune.domain.support import TORCH_TRIAL, Support
from cptune.domain.workload import (
    AttentionMask,
    ModelShape,
    Workload,
    divisors,
    nearest_divisor,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken rule: its name for counting, and a sentence for people.

    `intrinsic` False: the rule is a limit of the backend that runs the trials, not of the layout.
    """

    rule: str
    message: str
    intrinsic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a candidate is judged against. `island_size` None: the fast islands are not known."""

    model: ModelShape
    workload: Workload
    world_size: int
    support: Support = TORCH_TRIAL
    island_size: int | None = None


def why_infeasible(candidate: Candidate, setting: Setting) -> tuple[Violation, ...]:
    """Every rule that the candidate breaks; empty when it may be tried."""
    found = [
        *_world(candidate, setting),
        *_batch(candidate, setting),
        *_heads(candidate, setting),
        *_layers(candidate, setting),
        *_context(candidate, setting),
        *_experts(candidate, setting),
    ]
    return (
        *(Violation(rule=rule, message=message) for rule, message in found),
        *(
            Violation(rule=rule, message=message, intrinsic=False)
            for rule, message in _supported(candidate, setting)
        ),
    )


def describe(candidate: Candidate, violations: Iterable[Violation]) -> str:
    """All violations of one candidate as one message."""
    reasons = "; ".join(violation.message for violation in violations)
    return f"{candidate.describe()}: {reasons}"


_Found = Iterator[tuple[str, str]]


def _world(candidate: Candidate, setting: Setting) -> _Found:
    lay = candidate.layout
    if lay.world_size != setting.world_size:
        rest = lay.tp * lay.cp * lay.pp
        fill = (
            f"nearest legal dp: {setting.world_size // rest}"
            if setting.world_size % rest == 0
            else f"tp*cp*pp = {rest} must divide it"
        )
        yield (
            "world-size",
            f"tp{lay.tp} * cp{lay.cp} * pp{lay.pp} * dp{lay.dp} = {lay.world_size} ranks, "
            f"wanted exactly {setting.world_size} ({fill})",
        )
    if setting.island_size is not None and lay.tp > setting.island_size:
        yield (
            "tp-island",
            f"tp {lay.tp} leaves the NVLink island of {setting.island_size}, "
            f"wanted tp <= {setting.island_size}",
        )


def _batch(candidate: Candidate, setting: Setting) -> _Found:
    batch = setting.workload.global_batch_seqs
    per_pass = candidate.layout.dp * candidate.micro_batch
    if batch % per_pass:
        yield (
            "global-batch",
            f"dp {candidate.layout.dp} * micro_batch {candidate.micro_batch} = {per_pass} must "
            f"divide the global batch of {batch} sequences "
            f"(nearest legal product: {nearest_divisor(batch, per_pass)})",
        )


def _heads(candidate: Candidate, setting: Setting) -> _Found:
    model, lay = setting.model, candidate.layout
    if model.heads % lay.tp:
        near = nearest_divisor(model.heads, lay.tp)
        yield (
            "heads",
            f"{model.heads} query heads do not divide by tp {lay.tp} (nearest legal tp: {near})",
        )
    if model.kv_heads % lay.tp and lay.tp % model.kv_heads:
        near = nearest_divisor(model.kv_heads, lay.tp)
        yield (
            "kv-heads",
            f"{model.kv_heads} kv heads neither divide by tp {lay.tp} nor replicate evenly "
            f"over it (nearest legal tp: {near})",
        )
    if model.ffn % lay.tp:
        near = nearest_divisor(model.ffn, lay.tp)
        yield "ffn", f"ffn {model.ffn} does not divide by tp {lay.tp} (nearest legal tp: {near})"
    if model.vocab % lay.tp and not setting.support.vocab_padding:
        near = nearest_divisor(model.vocab, lay.tp)
        yield (
            "vocab",
            f"vocab {model.vocab} does not divide by tp {lay.tp} (nearest legal tp: {near})",
        )


def _layers(candidate: Candidate, setting: Setting) -> _Found:
    layers, lay = setting.model.layers, candidate.layout
    chunks = lay.pp * lay.vpp
    # Llama 3 405B counts its embedding and its head as a layer each: 126 + 2 over 16 stages.
    if layers % chunks and (layers + 2) % chunks:
        near = sorted({*divisors(layers), *divisors(layers + 2)}, key=lambda d: abs(d - chunks))[0]
        yield (
            "layers",
            f"neither {layers} layers nor {layers} + 2 (embedding and head) divide by "
            f"pp {lay.pp} * vpp {lay.vpp} = {chunks} (nearest legal product: {near})",
        )
    if chunks > layers:
        yield "empty-stage", f"{chunks} pipeline stages for {layers} layers, wanted no empty stage"


def _context(candidate: Candidate, setting: Setting) -> _Found:
    lay, seq_len = candidate.layout, setting.workload.seq_len
    chunks = lay.cp * (2 if candidate.sharding is ShardingKind.ZIGZAG and lay.cp > 1 else 1)
    if seq_len < chunks:
        yield (
            "empty-shard",
            f"{seq_len} tokens cannot fill the {chunks} chunks of {candidate.sharding} over "
            f"cp {lay.cp}, wanted a sequence of {chunks} or more",
        )
    yield from _ulysses(candidate, setting)
    if lay.cp % lay.ulysses:
        return
    most = lay.ring - 1
    if not min(1, most) <= candidate.stages <= most:
        yield (
            "stages",
            f"{candidate.stages} stages for a ring of {lay.ring}, wanted "
            f"{'0' if most == 0 else f'1 (all-gather) to {most} (ring)'}",
        )


def _experts(candidate: Candidate, setting: Setting) -> _Found:
    lay, experts = candidate.layout, setting.model.experts
    if lay.ep == 1:
        return
    if not experts:
        yield (
            "experts",
            f"ep {lay.ep} spreads the experts of a layer over ranks, and this model has none: "
            "wanted ep 1, or model.experts, experts_per_token and expert_ffn",
        )
        return
    if experts % lay.ep:
        near = nearest_divisor(experts, lay.ep)
        yield "experts", f"{experts} experts do not divide by ep {lay.ep} (nearest legal: {near})"
    if lay.dp * lay.cp % lay.ep:
        near = nearest_divisor(lay.dp * lay.cp, lay.ep)
        yield (
            "expert-ranks",
            f"ep {lay.ep} does not divide dp {lay.dp} * cp {lay.cp} = {lay.dp * lay.cp} "
            f"(nearest legal: {near})",
        )


def _ulysses(candidate: Candidate, setting: Setting) -> _Found:
    lay, model = candidate.layout, setting.model
    if lay.ulysses == 1:
        return
    if lay.cp % lay.ulysses:
        near = nearest_divisor(lay.cp, lay.ulysses)
        yield (
            "ulysses",
            f"ulysses {lay.ulysses} does not divide cp {lay.cp} (nearest legal: {near})",
        )
    heads, kv_heads = model.heads // lay.tp, max(1, model.kv_heads // lay.tp)
    if heads < 1 or heads % lay.ulysses:
        near = nearest_divisor(max(1, heads), lay.ulysses)
        yield (
            "ulysses-heads",
            f"ulysses {lay.ulysses} does not divide the {heads} query heads of a tp rank "
            f"(nearest legal: {near})",
        )
    if kv_heads % lay.ulysses and lay.ulysses % kv_heads:
        near = nearest_divisor(kv_heads, lay.ulysses)
        yield (
            "ulysses-kv-heads",
            f"ulysses {lay.ulysses} neither divides nor is a multiple of the {kv_heads} kv heads "
            f"of a tp rank (nearest legal: {near})",
        )


def _supported(candidate: Candidate, setting: Setting) -> _Found:
    can, lay = setting.support, candidate.layout
    for name in ("sharding", "strategy", "recompute", "loss", "data_parallel"):
        seen, known = getattr(candidate, name), getattr(can, name)
        if seen not in known and (lay.cp > 1 or name not in ("sharding", "strategy")):
            yield f"{can.backend}: {name}", _cannot(can, name=name, seen=seen, known=known)
    passes = setting.workload.global_batch_seqs // (lay.dp * candidate.micro_batch)
    if (
        can.pipeline_needs_passes
        and lay.pp > 1
        and (passes < lay.pp or (lay.vpp > 1 and passes % lay.pp))
    ):
        wanted = f"a multiple of {lay.pp}" if lay.vpp > 1 else f"{lay.pp} or more"
        yield (
            f"{can.backend}: micro-batches",
            f"{passes} micro-batches a step cannot fill the {can.backend}'s pipeline of pp "
            f"{lay.pp} x vpp {lay.vpp}, wanted {wanted}",
        )
    if can.pipeline_needs_passes and lay.pp > 1 and _has_uneven_packs(candidate, setting.workload):
        yield (
            f"{can.backend}: balanced packs",
            f"{candidate.sharding} sharding gives a rank more rows in one pack of documents than "
            f"in another, and the {can.backend}'s pipeline of pp {lay.pp} sends rows of one shape, "
            "wanted zigzag or contiguous, or pp 1",
        )
    if lay.ulysses > 1 and not can.strategy & {Strategy.ULYSSES, Strategy.HYBRID}:
        yield (
            f"{can.backend}: ulysses",
            f"ulysses {lay.ulysses} cannot be tried by the {can.backend}, wanted ulysses 1",
        )
    if not can.kv_replication and setting.model.kv_heads % lay.tp:
        near = nearest_divisor(setting.model.kv_heads, lay.tp)
        yield (
            f"{can.backend}: kv replication",
            f"{setting.model.kv_heads} kv heads do not divide by tp {lay.tp}, and the "
            f"{can.backend} does not replicate kv heads (nearest legal tp: {near})",
        )


def _has_uneven_packs(candidate: Candidate, workload: Workload) -> bool:
    balanced = candidate.sharding is ShardingKind.BALANCED and candidate.layout.cp > 1
    return balanced and workload.mask is AttentionMask.DOCUMENT


def why_unsupported(setting: Setting) -> tuple[Violation, ...]:
    """What the backend cannot train at all, whatever the candidate."""
    can, model, workload = setting.support, setting.model, setting.workload
    pairs = (
        ("precision", workload.precision, can.precision),
        ("mask", workload.mask, can.mask),
        ("optimizer", workload.optimizer, can.optimizers),
        ("mlp", model.mlp, can.mlp),
        ("norm", model.norm, can.norm),
        ("experts", model.experts > 0, {False, can.experts}),
        ("tied_embeddings", model.tied_embeddings, {False, can.tied_embeddings}),
    )
    found = [
        (name, _cannot(can, name=name, seen=seen, known=known))
        for name, seen, known in pairs
        if seen not in known
    ]
    if workload.mask is not AttentionMask.DOCUMENT and workload.lengths not in can.lengths:
        wanted = _cannot(can, name="lengths", seen=workload.lengths, known=can.lengths)
        found.append(("lengths", f'{wanted}, or mask "document", which alone knows documents'))
    return tuple(
        Violation(rule=f"{can.backend}: {name}", message=message) for name, message in found
    )


def _cannot(can: Support, *, name: str, seen: object, known: Iterable[object]) -> str:
    wanted = ", ".join(sorted(str(value).lower() for value in known))
    return f"{name} {str(seen).lower()} cannot be tried by the {can.backend}, wanted {wanted}"
