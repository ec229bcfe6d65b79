"""The sharded step against plain PyTorch in one process, fp64: loss, gradients and updates."""

import hashlib

import pytest
import torch
from torch.distributed.tensor import DTensor

from cptune.attention import ContextParallel
from cptune.bench.batch import IGNORED, load_sample, sample_ids
from cptune.bench.decoder import Chunk, Decoder, initialise
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
LAYOUTS = [(1, 2, 1), (2, 1, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2), (1, 3, 1)]
UPDATES = 3


def workload_of(mask):
    return Workload(
        seq_len=23, global_batch_seqs=4, precision=Precision.FP32, mask=AttentionMask(mask)
    )


def samples_of(*, dp_rank, dp_size, ignored, step=0):
    """One group's samples; `ignored` maps a sample to the (start, stop) that has no loss."""
    workload, found = workload_of("causal"), []
    for sample in sample_ids(dp_rank=dp_rank, dp_size=dp_size, global_batch_seqs=4):
        tokens, labels = load_sample(
            sample, step=step, seed=7, workload=workload, vocab=SHAPE.vocab
        )
        start, stop = ignored.get(sample, (0, 0))
        labels = labels.clone()
        labels[start:stop] = IGNORED
        found.append((tokens, labels))
    return found


def reference(*, ignored, mask, updates):
    """Loss, gradient norm and gradients of the first step, and the weights after some updates."""
    cp = ContextParallel(None, seq_len=23, mask=mask, kernel="math")
    model = Decoder(
        SHAPE, chunk=Chunk.whole(SHAPE), attend=cp.attend, positions_S=torch.arange(23)
    ).double()
    initialise(model, seed=3)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = None
    for step in range(max(1, updates)):
        samples = samples_of(dp_rank=0, dp_size=1, ignored=ignored, step=step)
        tokens = torch.stack([one for one, _ in samples])
        labels = torch.stack([one for _, one in samples])
        logits = model.head(model(tokens))
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        ) / max(1, int((labels != IGNORED).sum()))
        adamw.zero_grad()
        loss.backward()
        if first is None:
            grads = {name: one.grad.clone() for name, one in model.named_parameters()}
            norm = torch.cat([grad.reshape(-1) for grad in grads.values()]).norm().item()
            first = loss.item(), norm, grads
        if updates:
            adamw.step()
    return *first, {name: one.detach() for name, one in model.named_parameters()}


def compare(*, axes, ignored, sharding, mask, updates=0):
    """On every rank: the largest differences from the reference."""
    names = ("tp", "cp", "pp", "vpp", "dp", "ulysses")
    layout = ParallelLayout(**{name: axes[name] for name in names if name in axes})
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
        strategy=axes.get("strategy", "ring"),
        ulysses=layout.ulysses,
        kernel="math",
    )
    memory = TensorBudget(1 << 30)
    with memory:
        step = TrainStep(
            candidate,
            shape=SHAPE,
            mesh=mesh,
            cp=cp,
            memory=memory,
            seed=3,
            dtype=torch.float64,
            micro_batches=4 // layout.dp // candidate.micro_batch,
        )
        loss = step.compute_gradients(
            samples_of(dp_rank=mesh.at.dp, dp_size=layout.dp, ignored=ignored)
        )
        norm = step.optimizer.gradient_norm()
        grads = gradients(step)
        for index in range(updates):
            own = samples_of(dp_rank=mesh.at.dp, dp_size=layout.dp, ignored=ignored, step=index)
            step.run(own)
    want_loss, want_norm, want_grads, want_weights = reference(
        ignored=ignored, mask=mask, updates=updates
    )
    worst = {name: (grad - want_grads[name]).abs().max().item() for name, grad in grads.items()}
    drift = {
        name: (whole(one) - want_weights[name]).abs().max().item()
        for chunk in step.chunks
        for name, one in chunk.named_parameters()
    }
    return abs(loss - want_loss), abs(norm - want_norm), worst, drift if updates else {}


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
    world = 1
    for name in ("tp", "cp", "pp", "dp"):
        world *= axes.get(name, 1)
    case = {"ignored": {}, "sharding": "zigzag", "mask": "causal"} | case
    covered = set()
    for loss, norm, worst, drift in ranks.run(compare, world=world, axes=axes, **case):
        assert loss < 1e-10
        assert norm < 1e-10
        assert max(worst.values()) < 1e-10, worst
        assert max(drift.values(), default=0.0) < 1e-10, drift
        covered |= worst.keys()
    assert len(covered) == 3 + 9 * SHAPE.layers


