"""The sharded step beside plain PyTorch in one process, fp64; what the tests of both share."""

import hashlib
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache

import torch
from torch.distributed.tensor import DTensor

from cptune.attention import ContextParallel
from cptune.bench.batch import IGNORED, Sample, load_sample, sample_ids
from cptune.bench.decoder import Chunk, Context, Decoder, initialise
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import build_mesh
from cptune.bench.step import TrainStep
from cptune.domain.candidate import (
    Candidate,
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
)
from cptune.domain.layout import ParallelLayout
from cptune.domain.workload import AttentionMask, ModelShape, Precision, Workload

SHAPE = ModelShape(layers=4, hidden=24, heads=4, kv_heads=2, head_dim=6, ffn=32, vocab=40)
LENGTHS = (3, 5, 8, 30)  # of documents; the longest fills a sequence
UPDATES = 3


def shape_of(layout):
    """SHAPE with no more layers than the stages need, and two at least."""
    return replace(SHAPE, layers=max(2, layout.pp * layout.vpp))


def workload_of(mask):
    return Workload(
        seq_len=23, global_batch_seqs=4, precision=Precision.FP32, mask=AttentionMask(mask)
    )


def samples_of(*, dp_rank, dp_size, ignored, mask, step=0):
    """One group's samples; `ignored` maps a sample to the (start, stop) that has no loss."""
    workload, found = workload_of(mask), []
    for sample in sample_ids(dp_rank=dp_rank, dp_size=dp_size, global_batch_seqs=4):
        tokens, labels, docs = load_sample(
            sample,
            step=step,
            seed=7,
            workload=workload,
            vocab=SHAPE.vocab,
            lengths=LENGTHS if mask == "document" else (),
        )
        start, stop = ignored.get(sample, (0, 0))
        labels = labels.clone()
        labels[start:stop] = IGNORED
        found.append(Sample(tokens, labels, docs))
    return found


@lru_cache(maxsize=32)
def reference(shape, *, ignored, mask, updates):
    """Loss, gradient norm and gradients of the first step, and the weights after some updates.

    `ignored` is a tuple of its items: a rank is asked for few of these, again and again.
    """
    model = Decoder(
        shape, chunk=Chunk.whole(shape), attend=None, positions_S=torch.arange(23)
    ).double()
    initialise(model, seed=3)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = None
    for step in range(max(1, updates)):
        samples = samples_of(dp_rank=0, dp_size=1, ignored=dict(ignored), mask=mask, step=step)
        labels = torch.stack([one.labels_T for one in samples])
        loss = sum(plain_loss(model, one, mask=mask) for one in samples)
        loss = loss / max(1, int((labels != IGNORED).sum()))
        adamw.zero_grad()
        loss.backward()
        if first is None:
            grads = {name: one.grad.clone() for name, one in model.named_parameters()}
            norm = torch.cat([grad.reshape(-1) for grad in grads.values()]).norm().item()
            first = loss.item(), norm, grads
        if updates:
            adamw.step()
    return *first, {name: one.detach() for name, one in model.named_parameters()}


def plain_loss(model, sample, *, mask):
    """The summed loss of one sequence, by torch's own attention under a mask written out."""
    places = torch.cat([torch.arange(length) for length in sample.docs or (23,)])
    own = torch.repeat_interleave(
        torch.arange(len(sample.docs or (23,))), torch.tensor(sample.docs or (23,))
    )
    seen = torch.ones(23, 23, dtype=torch.bool)
    if mask != "full":
        seen = seen.tril() & (own[:, None] == own[None, :])

    def attend(q_BSHD, k_BSKD, v_BSKD):
        heads = [one.transpose(1, 2) for one in (q_BSHD, k_BSKD, v_BSKD)]
        out = torch.nn.functional.scaled_dot_product_attention(
            *heads, attn_mask=seen, enable_gqa=True
        )
        return out.transpose(1, 2)

    model.context = Context(positions_BS=places[None], attend=attend)
    logits = model.head(model(sample.tokens_T[None]))
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), sample.labels_T, ignore_index=IGNORED, reduction="sum"
    )


