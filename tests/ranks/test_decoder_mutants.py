"""Each way to be wrong on purpose is seen by the comparison with the unsharded model."""

from contextlib import contextmanager

import pytest
from decoder_cases import compare
from torch.distributed.tensor import Replicate

from cptune.bench import optimizer, packs, sharding
from cptune.bench.decoder import Block


@contextmanager
def _patched(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def kv_gradients_not_summed():
    def own_rows(own, x_BSE, weight):
        whole = weight.to_local(grad_placements=[Replicate()])
        return x_BSE.to_local(grad_placements=[sharding.Partial()]), whole[own]

    return _patched(sharding, "_own_rows", own_rows)


def norm_gradients_not_summed():
    honest = optimizer.Optimizer._local_gradient

    def local_gradient(self, parameter):
        if parameter.dim() == 1:
            return optimizer._local(parameter.grad)
        return honest(self, parameter)

    return _patched(optimizer.Optimizer, "_local_gradient", local_gradient)


def documents_of_another_sample():
    honest = packs.Packs.contexts

    def contexts(self, docs, *, micro_batch):
        return honest(self, [*docs[1:], docs[0]], micro_batch=micro_batch)

    return _patched(packs.Packs, "contexts", contexts)


def recompute_with_the_attention_of_another_pass():
    honest, latest = Block._both, {}

    def both(self, x_BSE, rotation_BSD, attend):
        # The first call of a block is the forward pass; the second is the one computed again.
        return honest(self, x_BSE, rotation_BSD, latest.setdefault(id(self), attend))

    return _patched(Block, "_both", both)


def padded_rows_attended():
    def within(cp, *, rows):
        return lambda q, k, v: sharding.torch.roll(
            packs.pad(cp.attend(*(x[:, : cp.local_len] for x in (q, k, v))), (0, 0, 0, 0, 0, 1)),
            1,
            1,
        )[:, :rows]

    return _patched(packs, "_within", within)


MUTANTS = [
    (kv_gradients_not_summed, {"tp": 4}, "causal"),
    (norm_gradients_not_summed, {"tp": 2}, "causal"),
    (documents_of_another_sample, {"cp": 2}, "document"),
    (recompute_with_the_attention_of_another_pass, {"cp": 2, "recompute": "full"}, "document"),
    (padded_rows_attended, {"tp": 2, "cp": 2}, "causal"),
]


@pytest.mark.parametrize(("mutant", "axes", "mask"), MUTANTS, ids=[m[0].__name__ for m in MUTANTS])
def test_a_mutant_is_seen(ranks, mutant, axes, mask):
    world = axes.get("tp", 1) * axes.get("cp", 1)
    case = {"ignored": {}, "sharding": "zigzag", "mask": mask, "axes": axes}
    seen = ranks.run(compare, world=world, mutant=mutant, **case)
    assert max(max(worst.values()) for _, _, worst, _, _ in seen) > 1e-6