def plain(layout):
    return dict(zip(("tp", "cp", "dp"), layout, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sharding", ["zigzag", "contiguous"])
def test_loss_and_every_gradient_equal_the_unsharded_model(ranks, layout, sharding):
    check(ranks, plain(layout), sharding=sharding)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_without_valid_token_changes_nothing(ranks, layout):
    # Samples 0 and 1 have no loss at all, 2 and 3 none in their first half: under contiguous
    # sharding the first context rank, and under dp=2 the whole first group, has no valid token.
    ignored = {0: (0, 23), 1: (0, 23), 2: (0, 12), 3: (0, 12)}
    check(ranks, plain(layout), ignored=ignored, sharding="contiguous")


def test_micro_batches_change_nothing(ranks):
    check(ranks, {"cp": 2, "micro_batch": 2}, ignored={1: (3, 20)})


def test_a_batch_without_any_valid_token_has_zero_loss(ranks):
    check(ranks, {"cp": 2}, ignored=dict.fromkeys(range(4), (0, 23)))


COMPOSITIONS = [
    {"pp": 2},
    {"pp": 2, "vpp": 2},
    {"pp": 4},
    {"pp": 2, "cp": 2},
    {"pp": 2, "tp": 2},
    {"pp": 2, "dp": 2},
    {"pp": 2, "vpp": 2, "tp": 2},
    {"dp": 2, "data_parallel": "zero1"},
    {"cp": 2, "tp": 2, "data_parallel": "zero1"},
    {"cp": 2, "dp": 2, "data_parallel": "fsdp"},
    {"cp": 2, "tp": 2, "data_parallel": "fsdp"},
    {"dp": 2, "tp": 2, "data_parallel": "fsdp", "micro_batch": 2},
    {"pp": 2, "dp": 2, "data_parallel": "fsdp"},
    {"pp": 2, "cp": 2, "data_parallel": "zero1", "recompute": "full"},
    {"cp": 2, "strategy": "ulysses", "ulysses": 2},
    {"cp": 4, "strategy": "ulysses", "ulysses": 4, "recompute": "full"},
    {"cp": 4, "strategy": "hybrid", "ulysses": 2},
    {"cp": 2, "tp": 2, "strategy": "ulysses", "ulysses": 2},
    {"cp": 2, "recompute": "full"},
    {"cp": 2, "recompute": "selective"},
    {"tp": 2, "recompute": "full", "loss": "chunked"},
    {"cp": 2, "dp": 2, "loss": "chunked", "micro_batch": 2},
    {"pp": 2, "tp": 2, "loss": "chunked", "recompute": "selective"},
    {"cp": 2, "dp": 2, "data_parallel": "fsdp", "recompute": "full", "loss": "chunked"},
]


def _name(axes):
    return "-".join(f"{name}{value}" for name, value in axes.items())


@pytest.mark.parametrize("axes", COMPOSITIONS, ids=_name)
def test_compositions_equal_the_unsharded_model(ranks, axes):
    digest = hashlib.sha256(_name(axes).encode()).digest()[0]
    case = {
        "mask": ("causal", "full")[digest % 2],
        "sharding": ("zigzag", "contiguous")[digest % 3 % 2],
    }
    check(ranks, axes, ignored={0: (0, 23), 2: (5, 9)}, updates=UPDATES, **case)
