"""One optimizer step on one rank: micro-batches, the token-weighted loss, the gradient sum, AdamW.

The loss is the sum over this rank's valid tokens divided by the count of valid tokens of the whole
global batch, so gradients are summed, not averaged, over DP x CP; a rank without a valid token
adds zero, never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from cptune.attention import ContextParallel
from cptune.bench.batch import IGNORED
from cptune.bench.decoder import Decoder
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import Mesh

Sample = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step came to on this rank. `loss` and `grad_norm` are of the whole job."""

    loss: float
    grad_norm: float
    seconds: float
    tp_exposed_s: float
    cp_exposed_s: float
    dp_exposed_s: float


class TrainStep:
    """Everything that stays between the steps of one rank.

    Args:
        model: This rank's part of the model.
        mesh: This rank's groups.
        cp: The context-parallel attention that the model calls.
        micro_batch: Sequences of one pass.
        memory: The budget that the step runs under.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        mesh: Mesh,
        cp: ContextParallel,
        micro_batch: int,
        memory: TensorBudget,
    ) -> None:
        self._model, self._mesh, self._cp = model, mesh, cp
        self._micro_batch, self._memory = micro_batch, memory
        self._dp_s = 0.0
        sharded: list[Tensor] = []
        whole: list[Tensor] = []
        for parameter in model.parameters():
            (sharded if isinstance(parameter, DTensor) else whole).append(parameter)
        groups = [{"params": group} for group in (sharded, whole) if group]
        self._optimizer = torch.optim.AdamW(groups, lr=1e-3, foreach=False)

    def run(self, samples: Sequence[Sample]) -> StepResult:
        """Train on this data-parallel group's samples of one global batch."""
        start = perf_counter()
        tp_s, cp_s = self._memory.collective_s, self._cp.traffic.wait_s
        self._dp_s = 0.0
        loss = self.compute_gradients(samples)
        with self._memory.phase("optimizer"):
            norm = self.gradient_norm()
            tp_exposed_s = self._memory.collective_s - tp_s
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        return StepResult(
            loss=loss,
            grad_norm=norm,
            seconds=perf_counter() - start,
            tp_exposed_s=tp_exposed_s,
            cp_exposed_s=self._cp.traffic.wait_s - cp_s,
            dp_exposed_s=self._dp_s,
        )

    def compute_gradients(self, samples: Sequence[Sample]) -> float:
        """Leave the summed gradients on the parameters; returns the loss of the whole job."""
        passes = [
            self._shard(samples[first : first + self._micro_batch])
            for first in range(0, len(samples), self._micro_batch)
        ]
        counts = torch.stack([(labels_BS != IGNORED).sum() for _, labels_BS in passes])
        valid = counts.sum().to(torch.float64)
        self._sum_over_replicas(valid)
        loss = torch.zeros((), dtype=torch.float64)
        for tokens_BS, labels_BS in passes:
            loss += self._pass(tokens_BS, labels_BS, valid.item())
        with self._memory.phase("gradients"):
            self._sum_gradients()
        self._sum_over_replicas(loss)
        return loss.item()

    def _shard(self, samples: Sequence[Sample]) -> Sample:
        tokens_BT = torch.stack([tokens_T for tokens_T, _ in samples])
        labels_BT = torch.stack([labels_T for _, labels_T in samples])
        labels_BS = self._cp.shard(labels_BT, dim=1)
        padded_BS = labels_BS.masked_fill(~self._cp.valid, IGNORED)
        return self._cp.shard(tokens_BT, dim=1), padded_BS

    def _pass(self, tokens_BS: Tensor, labels_BS: Tensor, valid: float) -> float:
        with self._vocabulary_sharded():
            with self._memory.phase("forward"):
                logits_BSV = self._model(tokens_BS, self._cp.positions)
                loss = torch.nn.functional.cross_entropy(
                    logits_BSV.flatten(0, 1),
                    labels_BS.flatten(),
                    ignore_index=IGNORED,
                    reduction="sum",
                ) / max(valid, 1.0)
                del logits_BSV
            with self._memory.phase("backward"):
                loss.backward()
        return _local(loss.detach()).item()

    def _vocabulary_sharded(self) -> AbstractContextManager[None]:
        return nullcontext() if self._mesh.tp is None else loss_parallel()

    def _sum_gradients(self) -> None:
        for parameter in self._model.parameters():
            # The gradient of a sharded embedding arrives whole on every tp rank.
            if isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor):
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
        grads = [_local(p.grad) for p in self._model.parameters() if p.grad is not None]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        self._sum_over_replicas(flat)
        sizes = [grad.numel() for grad in grads]
        for grad, summed in zip(grads, flat.split(sizes), strict=True):
            grad.copy_(summed.view_as(grad))

    def _sum_over_replicas(self, tensor: Tensor) -> None:
        start = perf_counter()
        dist.all_reduce(tensor, group=self._mesh.replicas)
        self._dp_s += perf_counter() - start

    def gradient_norm(self) -> float:
        """The norm over all parameters of the job; sharded ones are summed over tp. Collective."""
        whole, sharded = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for parameter in self._model.parameters():
            if parameter.grad is None:
                continue
            square = _local(parameter.grad).double().square().sum()
            (sharded if isinstance(parameter, DTensor) else whole).add_(square)
        if self._mesh.tp is not None:
            start = perf_counter()
            dist.all_reduce(sharded, group=self._mesh.tp.get_group())
            self._memory.collective_s += perf_counter() - start
        return (whole + sharded).sqrt().item()


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor; a view, so writes reach it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