def layout_of(axes):
    names = ("tp", "cp", "pp", "vpp", "dp", "ulysses")
    return ParallelLayout(**{name: axes[name] for name in names if name in axes})


def compare(*, axes, ignored, sharding, mask, updates=0, mutant=nullcontext):
    """On every rank: the largest differences from the reference, and digests of the weights."""
    layout = layout_of(axes)
    candidate = Candidate(
        layout=layout,
        sharding=ShardingKind(sharding),
        micro_batch=axes.get("micro_batch", 1),
        recompute=Recompute(axes.get("recompute", "none")),
        loss=LossKind(axes.get("loss", "full")),
        data_parallel=DataParallelKind(axes.get("data_parallel", "ddp")),
    )
    mesh = build_mesh(layout)
    cp = ContextParallel(
        mesh.cp,
        seq_len=23,
        sharding=sharding,
        mask=mask,
        docs=(23,) if mask == "document" else None,
        strategy=axes.get("strategy", "ring"),
        ulysses=layout.ulysses,
        kernel="math",
    )
    memory = TensorBudget(1 << 30)

    def samples(index):
        dp = {"dp_rank": mesh.at.dp, "dp_size": layout.dp}
        return samples_of(**dp, ignored=ignored, mask=mask, step=index)

    with mutant():
        with memory:  # counts the first steps of a trial, and leaves the timed ones alone
            step = TrainStep(
                candidate,
                shape=shape_of(layout),
                mesh=mesh,
                cp=cp,
                memory=memory,
                seed=3,
                dtype=torch.float64,
                micro_batches=4 // layout.dp // candidate.micro_batch,
            )
            loss = step.compute_gradients(samples(0))
            norm = step.optimizer.gradient_norm()
            grads = gradients(step)
            if updates:
                step.optimizer.step()
        for index in range(1, updates):
            step.run(samples(index))
    want_loss, want_norm, want_grads, want_weights = reference(
        shape_of(layout), ignored=tuple(ignored.items()), mask=mask, updates=updates
    )
    worst = {name: (grad - want_grads[name]).abs().max().item() for name, grad in grads.items()}
    weights = {name: whole(one) for chunk in step.chunks for name, one in chunk.named_parameters()}
    drift = {name: (one - want_weights[name]).abs().max().item() for name, one in weights.items()}
    digests = {
        name: hashlib.sha256(one.numpy().tobytes()).hexdigest() for name, one in weights.items()
    }
    return abs(loss - want_loss), abs(norm - want_norm), worst, drift if updates else {}, digests


def whole(tensor):
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradients(step):
    """Every gradient of this rank's chunks, gathered whole."""
    named = [(name, one) for chunk in step.chunks for name, one in chunk.named_parameters()]
    found = {}
    for (name, parameter), owned in zip(named, step.optimizer._owned, strict=True):
        grad = owned.master.grad
        assert torch.isfinite(grad).all(), name
        if isinstance(parameter, DTensor):
            grad = DTensor.from_local(
                grad,
                parameter.device_mesh,
                parameter.placements,
                shape=parameter.shape,
                stride=parameter.stride(),
            ).full_tensor()
        found[name] = grad
    return found


def check(ranks, axes, **case):
    world = layout_of(axes).world_size
    case = {"ignored": {}, "sharding": "zigzag", "mask": "causal"} | case
    covered = set()
    weights = defaultdict(set)
    for loss, norm, worst, drift, digests in ranks.run(compare, world=world, axes=axes, **case):
        assert loss < 1e-10
        assert norm < 1e-10
        assert max(worst.values()) < 1e-10, worst
        assert max(drift.values(), default=0.0) < 1e-10, drift
        covered |= worst.keys()
        for name, digest in digests.items():
            weights[name].add(digest)
    assert len(covered) == 3 + 9 * shape_of(layout_of(axes)).layers
    assert not [name for name, seen in weights.items() if len(seen) > 1], "replicas differ"
