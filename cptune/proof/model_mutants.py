"""Wrong training steps: something else in the place of one function while the checks run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Partial, Replicate

from cptune.attention import ContextParallel
from cptune.bench import optimizer, packs, sharding
from cptune.bench.batch import Documents
from cptune.bench.decoder import Attend, Block, Context
from cptune.proof.planting import put


def kv_gradients_not_summed() -> AbstractContextManager[None]:
    """Kv heads that several tensor ranks share keep each rank's own gradient."""

    def own_rows(own: slice, x_BSE: DTensor, weight: DTensor) -> tuple[Tensor, Tensor]:
        whole = weight.to_local(grad_placements=[Replicate()])
        return x_BSE.to_local(grad_placements=[Partial()]), whole[own]

    return put(sharding, "_own_rows", own_rows)


def norm_gradients_not_summed() -> AbstractContextManager[None]:
    """Norms, whose rows tensor ranks share out, keep the gradient of their own rows."""
    honest = optimizer.Optimizer._local_gradient

    def local_gradient(self: optimizer.Optimizer, parameter: nn.Parameter) -> Tensor:
        if parameter.dim() == 1 and isinstance(parameter.grad, DTensor):
            return parameter.grad.to_local()
        return honest(self, parameter)

    return put(optimizer.Optimizer, "_local_gradient", local_gradient)


def documents_of_another_sample() -> AbstractContextManager[None]:
    """Each sequence attends by the documents of the next one."""
    honest = packs.Packs.contexts

    def contexts(
        self: packs.Packs, docs: Sequence[Documents], *, micro_batch: int
    ) -> list[Context]:
        return honest(self, [*docs[1:], docs[0]], micro_batch=micro_batch)

    return put(packs.Packs, "contexts", contexts)


def recompute_with_the_attention_of_another_pass() -> AbstractContextManager[None]:
    """What is computed again attends as the block's first pass did."""
    honest, latest = Block._both, dict[int, Attend]()

    def both(self: Block, x_BSE: Tensor, rotation_BSD: Tensor, attend: Attend) -> Tensor:
        return honest(self, x_BSE, rotation_BSD, latest.setdefault(id(self), attend))

    return put(Block, "_both", both)


def padded_rows_attended() -> AbstractContextManager[None]:
    """The output of a rank's rows is that of the row before, the padded one among them."""

    def within(cp: ContextParallel, *, rows: int) -> Attend:
        def attend(q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> Tensor:
            q, k, v = (x[:, : cp.local_len] for x in (q_BSHD, k_BSKD, v_BSKD))
            padded = packs.pad(cp.attend(q, k, v), (0, 0, 0, 0, 0, 1))
            return torch.roll(padded, 1, 1)[:, :rows]

        return attend

    return put(packs, "_within", within)


def loss_averaged_by_rank() -> AbstractContextManager[None]:
    """The loss is divided by the tokens of a rank, not by those of the whole batch."""

    honest = sharding.ReplicaClock.sum

    def alone(
        self: sharding.ReplicaClock, tensor: Tensor, group: ProcessGroup, *, name: str
    ) -> None:
        if name != "count tokens":
            honest(self, tensor, group, name=name)

    return put(sharding.ReplicaClock, "sum", alone)
