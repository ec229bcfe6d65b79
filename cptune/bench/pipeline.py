"""Running the micro-batches of a step through the chunks: in a loop, or through a pipeline.

Both give the same gradients. The pipeline is torch.distributed.pipelining's 1F1B, interleaved where
a rank holds several chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from cptune.bench.collectives import named, recorded_messages
from cptune.bench.decoder import Context, Decoder
from cptune.bench.device import CPU, RankDevice
from cptune.bench.readings import Clock, Reading
from cptune.bench.recorder import Recorder

#: (what the last chunk returned, labels) -> this micro-batch's part of the loss.
LossOf = Callable[[Tensor, Tensor], Tensor]
#: A context that counts the memory of what runs inside under a name.
Phase = Callable[[str], AbstractContextManager[None]]


class Runner(Protocol):
    """Runs forward and backward of all micro-batches and leaves the gradients."""

    @property
    def idle_s(self) -> float:
        """Seconds of the last run in which this rank had nothing to compute: the bubble."""
        ...

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
        self.recorder: Recorder | None = None

    def run(self, tokens_BS: Tensor, labels_BS: Tensor, contexts: Sequence[Context]) -> Tensor:
        """Forward and backward of every micro-batch."""
        total = labels_BS.new_zeros((), dtype=torch.float64)
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

    @property
    def idle_s(self) -> float:
        """Nothing stands between the micro-batches."""
        return 0.0


class _TimedStage(PipelineStage):
    """A stage that counts the time and the memory of its own compute."""

    def __init__(
        self,
        model: Decoder,
        *args: Any,  # noqa: ANN401
        phase: Phase,
        clock: Clock,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(model, *args, **kwargs)
        self.model, self._phase, self._clock = model, phase, clock
        self.busy: list[tuple[Reading, Reading]] = []
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
        return named(name, ops)

    def _timed(self, phase: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        start = self._clock.now()
        with self._phase(phase):
            out = run(*args, **kwargs)
        self.busy.append((start, self._clock.now()))
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
        device: RankDevice = CPU,
    ) -> None:
        self._clock = clock = device.clock
        rank, size = group.rank(), group.size()
        self._stages = [
            _TimedStage(
                model,
                rank + size * position,
                size * len(chunks),
                device.torch,
                group=group,
                phase=phase,
                clock=clock,
            )
            for position, model in enumerate(chunks)
        ]
        self._has_first = any(model.chunk.is_first for model in chunks)
        self._has_last = any(model.chunk.is_last for model in chunks)

        def timed_loss(x_BSE: Tensor, labels_BS: Tensor) -> Tensor:
            start = clock.now()
            with phase("forward"):
                loss = loss_of(x_BSE, labels_BS)
            self._stages[-1].busy.append((start, clock.now()))
            return loss

        self._schedule: Any = (
            Schedule1F1B(self._stages[0], micro_batches, loss_fn=timed_loss, scale_grads=False)
            if len(chunks) == 1
            else ScheduleInterleaved1F1B(
                [*self._stages], micro_batches, loss_fn=timed_loss, scale_grads=False
            )
        )
        self._span: tuple[Reading, Reading] | None = None
        self.recorder: Recorder | None = None

    @property
    def idle_s(self) -> float:
        """As Runner.idle_s; the readings of a device must have settled."""
        at, spans = self._clock.seconds, [span for stage in self._stages for span in stage.busy]
        if self._span is None:
            return 0.0
        whole_s = at(self._span[1]) - at(self._span[0])
        return whole_s - sum(at(stop) - at(start) for start, stop in spans)

    def run(self, tokens_BS: Tensor, labels_BS: Tensor, contexts: Sequence[Context]) -> Tensor:
        """One step of the schedule."""
        for stage in self._stages:
            stage.busy.clear()
            stage.contexts = contexts
            stage.model.context = contexts[0]  # for the first step, which learns the shapes
        losses: list[Tensor] = []
        ends = {"target": labels_BS, "losses": losses} if self._has_last else {}
        start = self._clock.now()
        with nullcontext() if self.recorder is None else recorded_messages(self.recorder):
            self._schedule.step(*([tokens_BS] if self._has_first else []), **ends)
        self._span = start, self._clock.now()
        total = labels_BS.new_zeros((), dtype=torch.float64)
        for loss in losses:
            total += loss.detach()
        return total
