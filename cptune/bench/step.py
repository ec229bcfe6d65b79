"""One optimizer step on one rank: micro-batches, the token-weighted loss, the gradient sum, AdamW.

The loss is the sum over this rank's valid tokens divided by the count of valid tokens of the whole
global batch, so gradients are summed, not averaged, over DP x CP; a rank without a valid token
adds zero, never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from cptune.attention import ContextParallel
from cptune.bench.attention import MeasuredContextParallel
from cptune.bench.batch import IGNORED, Sample
from cptune.bench.decoder import Attend, Chunk, Decoder, initialise
from cptune.bench.device import CPU, RankDevice
from cptune.bench.loss import summed_loss
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import Mesh
from cptune.bench.optimizer import Optimizer
from cptune.bench.packs import Packs
from cptune.bench.parts import Part
from cptune.bench.pipeline import Loop, Pipeline, Runner
from cptune.bench.readings import Stalls
from cptune.bench.sharding import ReplicaClock, cut_tensors, shard_fully
from cptune.domain.candidate import Candidate, DataParallelKind
from cptune.domain.layout import Axis
from cptune.domain.workload import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step came to on this rank. `loss` and `grad_norm` are of the whole job.

    `tp_exposed_s` is None where the waits of tensor-parallel collectives could not be seen.
    """

    loss: float
    grad_norm: float
    start_s: float
    seconds: float
    tp_exposed_s: float | None
    cp_exposed_s: float
    dp_exposed_s: float
    pp_exposed_s: float


