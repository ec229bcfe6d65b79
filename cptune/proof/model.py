"""A candidate's training step beside the unsharded model: loss, gradients, updates, in fp64."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from cptune.attention import ContextParallel
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import Mesh
from cptune.bench.step import TrainStep
from cptune.domain.candidate import Candidate
from cptune.domain.proof import Check
from cptune.domain.workload import AttentionMask
from cptune.proof.fixture import Fixture
from cptune.proof.reference import load_samples, train_whole

#: fp64 sums in another order; a wrong seam, position or missing term is off by 1e-6 and more.
TOLERANCE = 1e-10
_BUDGET_BYTES = 8 << 30

#: Makes the attention of a candidate: `ContextParallel`, or a mutant of it.
MadeBy = Callable[..., ContextParallel]


def context_parallel(
    candidate: Candidate,
    fixture: Fixture,
    *,
    mesh: Mesh,
    made_by: MadeBy,
    kernel: str = "math",
    docs: tuple[int, ...] = (),
) -> ContextParallel:
    """The attention of a candidate on a fixture, by the arguments that its trials give it."""
    if fixture.workload.mask is AttentionMask.DOCUMENT and not docs:
        docs = (fixture.seq_len,)
    return made_by(
        mesh.cp,
        seq_len=fixture.seq_len,
        sharding=candidate.sharding.value,
        mask=fixture.workload.mask.value,
        docs=docs or None,
        strategy=candidate.strategy.value,
        ulysses=candidate.layout.ulysses,
        stages=candidate.stages or None,
        kernel=kernel,
    )


def check_model(
    candidate: Candidate, fixture: Fixture, *, mesh: Mesh, made_by: MadeBy
) -> list[Check]:
    """Train the candidate's layout and the whole model on the same batches. Collective."""
    memory = TensorBudget(_BUDGET_BYTES)
    place = {"dp_rank": mesh.at.dp, "dp_size": mesh.layout.dp}
    with memory:  # counts the first steps of a trial, and leaves the timed ones alone
        step = TrainStep(
            candidate,
            shape=fixture.shape,
            mesh=mesh,
            cp=context_parallel(candidate, fixture, mesh=mesh, made_by=made_by),
            memory=memory,
            seed=fixture.seed,
            dtype=torch.float64,
            micro_batches=fixture.passes,
        )
        loss = step.compute_gradients(load_samples(fixture, **place))
        norm = step.optimizer.gradient_norm()
        gradients = dict(_whole_gradients(step))
        step.optimizer.step()
    for index in range(1, fixture.updates):
        step.run(load_samples(fixture, **place, step=index))
    named = [pair for chunk in step.chunks for pair in chunk.named_parameters()]
    weights = {name: _whole(one.detach()) for name, one in named}
    wanted = train_whole(fixture)
    name = fixture.name
    return [
        Check(name=f"{name}: loss", max_error=_off(loss, wanted.loss), tolerance=TOLERANCE),
        Check(
            name=f"{name}: gradient norm",
            max_error=_off(norm, wanted.gradient_norm),
            tolerance=TOLERANCE,
        ),
        _largest(f"{name}: gradients", gradients, wanted.gradients),
        _largest(f"{name}: weights after {fixture.updates} updates", weights, wanted.weights),
        *_replicas(name, weights, wanted=wanted.weights),
    ]


def _whole_gradients(step: TrainStep) -> Iterable[tuple[str, Tensor]]:
    """Every summed gradient of this rank's chunks, gathered whole. Collective."""
    named = [pair for chunk in step.chunks for pair in chunk.named_parameters()]
    for (name, parameter), gradient in zip(named, step.optimizer.gradients, strict=True):
        if isinstance(parameter, DTensor):
            yield (
                name,
                DTensor.from_local(
                    gradient,
                    parameter.device_mesh,
                    parameter.placements,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                ).full_tensor(),
            )
        else:
            yield name, gradient


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _off(seen: float, wanted: float) -> float:
    return abs(seen - wanted)


def _largest(name: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Check:
    """The largest difference of any tensor, and which has it."""
    errors = {one: magnitude(tensor - wanted[one]) for one, tensor in found.items()}
    where = max(errors, key=lambda one: errors[one])
    return Check(name=name, max_error=errors[where], tolerance=TOLERANCE, where=where)


def _replicas(
    fixture: str, weights: Mapping[str, Tensor], *, wanted: Mapping[str, Tensor]
) -> Iterator[Check]:
    """Every parameter is on some rank, and equal bit by bit on all that have it. Collective."""
    own = {
        name: hashlib.sha256(one.contiguous().numpy().tobytes()).hexdigest()
        for name, one in weights.items()
    }
    every: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(every, own)
    seen: dict[str, set[str]] = {name: set() for name in wanted}
    for digests in every:
        for name, digest in digests.items():
            seen.setdefault(name, set()).add(digest)
    for what, odd in (
        ("every parameter", [name for name, digests in seen.items() if not digests]),
        ("replicas", [name for name, digests in seen.items() if len(digests) > 1]),
    ):
        yield Check(
            name=f"{fixture}: {what}",
            max_error=float(len(odd)),
            tolerance=0.0,
            where=odd[0] if odd else "",
        )


def magnitude(tensor: Tensor) -> float:
    """The largest element without its sign; infinite where one is not finite."""
    if tensor.numel() == 0:
        return 0.0
    return tensor.abs().max().item() if bool(tensor.isfinite().all()) else float("inf")
