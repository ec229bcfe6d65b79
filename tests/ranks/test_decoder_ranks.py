"""The sharded decoder against the model of one process: loss and every gradient, in fp64."""

import pytest
import torch
from torch.distributed.tensor import DTensor

from cptune.attention import ContextParallel
from cptune.bench.batch import IGNORED, load_sample, sample_ids
from cptune.bench.decoder import build_decoder
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import build_mesh
from cptune.bench.step import TrainStep
from cptune.domain.layout import ParallelLayout
from cptune.domain.workload import ModelShape, Precision, Workload

SHAPE = ModelShape(layers=2, hidden=24, heads=4, kv_heads=2, head_dim=6, ffn=32, vocab=40)
WORKLOAD = Workload(seq_len=23, global_batch_seqs=4, precision=Precision.FP32)
LAYOUTS = [(1, 2, 1), (2, 1, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2), (1, 3, 1)]


def samples_of(*, dp_rank, dp_size, ignored):
    """One group's samples; `ignored` maps a sample to the (start, stop) that has no loss."""
    found = []
    for sample in sample_ids(
        dp_rank=dp_rank, dp_size=dp_size, global_batch_seqs=WORKLOAD.global_batch_seqs
    ):
        tokens, labels = load_sample(sample, step=0, seed=7, workload=WORKLOAD, vocab=SHAPE.vocab)
        start, stop = ignored.get(sample, (0, 0))
        labels = labels.clone()
        labels[start:stop] = IGNORED
        found.append((tokens, labels))
    return found


def reference(ignored):
    """Loss, gradients and gradient norm of plain PyTorch in this process, without our step."""
    attend = ContextParallel(None, seq_len=WORKLOAD.seq_len, kernel="math").attend
    model = build_decoder(SHAPE, attend=attend, seed=3, dtype=torch.float64, tp=None)
    samples = samples_of(dp_rank=0, dp_size=1, ignored=ignored)
    tokens = torch.stack([one for one, _ in samples])
    labels = torch.stack([one for _, one in samples])
    logits = model(tokens, torch.arange(WORKLOAD.seq_len))
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    ) / max(1, int((labels != IGNORED).sum()))
    loss.backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    norm = torch.cat([grad.reshape(-1) for grad in grads.values()]).norm().item()
    return loss.item(), grads, norm


def compare(*, layout, ignored, micro_batch, sharding):
    """On every rank: the largest differences from the reference."""
    degrees = ParallelLayout(tp=layout[0], cp=layout[1], dp=layout[2])
    mesh = build_mesh(degrees)
    cp = ContextParallel(mesh.cp, seq_len=WORKLOAD.seq_len, sharding=sharding, kernel="math")
    memory = TensorBudget(1 << 30)
    model = build_decoder(SHAPE, attend=cp.attend, seed=3, dtype=torch.float64, tp=mesh.tp)
    step = TrainStep(model, mesh=mesh, cp=cp, micro_batch=micro_batch, memory=memory)
    with memory:
        loss = step.compute_gradients(
            samples_of(dp_rank=mesh.at.dp, dp_size=degrees.dp, ignored=ignored)
        )
        norm = step.gradient_norm()
    want_loss, want_grads, want_norm = reference(ignored)
    worst = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        grad = grad.full_tensor() if isinstance(grad, DTensor) else grad
        assert torch.isfinite(grad).all(), name
        worst[name] = (grad - want_grads[name]).abs().max().item()
    return abs(loss - want_loss), abs(norm - want_norm), worst


def check(ranks, layout, **case):
    world = layout[0] * layout[1] * layout[2]
    case = {"ignored": {}, "micro_batch": 1, "sharding": "zigzag"} | case
    for loss, norm, worst in ranks.run(compare, world=world, layout=layout, **case):
        assert loss < 1e-10
        assert norm < 1e-10
        assert max(worst.values()) < 1e-10, worst


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sharding", ["zigzag", "contiguous"])
def test_loss_and_every_gradient_equal_the_unsharded_model(ranks, layout, sharding):
    check(ranks, layout, sharding=sharding)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_without_valid_token_changes_nothing(ranks, layout):
    # Samples 0 and 1 have no loss at all, 2 and 3 none in their first half: under contiguous
    # sharding the first context rank, and under dp=2 the whole first group, has no valid token.
    ignored = {0: (0, 23), 1: (0, 23), 2: (0, 12), 3: (0, 12)}
    check(ranks, layout, ignored=ignored, sharding="contiguous")


def test_micro_batches_change_nothing(ranks):
    check(ranks, (1, 2, 1), micro_batch=2, ignored={1: (3, 20)})


def test_a_batch_without_any_valid_token_has_zero_loss(ranks):
    everything = dict.fromkeys(range(4), (0, 23))
    check(ranks, (1, 2, 1), ignored=everything)