class TrainStep:
    """Everything that stays between the steps of one rank.

    Args:
        candidate: The recipe that is tried.
        shape: Sizes of the whole model.
        mesh: This rank's groups.
        cp: The context-parallel attention that the model calls.
        memory: The budget that the step runs under.
        seed: What the weights depend on, alone.
        dtype: The type to compute in; masters are fp32 or better.
        micro_batches: Passes of a step.
        device: What the rank computes on.
    """

    def __init__(  # noqa: PLR0913 - one argument for each thing that a trial fixes
        self,
        candidate: Candidate,
        *,
        shape: ModelShape,
        mesh: Mesh,
        cp: ContextParallel,
        memory: TensorBudget,
        seed: int,
        dtype: torch.dtype,
        micro_batches: int,
        device: RankDevice = CPU,
    ) -> None:
        self._candidate, self._mesh, self.cp, self._memory = candidate, mesh, cp, memory
        self._device, self._stalls = device, Stalls(device.clock)
        self._clock = ReplicaClock(device, self._stalls)
        if isinstance(cp, MeasuredContextParallel):
            cp.stalls = self._stalls
        #: What one attention call keeps for backward, the largest of all calls.
        self.attention_saved_bytes = 0
        self._valid = 1.0
        self.packs = Packs(
            cp, row_multiple=mesh.layout.tp, watch=self._watched, device=device.torch
        )
        self.chunks = [
            self._build(chunk, shape=shape, seed=seed, dtype=dtype)
            for chunk in _own_chunks(shape, mesh)
        ]
        self.optimizer = Optimizer(
            (parameter for chunk in self.chunks for parameter in chunk.parameters()),
            mesh=mesh,
            kind=candidate.data_parallel,
            clock=self._clock,
            update=device.adamw,
            keep=lambda gradient: memory.tag(gradient, Part.STATES),
        )
        self._runner = self._build_runner(micro_batches)
        memory.adopt(Part.STATES)

    def _build(self, chunk: Chunk, *, shape: ModelShape, seed: int, dtype: torch.dtype) -> Decoder:
        whole = self.packs.whole
        model = Decoder(
            shape,
            chunk=chunk,
            attend=whole.attend,
            positions_S=whole.positions_BS[0],
            recompute=self._candidate.recompute,
        )
        is_fsdp = self._candidate.data_parallel is DataParallelKind.FSDP
        # FSDP2 keeps the masters itself and casts what it gathers.
        model = model.to(torch.float32 if is_fsdp and dtype.itemsize < 4 else dtype)
        initialise(model, seed=seed)
        if self._mesh.tp is not None:
            cut_tensors(model, self._mesh.tp, shape)
        if is_fsdp:
            shard_fully(model, mesh=self._mesh.replica_mesh, clock=self._clock, compute=dtype)
        # What is cut goes to the device part by part: the whole may not fit there.
        is_cut = is_fsdp or self._mesh.tp is not None
        return model if is_cut else model.to(self._device.torch)

    def _watched(self, attend: Attend) -> Attend:
        """Attention that tells what it keeps for backward."""

        def watched(q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> Tensor:
            before = self._memory.parts.saved_bytes
            out_BSHD = attend(q_BSHD, k_BSKD, v_BSKD)
            saved = self._memory.parts.saved_bytes - before
            self.attention_saved_bytes = max(self.attention_saved_bytes, saved)
            return out_BSHD

        return watched

    def _build_runner(self, micro_batches: int) -> Runner:
        phase = self._memory.phase
        if self._mesh.pp is None:
            return Loop(
                self.chunks[0],
                loss_of=self._loss_of,
                micro_batch=self._candidate.micro_batch,
                phase=phase,
            )
        return Pipeline(
            self.chunks,
            group=self._mesh.pp,
            micro_batches=micro_batches,
            loss_of=self._loss_of,
            phase=phase,
            device=self._device,
        )

    @property
    def candidate(self) -> Candidate:
        """The recipe that is tried."""
        return self._candidate

    @property
    def device(self) -> RankDevice:
        """What the rank computes on."""
        return self._device

    @property
    def clock(self) -> ReplicaClock:
        """Times what the replicas exchange."""
        return self._clock

    @property
    def runner(self) -> Runner:
        """Runs the micro-batches."""
        return self._runner

    def run(self, samples: Sequence[Sample]) -> StepResult:
        """Train on this data-parallel group's samples of one global batch.

        Their documents are planned here unless `packs.prepare` did it before: planning is the
        loader's work, and not timed by those who call it first.
        """
        self._stalls.forget()
        start_s, tp_s = self._device.clock.restart(), self._memory.collective_s
        waits = nullcontext()
        if self._candidate.data_parallel is DataParallelKind.FSDP:
            waits = self._device.seeing_waits(self._clock.waiting_beside)
        with waits:
            loss = self.compute_gradients(samples)
            with self._memory.phase("optimizer", keeps=Part.STATES):
                norm = self.optimizer.gradient_norm()
                self.optimizer.step()
        stop_s = self._device.clock.settle()
        sees_tp = self._device.host_sees_transfers or self._mesh.tp is None
        return StepResult(
            loss=loss,
            grad_norm=norm,
            start_s=start_s,
            seconds=stop_s - start_s,
            tp_exposed_s=self._memory.collective_s - tp_s if sees_tp else None,
            cp_exposed_s=self._stalls.seconds(Axis.CP.value),
            dp_exposed_s=self._stalls.seconds(Axis.DP.value),
            pp_exposed_s=self._runner.idle_s,
        )

    def compute_gradients(self, samples: Sequence[Sample]) -> float:
        """Leave the summed gradients on the masters; returns the loss of the whole job."""
        packs = [sample.docs for sample in samples]
        self.packs.prepare(packs)
        tokens_BS, labels_BS = self.packs.shard(samples)
        valid = (labels_BS != IGNORED).sum().to(torch.float64)
        self._clock.sum(valid, self._mesh.replicas, name="count tokens")
        self._valid = max(1.0, valid.item())
        with self._vocabulary_sharded():
            loss = self._runner.run(
                tokens_BS,
                labels_BS,
                self.packs.contexts(packs, micro_batch=self._candidate.micro_batch),
            )
        with self._memory.phase("gradients"):
            self.optimizer.collect_gradients()
        # Every tp rank of the last stage holds the same loss; the other stages hold none.
        loss /= self._mesh.layout.tp
        self._clock.sum_everywhere(loss, name="loss")
        return loss.item()

    def _loss_of(self, x_BSE: Tensor, labels_BS: Tensor) -> Tensor:
        last, kind = self.chunks[-1], self._candidate.loss
        rows_BSE = last.to_head(x_BSE)
        with self._memory.born_as(Part.LOGITS):
            loss = summed_loss(last, rows_BSE, labels_BS, kind=kind) / self._valid
            loss = loss.to_local() if isinstance(loss, DTensor) else loss
        self._memory.mark_loss(x_BSE, loss)
        return loss

    def _vocabulary_sharded(self) -> AbstractContextManager[None]:
        return nullcontext() if self._mesh.tp is None else loss_parallel()


def _own_chunks(shape: ModelShape, mesh: Mesh) -> list[Chunk]:
    layout = mesh.layout
    parts = layout.stage_layers(shape.layers)
    return [
        Chunk(layers=parts[stage], is_first=stage == 0, is_last=stage == len(parts) - 1)
        for stage in range(mesh.at.pp, len(parts), layout.pp)
    ]
