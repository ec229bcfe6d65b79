"""A candidate's attention beside that of the whole sequence, and probes of its mask and seams.

Shapes: B batch, S rows of this rank, T all tokens, H query heads, K kv heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention import ContextParallel
from cptune.bench.mesh import Mesh
from cptune.domain.candidate import Candidate
from cptune.domain.proof import Check
from cptune.domain.workload import AttentionMask, Precision
from cptune.proof.fixture import Fixture
from cptune.proof.model import MadeBy, context_parallel, magnitude
from cptune.proof.reference import attend_whole, hidden_pairs, token_positions

#: fp64, one attention call.
TOLERANCE = 1e-12
_SHARP = 8.0  # times the queries: a softmax that nearly picks one key shows a wrong scale
_LOUD = 1e3  # what a token that must not be seen is replaced with
_MOST_SEAMS = 8
_NAMES = ("outputs", "query gradients", "key gradients", "value gradients")
#: A sharded call may be so many times farther from fp64 than the same kernel on the whole sequence.
_KERNEL_SLACK = 4.0
_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}


def check_attention(
    candidate: Candidate,
    fixture: Fixture,
    *,
    mesh: Mesh,
    made_by: MadeBy,
    precision: Precision,
) -> list[Check]:
    """Compare one attention call, forward and backward, and probe it. Collective over the mesh."""
    cp = context_parallel(candidate, fixture, mesh=mesh, made_by=made_by, docs=fixture.docs)
    inputs = _inputs(fixture, mesh)
    found = [
        *_compare(cp, fixture, inputs),
        _check_scale(cp, fixture, inputs),
        _check_coverage(cp, fixture),
        _check_positions(cp, fixture),
        *_check_leaks(cp, fixture, inputs),
        _check_seams(cp, fixture, inputs),
        _check_kernel(candidate, fixture, mesh=mesh, made_by=made_by, precision=precision),
    ]
    return [
        Check(
            name=f"{fixture.name}: {one.name}",
            max_error=one.max_error,
            tolerance=one.tolerance,
            where=one.where,
        )
        for one in found
    ]


def _inputs(fixture: Fixture, mesh: Mesh) -> list[Tensor]:
    """q, k, v and the output's gradient of one tp rank's heads, fp64; the same on every rank."""
    shape, tp = fixture.shape, mesh.layout.tp
    heads, kv_heads = shape.heads // tp, max(1, shape.kv_heads // tp)
    generator = torch.Generator().manual_seed(fixture.seed)
    return [
        torch.randn(2, fixture.seq_len, count, shape.head_dim, generator=generator).double()
        for count in (heads, kv_heads, kv_heads, heads)
    ]


def _whole(inputs: list[Tensor], hidden_TT: Tensor) -> list[Tensor]:
    """out, dq, dk, dv of the whole sequence."""
    q, k, v = (x.clone().requires_grad_() for x in inputs[:3])
    out = attend_whole(q, k, v, hidden_TT)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), inputs[3])]


def _sharded(cp: ContextParallel, inputs: list[Tensor]) -> list[Tensor]:
    """out, dq, dk, dv of this rank's rows; what its rows of padding hold is no number."""
    local = [cp.shard(x, dim=1) for x in inputs]
    for x in local:
        x[:, ~cp.valid] = float("nan")
    q, k, v = (x.requires_grad_() for x in local[:3])
    out = cp.attend(q, k, v)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), local[3])]


def _own(cp: ContextParallel, fixture: Fixture) -> Tensor:
    """Global index of each real row of this rank."""
    return cp.shard(torch.arange(fixture.seq_len), dim=0)[cp.valid]


def _compare(cp: ContextParallel, fixture: Fixture, inputs: list[Tensor]) -> Iterator[Check]:
    cp.traffic.reset()
    found, at = _sharded(cp, inputs), _own(cp, fixture)
    wanted = _whole(inputs, hidden_pairs(fixture, fixture.docs))
    for name, seen, whole in zip(_NAMES, found, wanted, strict=True):
        error = magnitude(seen[:, cp.valid] - whole[:, at])
        yield Check(name=name, max_error=error, tolerance=TOLERANCE)
    padding = max(magnitude(seen[:, ~cp.valid]) for seen in found)
    yield Check(name="padding attends nothing", max_error=padding, tolerance=0.0)
    yield _check_bytes(cp, batch=inputs[0].shape[0])


def _check_bytes(cp: ContextParallel, *, batch: int) -> Check:
    """What was moved is what the plan says, and it is not nothing."""
    assert cp.group is not None, "a context of one rank moves nothing"
    moved, planned = cp.traffic, asdict(cp.plan.bytes(cp.group.rank()))
    errors = {
        name: float(abs(getattr(moved, f"{name}_bytes") - batch * size))
        for name, size in planned.items()
    }
    sent = torch.tensor(moved.forward_sent_bytes)
    dist.all_reduce(sent, group=cp.group)
    if not sent:
        errors = {"nothing is sent": float("inf")}
    worst = max(errors, key=lambda one: errors[one])
    return Check(name="bytes moved", max_error=errors[worst], tolerance=0.0, where=worst)


def _check_scale(cp: ContextParallel, fixture: Fixture, inputs: list[Tensor]) -> Check:
    sharp = [inputs[0] * _SHARP, *inputs[1:]]
    wanted = _whole(sharp, hidden_pairs(fixture, fixture.docs))[0]
    out = _attend(cp, sharp[:3])
    error = magnitude(out[:, cp.valid] - wanted[:, _own(cp, fixture)])
    return Check(name="scale", max_error=error, tolerance=TOLERANCE)


