"""Tells a recorder which layer a rank works on, by hooks that stay for one step."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cptune.bench.decoder import Decoder
from cptune.bench.recorder import Recorder

_FORWARD, _BACKWARD, _BESIDE = "forward", "backward", "beside the layers"


@contextmanager
def layers_told(chunks: Sequence[Decoder], recorder: Recorder) -> Generator[None]:
    """Inside, the recorder knows the layer of what runs, in forward and in backward.

    Backward of a layer begins when the gradient of its output is there, and ends where that of its
    input is: there the next begins, or what stands before the first.
    """
    with ExitStack() as stack:
        for chunk in chunks:
            for place, (name, block) in enumerate(chunk.blocks.items()):
                for handle in _hooks(block, int(name), recorder, is_first=place == 0):
                    stack.callback(handle.remove)
        yield


def _hooks(
    block: nn.Module, layer: int, recorder: Recorder, *, is_first: bool
) -> list[RemovableHandle]:
    def leave_backward(_: Tensor) -> None:
        recorder.work_on(_BESIDE, None)

    def enter(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        recorder.work_on(_FORWARD, layer)
        if is_first and inputs[0].requires_grad:
            inputs[0].register_hook(leave_backward)

    def enter_backward(_: Tensor) -> None:
        recorder.work_on(_BACKWARD, layer)

    def leave(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> None:
        recorder.work_on(_BESIDE, None)
        if out.requires_grad:
            out.register_hook(enter_backward)

    return [block.register_forward_pre_hook(enter), block.register_forward_hook(leave)]
