"""Running the micro-batches of a step through the chunks: in a loop, or through a pipeline.

Both give the same gradients. The pipeline is torch.distributed.pipelining's 1F1B, interleaved where
a rank holds several chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from cptune.bench.collectives import recorded_message
from cptune.bench.decoder import Context, Decoder
from cptune.bench.recorder import Recorder

#: (what the last chunk returned, labels) -> this micro-batch's part of the loss.
LossOf = Callable[[Tensor, Tensor], Tensor]
#: A context that counts the memory of what runs inside under a name.
Phase = Callable[[str], AbstractContextManager[None]]


class Runner(Protocol):
    """Runs forward and backward of all micro-batches and leaves the gradients."""

    #: Seconds of the last run in which this rank had nothing to compute: the bubble.
    idle_s: float
    #: Told of the messages between stages; None: nobody is.
    recorder: Recorder | None

    def run(self, tokens_BS: Tensor, labels_BS: Tensor, contexts: Sequence[Context]) -> Tensor:
        """The loss of this rank's samples; zero where the last chunk is on another rank."""
        ...


class Loop:
    """One chunk, the whole model: micro-batch after micro-batch.

    Args:
        model: The model.
        loss_of: The loss of one micro-batch.
        micro_batch: Sequences of one pass.
        phase: Counts memory.
    """

    def __init__(self, model: Decoder, *, loss_of: LossOf, micro_batch: int, phase: Phase) -> None:
        self._model, self._loss_of = model, loss_of
        self._micro_batch, self._phase = micro_batch, phase
        self.idle_s = 0.0
        self.recorder: Recorder | None = None

    def run(self, tokens_BS: Tensor, labels_BS: Tensor, contexts: Sequence[Context]) -> Tensor:
        """Forward and backward of every micro-batch."""
        total = torch.zeros((), dtype=torch.float64)
        size = self._micro_batch
        passes = zip(contexts, tokens_BS.split(size), labels_BS.split(size), strict=True)
        for context, tokens, labels in passes:
            self._model.context = context
            with self._phase("forward"):
                loss = self._loss_of(self._model(tokens), labels)
            with self._phase("backward"):
                loss.backward()
            total += loss.detach()
        return total


class _TimedStage(PipelineStage):
    """A stage that counts the time and the memory of its own compute."""

    def __init__(self, model: Decoder, *args: Any, phase: Phase, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(model, *args, **kwargs)
        self.model, self._phase = model, phase
        self.busy_s = 0.0
        self.recorder: Recorder | None = None
        self.contexts: Sequence[Context] = ()

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Forward of one micro-batch, whose number comes first."""
        self.model.context = self.contexts[kwargs.get("fwd_chunk_id", args[0] if args else 0)]
        return self._timed("forward", super().forward_one_chunk, *args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Backward of one micro-batch."""
        return self._timed("backward", super().backward_one_chunk, *args, **kwargs)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Messages with the activations of one micro-batch, in."""
        return self._seen("activations", super().get_fwd_recv_ops(fwd_chunk_id))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Messages with the activations of one micro-batch, out."""
        return self._seen("activations, sent", super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Messages with their gradients, in."""
        return self._seen("gradients", super().get_bwd_recv_ops(bwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Messages with their gradients, out."""
        return self._seen("gradients, sent", super().get_bwd_send_ops(bwd_chunk_id))

    def _seen(self, name: str, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        if self.recorder is None:
            return ops
        return [recorded_message(self.recorder, name, op) for op in ops]

    def _timed(self, phase: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        start = perf_counter()
        with self._phase(phase):
            out = run(*args, **kwargs)
        self.busy_s += perf_counter() - start
        return out


class Pipeline:
    """The chunks of this rank in a pipeline over the pp group.

    Args:
        chunks: This rank's chunks, in order of the model; chunk c is stage `rank + pp * c`.
        group: The pp group.
        micro_batches: Passes of a step; at least as many as the group has ranks.
        loss_of: The loss of one micro-batch.
        phase: Counts memory.
    """

    def __init__(
        self,
        chunks: Sequence[Decoder],
        *,
        group: dist.ProcessGroup,
        micro_batches: int,
        loss_of: LossOf,
        phase: Phase,
    ) -> None:
        rank, size = group.rank(), group.size()
        self._stages = [
            _TimedStage(
                model,
                rank + size * position,
                size * len(chunks),
                torch.device("cpu"),
                group=group,
                phase=phase,
            )
            for position, model in enumerate(chunks)
        ]
        self._has_first = any(model.chunk.is_first for model in chunks)
        self._has_last = any(model.chunk.is_last for model in chunks)

        def timed_loss(x_BSE: Tensor, labels_BS: Tensor) -> Tensor:
            start = perf_counter()
            with phase("forward"):
                loss = loss_of(x_BSE, labels_BS)
            self._stages[-1].busy_s += perf_counter() - start
            return loss

        self._schedule: Any = (
            Schedule1F1B(self._stages[0], micro_batches, loss_fn=timed_loss, scale_grads=False)
            if len(chunks) == 1
            else ScheduleInterleaved1F1B(
                [*self._stages], micro_batches, loss_fn=timed_loss, scale_grads=False
            )
        )
        self.idle_s = 0.0
        self.recorder: Recorder | None = None

    def run(self, tokens_BS: Tensor, labels_BS: Tensor, contexts: Sequence[Context]) -> Tensor:
        """One step of the schedule."""
        for stage in self._stages:
            stage.busy_s, stage.recorder = 0.0, self.recorder
            stage.contexts = contexts
            stage.model.context = contexts[0]  # for the first step, which learns the shapes
        losses: list[Tensor] = []
        ends = {"target": labels_BS, "losses": losses} if self._has_last else {}
        start = perf_counter()
        self._schedule.step(*([tokens_BS] if self._has_first else []), **ends)
        self.idle_s = perf_counter() - start - sum(stage.busy_s for stage in self._stages)
        total = torch.zeros((), dtype=torch.float64)
        for loss in losses:
            total += loss.detach()
        return total