def _check_coverage(cp: ContextParallel, fixture: Fixture) -> Check:
    """Each token is a row of exactly one rank, and comes back in its place."""
    held = torch.bincount(_own(cp, fixture), minlength=fixture.seq_len)
    if cp.group is not None:
        dist.all_reduce(held, group=cp.group)
    at = torch.arange(fixture.seq_len)
    returned = cp.unshard(cp.shard(at, dim=0), dim=0)
    wrong = (held - 1).abs() + (returned != at).long()
    return Check(
        name="coverage",
        max_error=float(wrong.max()),
        tolerance=0.0,
        where=f"token {int(wrong.argmax())}" if bool(wrong.any()) else "",
    )


def _check_positions(cp: ContextParallel, fixture: Fixture) -> Check:
    wanted = token_positions(fixture, fixture.docs)[_own(cp, fixture)]
    error = magnitude((cp.positions[cp.valid] - wanted).double())
    return Check(name="positions", max_error=error, tolerance=0.0)


def _check_leaks(cp: ContextParallel, fixture: Fixture, inputs: list[Tensor]) -> Iterator[Check]:
    """Nothing changes, to the bit, for those who must not see the tokens that do."""
    at, middle = torch.arange(fixture.seq_len), fixture.seq_len // 2
    if fixture.workload.mask is not AttentionMask.FULL:
        yield _leak("the future leaks", cp, inputs, changed=at > middle, protected=at <= middle)
    if fixture.docs:
        longest = max(range(len(fixture.docs)), key=lambda one: fixture.docs[one])
        start = sum(fixture.docs[:longest])
        inside = (at >= start) & (at < start + fixture.docs[longest])
        yield _leak("documents leak", cp, inputs, changed=~inside, protected=inside)


def _leak(
    name: str, cp: ContextParallel, inputs: list[Tensor], *, changed: Tensor, protected: Tensor
) -> Check:
    before, after = _changed(cp, inputs, changed)
    own = cp.shard(protected, dim=0) & cp.valid
    return Check(name=name, max_error=magnitude((after - before)[:, own]), tolerance=0.0)


def _check_seams(cp: ContextParallel, fixture: Fixture, inputs: list[Tensor]) -> Check:
    """A token that is the first of another rank's rows sees the one before it."""
    ranks = 1 if cp.group is None else cp.group.size()
    owner = torch.empty(fixture.seq_len, dtype=torch.int64)
    for rank in range(ranks):
        owner[list(cp.partition.positions(rank))] = rank
    seams = [at for at in range(1, fixture.seq_len) if owner[at] != owner[at - 1]]
    hidden_TT = hidden_pairs(fixture, fixture.docs)
    seams = [at for at in seams if not hidden_TT[at, at - 1]]
    blind = ""
    unseen = 0
    for at in seams[:: max(1, len(seams) // _MOST_SEAMS)]:
        changed = torch.arange(fixture.seq_len) == at - 1
        before, after = _changed(cp, inputs, changed)
        own = cp.shard(torch.arange(fixture.seq_len) == at, dim=0) & cp.valid
        if bool(own.any()) and not magnitude((after - before)[:, own]) > 0:
            unseen, blind = unseen + 1, f"token {at} does not see {at - 1}"
    return Check(name="seams", max_error=float(unseen), tolerance=0.0, where=blind)


def _changed(cp: ContextParallel, inputs: list[Tensor], changed_T: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of this rank before and after the keys and values of some tokens are replaced."""
    q, k, v = inputs[:3]
    loud = [x.masked_fill(changed_T[None, :, None, None], _LOUD) for x in (k, v)]
    return _attend(cp, [q, k, v]), _attend(cp, [q, *loud])


def _attend(cp: ContextParallel, inputs: list[Tensor]) -> Tensor:
    """Outputs of this rank's rows, forward alone."""
    q, k, v = (cp.shard(x, dim=1) for x in inputs)
    with torch.no_grad():
        return cp.attend(q, k, v)


def _check_kernel(
    candidate: Candidate,
    fixture: Fixture,
    *,
    mesh: Mesh,
    made_by: MadeBy,
    precision: Precision,
) -> Check:
    """The kernel of the trials at their precision, sharded, beside itself on the whole sequence.

    Both are compared with fp64. What rounds the sum of partial outputs, or the gradients on the
    wire, too early is farther from it than the kernel itself.
    """
    dtype = _DTYPES[precision]
    inputs = [x.to(dtype) for x in _inputs(fixture, mesh)]
    cp = context_parallel(
        candidate,
        fixture,
        mesh=mesh,
        made_by=made_by,
        docs=fixture.docs,
        kernel=candidate.kernel,
    )
    alone = ContextParallel(
        None,
        seq_len=fixture.seq_len,
        mask=fixture.workload.mask.value,
        docs=fixture.docs or None,
        kernel=candidate.kernel,
    )
    wanted = _whole([x.double() for x in inputs], hidden_pairs(fixture, fixture.docs))
    local = [cp.shard(x, dim=1) for x in inputs]
    q, k, v = (x.requires_grad_() for x in local[:3])
    out = cp.attend(q, k, v)
    found = [out.detach(), *torch.autograd.grad(out, (q, k, v), local[3])]
    at, bound, worst = _own(cp, fixture), 0.0, 0.0
    for seen, own, whole in zip(found, _sharded(alone, inputs), wanted, strict=True):
        scale = magnitude(whole)
        worst = max(worst, magnitude(seen[:, cp.valid].double() - whole[:, at]) / scale)
        bound = max(bound, magnitude(own[:, alone.valid].double() - whole) / scale)
    return Check(
        name=f"kernel {cp.kernel} in {precision.value}, relative",
        max_error=worst,
        tolerance=_KERNEL_SLACK * max(bound, torch.finfo(dtype).eps),
    )
