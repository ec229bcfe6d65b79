"""The sharded step beside plain PyTorch in one process, by the checks of the proof."""

from dataclasses import replace

from cptune.attention import ContextParallel
from cptune.bench.mesh import build_mesh
from cptune.domain.candidate import (
    Candidate,
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
)
from cptune.domain.layout import ParallelLayout
from cptune.domain.proof import join_checks
from cptune.domain.workload import AttentionMask, ModelShape, Precision, Workload
from cptune.proof.fixture import Fixture
from cptune.proof.model import check_model
from cptune.proof.reference import load_samples

SHAPE = ModelShape(layers=4, hidden=24, heads=4, kv_heads=2, head_dim=6, ffn=32, vocab=40)
LENGTHS = (3, 5, 8, 30)  # of documents; the longest fills a sequence
UPDATES = 3


def shape_of(layout):
    """SHAPE with no more layers than the stages need, and two at least."""
    return replace(SHAPE, layers=max(2, layout.pp * layout.vpp))


def fixture_of(shape, *, mask, ignored, passes=1, updates=1):
    """Four sequences; `ignored` maps a sample to the (start, stop) that has no loss."""
    return Fixture(
        shape=shape,
        workload=Workload(
            seq_len=23, global_batch_seqs=4, precision=Precision.FP32, mask=AttentionMask(mask)
        ),
        passes=passes,
        lengths=LENGTHS if mask == "document" else (),
        ignored=tuple((sample, *span) for sample, span in ignored.items()),
        docs=(),
        updates=updates,
    )


def samples_of(*, dp_rank, dp_size, ignored, mask, step=0):
    """One group's samples."""
    fixture = fixture_of(SHAPE, mask=mask, ignored=ignored)
    return load_samples(fixture, dp_rank=dp_rank, dp_size=dp_size, step=step)


def layout_of(axes):
    names = ("tp", "cp", "pp", "vpp", "dp", "ulysses")
    return ParallelLayout(**{name: axes[name] for name in names if name in axes})


def compare(*, axes, ignored, sharding, mask, updates):
    """The checks of one layout, as this rank sees them."""
    layout = layout_of(axes)
    candidate = Candidate(
        layout=layout,
        sharding=ShardingKind(sharding),
        strategy=Strategy(axes.get("strategy", "ring")),
        micro_batch=axes.get("micro_batch", 1),
        recompute=Recompute(axes.get("recompute", "none")),
        loss=LossKind(axes.get("loss", "full")),
        data_parallel=DataParallelKind(axes.get("data_parallel", "ddp")),
    )
    passes = 4 // layout.dp // candidate.micro_batch
    fixture = fixture_of(
        shape_of(layout), mask=mask, ignored=ignored, passes=passes, updates=updates
    )
    return check_model(candidate, fixture, mesh=build_mesh(layout), made_by=ContextParallel)


def check(ranks, axes, **case):
    case = {"ignored": {}, "sharding": "zigzag", "mask": "causal", "updates": 1} | case
    found = ranks.run(compare, world=layout_of(axes).world_size, axes=axes, **case)
    checks = join_checks(found)
    assert len(checks) == 6
    assert [one for one in checks if not one.passed] == []
