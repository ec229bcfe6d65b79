"""Bytes that a layer and a rank keep for backward, against the formula, on real ranks."""

import pytest
import torch
import torch.distributed as dist
from fakes import candidate, measured
from torch import nn

from cptune.attention import ContextParallel
from cptune.bench.batch import load_sample
from cptune.bench.decoder import Chunk, Decoder
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import build_mesh
from cptune.bench.parts import Part
from cptune.bench.sharding import cut_tensors
from cptune.bench.step import TrainStep
from cptune.domain.candidate import Candidate, DataParallelKind, LossKind, Recompute, Strategy
from cptune.domain.guards import why_not_applied, why_other_recompute
from cptune.domain.layout import ParallelLayout
from cptune.domain.memory import Kept
from cptune.domain.outcome import OutcomeKind
from cptune.domain.workload import ModelShape, Precision, Workload
from cptune.predict.saved import (
    attention_saved_bytes,
    layer_saved_bytes,
    rank_saved_bytes,
    rank_tokens,
    width,
)
from cptune.predict.shares import stage_share

SEQ_LEN = 96
SHAPES = {
    "mha": ModelShape(layers=1, hidden=24, heads=4, kv_heads=4, head_dim=6, ffn=32, vocab=40),
    "gqa": ModelShape(layers=1, hidden=40, heads=8, kv_heads=2, head_dim=10, ffn=72, vocab=40),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def saved_by_layers(shape, layout, *, precision, recompute, layers, batch):
    """Bytes of the storages that forward of so many layers keeps, weights and angles apart."""
    mesh = build_mesh(layout)
    cp = ContextParallel(mesh.cp, seq_len=SEQ_LEN)
    with TensorBudget(1 << 30) as memory:
        model = Decoder(
            shape,
            chunk=Chunk(layers=range(layers), is_first=False, is_last=False),
            attend=cp.attend,
            positions_S=cp.positions,
            recompute=recompute,
        ).to(DTYPES[precision])
        if mesh.tp is not None:
            cut_tensors(model, mesh.tp, shape)
        memory.adopt(Part.STATES)
        x = torch.zeros(batch, cp.local_len // layout.tp, shape.hidden, dtype=DTYPES[precision])
        kept = model(nn.Parameter(x))
        angles = cp.local_len * shape.head_dim // 2 * 8
        found = memory.parts.live_bytes[Part.ACTIVATIONS] - angles
    del kept
    return found


CASES = [
    (name, tp, cp, precision, recompute)
    for name in SHAPES
    for tp, cp in ((1, 1), (2, 1), (1, 2), (2, 2))
    for precision in DTYPES
    for recompute in Recompute
]


def layer_case(*, name, tp, cp, precision, recompute):
    """(measured, formula) of one layer: the difference between two layers and one."""
    layout = ParallelLayout(tp=tp, cp=cp)
    one, two = (
        saved_by_layers(
            SHAPES[name], layout, precision=precision, recompute=recompute, layers=layers, batch=2
        )
        for layers in (1, 2)
    )
    formula = layer_saved_bytes(
        SHAPES[name],
        tokens=2 * SEQ_LEN // cp,
        layout=layout,
        width=width(Precision(precision)),
        recompute=recompute,
    )
    return two - one, formula


@pytest.mark.parametrize(("name", "tp", "cp", "precision", "recompute"), CASES)
def test_a_layer_saves_what_the_formula_says(ranks, name, tp, cp, precision, recompute):
    case = {"name": name, "tp": tp, "cp": cp, "precision": precision, "recompute": recompute}
    for seen, formula in ranks.run(layer_case, world=tp * cp, **case):
        assert seen == formula


def test_a_tensor_more_breaks_the_formula(ranks):
    [(seen, formula)] = ranks.run(mutant_case, world=1, name="mha", precision="fp32")
    assert seen > formula


def mutant_case(*, name, precision):
    """A feed-forward that keeps one tensor more than SwiGLU does."""
    from cptune.bench import decoder

    plain = decoder.FeedForward.forward

    def fatter(self, x_BSE):
        return plain(self, x_BSE * torch.ones_like(x_BSE))

    decoder.FeedForward.forward = fatter
    try:
        return layer_case(name=name, tp=1, cp=1, precision=precision, recompute=Recompute.NONE)
    finally:
        decoder.FeedForward.forward = plain


DEEP = ModelShape(layers=4, hidden=40, heads=8, kv_heads=4, head_dim=10, ffn=72, vocab=40)


class WholeContext:
    """A context-parallel attention that gathers everything and attends it on every rank."""

    def __init__(self, cp: ContextParallel, group) -> None:
        self._cp, self._group = cp, group
        self._whole = ContextParallel(None, seq_len=SEQ_LEN)

    def __getattr__(self, name):
        return getattr(self._cp, name)

    def attend(self, *tensors):
        whole = [self._gather(one) for one in tensors]
        return self._whole.attend(*whole).chunk(self._group.size(), dim=1)[self._group.rank()]

    def _gather(self, x):
        parts = [torch.empty_like(x) for _ in range(self._group.size())]
        dist.all_gather(parts, x.detach().contiguous(), group=self._group)
        parts[self._group.rank()] = x  # the gradient of the own part is enough here
        return torch.cat(parts, dim=1)


def rank_case(
    *,
    precision="fp32",
    data_parallel="ddp",
    recompute="none",
    loss="full",
    whole=False,
    **axes,
):
    """Most that was kept at once and its formula; one attention call and its formula."""
    strategy = Strategy(axes.pop("strategy", "ring"))
    layout = ParallelLayout(**axes)
    candidate = Candidate(
        layout=layout,
        strategy=strategy,
        data_parallel=DataParallelKind(data_parallel),
        recompute=Recompute(recompute),
        loss=LossKind(loss),
    )
    passes = 4 if layout.pp > 1 else 2
    workload = Workload(
        seq_len=SEQ_LEN, global_batch_seqs=passes * layout.dp, precision=Precision(precision)
    )
    mesh = build_mesh(layout)
    cp = ContextParallel(mesh.cp, seq_len=SEQ_LEN, strategy=strategy, ulysses=layout.ulysses)
    cp = WholeContext(cp, mesh.cp) if whole else cp
    memory = TensorBudget(1 << 30)
    with memory:
        step = TrainStep(
            candidate,
            shape=DEEP,
            mesh=mesh,
            cp=cp,
            memory=memory,
            seed=0,
            dtype=DTYPES[precision],
            micro_batches=passes,
        )
        for index in range(2):
            step.run(
                [
                    load_sample(sample, step=index, seed=0, workload=workload, vocab=DEEP.vocab)
                    for sample in range(passes)
                ]
            )
    split = memory.split()
    assert split.peak_bytes == max(memory.peak_bytes.values())
    assert split.optimizer_peak_bytes == memory.peak_bytes["optimizer"]
    share = stage_share(DEEP, layout, mesh.at.pp)
    return (
        memory.parts.peak_saved_bytes,
        rank_saved_bytes(DEEP, candidate, workload, share),
        step.attention_saved_bytes,
        attention_saved_bytes(
            DEEP,
            tokens=rank_tokens(candidate, workload),
            layout=layout,
            width=width(workload.precision),
        ),
    )


EXACT = [
    {},
    {"cp": 2},
    {"cp": 4, "precision": "bf16"},
    {"tp": 2, "cp": 2},
    {"cp": 2, "loss": "chunked"},
    {"cp": 2, "dp": 2, "data_parallel": "fsdp"},
    {"dp": 2, "data_parallel": "zero1", "precision": "bf16"},
    {"cp": 2, "strategy": "ulysses", "ulysses": 2},
    {"cp": 4, "strategy": "hybrid", "ulysses": 2, "precision": "bf16"},
]
NEAR = [
    {"cp": 2, "recompute": "full"},
    {"cp": 2, "recompute": "full", "precision": "bf16"},
    {"cp": 2, "recompute": "selective"},
    {"pp": 2},
    {"pp": 2, "cp": 2},
    {"pp": 2, "vpp": 2},
    {"pp": 4},
    {"pp": 2, "dp": 2, "data_parallel": "fsdp", "recompute": "full"},
]


def world_of(axes):
    found = 1
    for name in ("tp", "cp", "pp", "dp"):
        found *= axes.get(name, 1)
    return found


@pytest.mark.parametrize("axes", EXACT, ids=str)
def test_a_rank_keeps_what_the_formula_says(ranks, axes):
    for kept, formula, attention, planned in ranks.run(rank_case, world=world_of(axes), **axes):
        assert kept == formula
        assert attention == planned


@pytest.mark.parametrize("axes", NEAR, ids=str)
def test_a_rank_of_a_pipeline_or_under_recompute_keeps_about_that(ranks, axes):
    asked = Recompute(axes.get("recompute", "none"))
    for kept, formula, attention, planned in ranks.run(rank_case, world=world_of(axes), **axes):
        assert 0.7 < kept / formula < 1.1
        seen = Kept(
            attention_bytes=attention,
            planned_attention_bytes=planned,
            peak_bytes=kept,
            planned_peak_bytes=formula,
        )
        for recompute in Recompute:
            failure = why_other_recompute(measured(kept=seen), candidate(recompute=recompute))
            right = (recompute is Recompute.FULL) == (asked is Recompute.FULL)
            assert (failure is None) == right


@pytest.mark.parametrize("cp", [2, 4])
def test_an_attention_over_the_whole_context_is_not_applied(ranks, cp):
    for whole, applied in ((True, False), (False, True)):
        for peak, planned_peak, attention, planned in ranks.run(
            rank_case, world=cp, cp=cp, whole=whole
        ):
            kept = Kept(
                attention_bytes=attention,
                planned_attention_bytes=planned,
                peak_bytes=peak,
                planned_peak_bytes=planned_peak,
            )
            failure = why_not_applied(measured(ranks=cp, kept=kept), ParallelLayout(cp=cp))
            assert (failure is None) == applied
            if whole:
                assert attention == cp * planned
                assert failure.kind is OutcomeKind.NOT_APPLIED


def peaks_case(*, seq_len, micro_batch, cp):
    """Forward and backward peak of this rank, over two passes of a step."""
    layout = ParallelLayout(cp=cp)
    candidate = Candidate(layout=layout, micro_batch=micro_batch)
    workload = Workload(
        seq_len=seq_len, global_batch_seqs=2 * micro_batch, precision=Precision.FP32
    )
    mesh = build_mesh(layout)
    memory = TensorBudget(1 << 30)
    with memory:
        step = TrainStep(
            candidate,
            shape=DEEP,
            mesh=mesh,
            cp=ContextParallel(mesh.cp, seq_len=seq_len, sharding="zigzag"),
            memory=memory,
            seed=0,
            dtype=torch.float32,
            micro_batches=2,
        )
        for index in range(2):
            samples = [
                load_sample(sample, step=index, seed=0, workload=workload, vocab=DEEP.vocab)
                for sample in range(2 * micro_batch)
            ]
            step.run(samples)
    return memory.peak_bytes["forward"], memory.peak_bytes["backward"]


def test_two_context_ranks_peak_like_one_at_half_the_batch(ranks):
    halves = ranks.run(peaks_case, world=2, seq_len=512, micro_batch=2, cp=2)
    [whole] = ranks.run(peaks_case, world=1, seq_len=512, micro_batch=1, cp=1)

    for half in halves:
        assert half == pytest.approx(whole, rel=0.02)


def test_without_sharding_the_same_ranks_peak_far_higher(ranks):
    [batch_of_two] = ranks.run(peaks_case, world=1, seq_len=512, micro_batch=2, cp=1)
    [whole] = ranks.run(peaks_case, world=1, seq_len=512, micro_batch=1, cp=1)

    assert min(batch_of_two) > 1.5 * max(whole)
