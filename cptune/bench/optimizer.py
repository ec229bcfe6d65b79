"""AdamW on what this rank owns, with full-precision masters, replicated or sharded over replicas.

`ddp` sums gradients and updates every replica alike; `zero1` shards the optimizer's state over the
replicas (torch's ZeroRedundancyOptimizer); under `fsdp` parameters, gradients and state are sharded
already and each rank updates its own part.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from cptune.bench.mesh import Mesh
from cptune.bench.sharding import ReplicaClock
from cptune.domain.candidate import DataParallelKind

with warnings.catch_warnings():
    # Its package compiles other optimizers with torch.jit, which torch itself deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer

LEARNING_RATE = 1e-3


@dataclass(slots=True, kw_only=True)
class _Owned:
    """A parameter, the local master that is updated, and on how many ranks it is the same."""

    parameter: nn.Parameter
    master: nn.Parameter
    copies: int
    gradient: Tensor | None = None


class _TimedZero(ZeroRedundancyOptimizer):
    """AdamW whose updated parameters are sent round in sight of the clock."""

    def __init__(
        self,
        masters: list[nn.Parameter],
        *,
        clock: ReplicaClock,
        group: dist.ProcessGroup,
        update: Mapping[str, Any],
    ) -> None:
        super().__init__(
            masters,
            optimizer_class=torch.optim.AdamW,
            process_group=group,
            lr=LEARNING_RATE,
            **update,
        )
        self._replica_clock, self._replicas = clock, group
        self._size_bytes = sum(master.nbytes for master in masters)

    def _sync_params(self) -> None:
        clock = self._replica_clock
        with clock.timed("send weights round", self._replicas, size_bytes=self._size_bytes):
            if clock.moves:
                super()._sync_params()  # pyrefly: ignore[missing-attribute] - torch hides it


class Optimizer:
    """The gradients and the update of one rank.

    Args:
        parameters: All parameters of this rank's chunks.
        mesh: This rank's groups.
        kind: What the replicas share out.
        clock: Counts the seconds of collectives over the replicas.
        update: How AdamW updates, in torch's words.
        keep: Told of every gradient that stays until the update.
    """

    def __init__(
        self,
        parameters: Iterator[nn.Parameter],
        *,
        mesh: Mesh,
        kind: DataParallelKind,
        clock: ReplicaClock,
        update: Mapping[str, Any],
        keep: Callable[[Tensor | None], None],
    ) -> None:
        self._mesh, self._kind, self._clock, self._keep = mesh, kind, clock, keep
        self._owned = [self._own(parameter) for parameter in parameters]
        masters = [owned.master for owned in self._owned]
        self._adamw: torch.optim.Optimizer
        if kind is DataParallelKind.ZERO1:
            self._adamw = _TimedZero(
                masters,
                clock=clock,
                group=mesh.replicas,
                update=update,
            )
        else:
            self._adamw = torch.optim.AdamW(masters, lr=LEARNING_RATE, **update)
        self._watch_gradients()

    def collect_gradients(self) -> None:
        """Bring every gradient to its master, summed over the replicas. Collective."""
        for owned in self._owned:
            if owned.gradient is None:
                owned.gradient = self._local_gradient(owned.parameter)
            owned.parameter.grad = None
            self._keep(owned.gradient)
        if self._kind is not DataParallelKind.FSDP:
            self._sum_over_replicas()
        for owned in self._owned:
            owned.master.grad, owned.gradient = owned.gradient, None

    @property
    def gradients(self) -> list[Tensor]:
        """This rank's part of each summed gradient, in the order of the parameters."""
        masters = (owned.master for owned in self._owned)
        return [torch.zeros_like(one) if one.grad is None else one.grad for one in masters]

    def gradient_norm(self) -> float:
        """The norm over all parameters of the job. Collective over all its ranks."""
        square = self._owned[0].master.new_zeros((), dtype=torch.float64)
        for owned in self._owned:
            if owned.master.grad is not None:
                square += owned.master.grad.double().square().sum() / owned.copies
        self._clock.sum_everywhere(square, name="gradient norm")
        return square.sqrt().item()

    def step(self) -> None:
        """Update the masters and, where they are copies, the parameters; forget the gradients."""
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        with torch.no_grad():
            for owned in self._owned:
                local = _local(owned.parameter.data)
                if local.data_ptr() != owned.master.data_ptr():
                    local.copy_(owned.master)

    def _own(self, parameter: nn.Parameter) -> _Owned:
        local = _local(parameter.data)
        full = local.float() if local.dtype.itemsize < 4 else local
        layout = self._mesh.layout
        copies = 1 if self._kind is DataParallelKind.FSDP else layout.dp * layout.cp
        if not _is_cut_over_tp(parameter, self._mesh):
            copies *= layout.tp
        return _Owned(parameter=parameter, master=nn.Parameter(full), copies=copies)

    def _watch_gradients(self) -> None:
        """Add the gradient of each micro-batch in fp32 where the parameter is of a half type.

        Torch keeps these hooks where the garbage collector does not look: one that held a
        parameter, or what holds it, would keep the weights and the groups of every trial.
        """
        keep, optimizer = self._keep, weakref.ref(self)

        def add(index: int, _: Tensor) -> None:
            if (alive := optimizer()) is not None:
                alive._add(alive._owned[index])

        def tag(parameter: Tensor) -> None:
            keep(parameter.grad)

        for index, owned in enumerate(self._owned):
            half = owned.parameter.dtype.itemsize < 4
            hook = partial(add, index) if half else tag
            owned.parameter.register_post_accumulate_grad_hook(hook)

    def _add(self, owned: _Owned) -> None:
        gradient = self._local_gradient(owned.parameter)
        owned.parameter.grad = None
        owned.gradient = gradient if owned.gradient is None else owned.gradient.add_(gradient)
        self._keep(owned.gradient)

    def _local_gradient(self, parameter: nn.Parameter) -> Tensor:
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
            # The gradient of a sharded embedding arrives whole on every tp rank.
            gradient = gradient.redistribute(placements=parameter.placements)
        local = _local(gradient)
        return local.float() if local.dtype.itemsize < 4 else local

    def _sum_over_replicas(self) -> None:
        gradients = [owned.gradient for owned in self._owned if owned.gradient is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self._clock.sum(flat, self._mesh.replicas, name="sum gradients")
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, summed in zip(gradients, parts, strict=True):
            gradient.copy_(summed.view_as(gradient))


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor; a view, so writes reach it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _is_cut_over_tp(parameter: nn.Parameter, mesh: Mesh) -> bool:
    """Whether tp ranks hold different parts: the tp axis comes last in a parameter's mesh."""
    if mesh.tp is None or not isinstance(parameter, DTensor):
        return False
    names = parameter.device_mesh.mesh_dim_names or ()
    return "tp" in names and isinstance(parameter.placements[names.index("tp")], Shard)
