"""What torch posts by itself, told to a recorder: DTensor's collectives, a pipeline's messages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules

from cptune.bench.recorder import Recorder, Transfer, Waitable
from cptune.domain.layout import Axis
from cptune.domain.timeline import Stamp

_WAIT = "wait_tensor"


class TensorCollectives:
    """Stands around each of DTensor's collectives, which are an operator and, later, a wait.

    When its tensor is there is not known before the wait returns: no work can be had of them.

    Args:
        recorder: Told of them.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._posted: dict[int, Transfer] = {}

    def around(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """What to call instead of an operator of `_c10d_functional`."""
        name = str(getattr(func, "_opname", func))
        if name.startswith("_wrap"):  # of what was launched; nothing moves
            return func
        return self._waited(func) if name == _WAIT else self._launched(func, name)

    def _launched(self, func: Callable[..., Any], name: str) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the operator
            group = next(word for word in reversed(args) if isinstance(word, str))
            transfer = self._recorder.post(
                name, axis=self._recorder.axis_of(group), size_bytes=0, channel=group
            )
            out = func(*args, **kwargs)
            transfer.bytes = max(_bytes(args[0]), _bytes(out))
            for tensor in out if isinstance(out, (list, tuple)) else [out]:
                self._posted[tensor.untyped_storage()._cdata] = transfer
            return out

        return launch

    def _waited(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def wait(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            transfer = self._posted.pop(tensor.untyped_storage()._cdata, None)
            if transfer is None:
                return func(tensor, *args, **kwargs)
            with self._recorder.standing_still(transfer):
                out = func(tensor, *args, **kwargs)
            transfer.end(self._recorder.now(), Stamp.WAIT_RETURN)
            return out

        return wait


class CutCollectives:
    """Leaves DTensor's collectives out: what should come is made of what this rank has.

    One that is not known is run; `kept` names it, and the step is then no step without transfers.
    """

    def __init__(self) -> None:
        self.kept: set[str] = set()

    def around(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """What to call instead of an operator of `_c10d_functional`."""
        name = str(getattr(func, "_opname", func))
        if name == _WAIT or name.startswith("_wrap"):
            return func
        if name not in _LOCAL:
            self.kept.add(name)
        return _LOCAL.get(name, func)


def _reduced(tensor: torch.Tensor, *_: object) -> torch.Tensor:
    return tensor.clone()


def _gathered(tensor: torch.Tensor, group_size: int, *_: object) -> torch.Tensor:
    return torch.cat([tensor] * group_size)


def _scattered(tensor: torch.Tensor, _: str, group_size: int, *__: object) -> torch.Tensor:
    return tensor.chunk(group_size)[0].clone()


_LOCAL: dict[str, Callable[..., torch.Tensor]] = {
    "all_reduce": _reduced,
    "all_gather_into_tensor": _gathered,
    "reduce_scatter_tensor": _scattered,
}


def _bytes(found: object) -> int:
    tensors = found if isinstance(found, (list, tuple)) else [found]
    return sum(one.nbytes for one in tensors if isinstance(one, torch.Tensor))


def watch_all(
    recorder: Recorder, works: Sequence[Waitable], posted: Sequence[Transfer]
) -> list[Waitable]:
    """The works of a batch in sight of a recorder: one for each message, or one for them all."""
    if len(works) == len(posted):
        return [recorder.watch(work, one) for work, one in zip(works, posted, strict=True)]
    assert len(works) == 1, f"{len(works)} works for {len(posted)} messages"
    return [recorder.watch(works[0], *posted)]


@contextmanager
def recorded_messages(recorder: Recorder) -> Generator[None]:
    """Inside, the batches that pipeline stages post are posted in sight of a recorder.

    The schedule posts them by a function of its module and keeps what it returns, which is the only
    place where the works of a batch can be had: a backend may join them to one.
    """
    plain = schedules._batch_p2p

    def post(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[Any]:
        posted = [_message(recorder, op) for op in p2p_ops]
        return watch_all(recorder, plain(p2p_ops, desc), posted) if p2p_ops else []

    schedules._batch_p2p = post
    try:
        yield
    finally:
        schedules._batch_p2p = plain


def named(name: str, ops: list[dist.P2POp]) -> list[dist.P2POp]:
    """The same messages between pipeline stages, with a word for what they carry."""
    for op in ops:
        op.carries = name  # pyrefly: ignore[missing-attribute] - read by `_message` alone
    return ops


def _message(recorder: Recorder, op: dist.P2POp) -> Transfer:
    own, peer = dist.get_rank(), dist.get_process_group_ranks(op.group)[op.group_peer]
    source, to = (own, peer) if op.op is dist.isend else (peer, own)
    return recorder.post(
        getattr(op, "carries", "shapes"),
        axis=Axis.PP.value,
        size_bytes=op.tensor.nbytes,
        channel=f"pipeline {source}>{to}",
        peer=peer,
    )
