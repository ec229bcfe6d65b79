"""The lowest predicted peak against real ranks: no candidate that fits may be pruned."""

from dataclasses import replace

import pytest
import torch

from cptune.attention import ContextParallel
from cptune.bench.batch import load_sample, sample_ids
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import build_mesh
from cptune.bench.step import TrainStep
from cptune.domain.candidate import candidate_from_axes
from cptune.domain.workload import Precision
from cptune.predict.found import cpu_machine
from cptune.predict.trials import TrialPredictor
from cptune.search.prepare import resolve
from cptune.spec import load_quickstart

PLAIN = {
    "tp": 1, "cp": 1, "pp": 1, "vpp": 1, "dp": 1, "ulysses": 1, "sharding": "contiguous",
    "strategy": "ring", "stages": 0, "micro_batch": 1, "recompute": "none", "loss": "full",
    "data_parallel": "ddp", "kernel": "auto",
}  # fmt: skip
RING = {"sharding": "zigzag", "stages": 1}
CASES = [
    {"dp": 2},
    {"tp": 2},
    {"pp": 2},
    {"pp": 2, "vpp": 2},
    {"cp": 2, **RING},
    {"cp": 2, "micro_batch": 4, **RING},
    {"cp": 4, **RING, "stages": 3},
    {"cp": 4, **RING, "strategy": "all_gather"},
    {"cp": 2, "ulysses": 2, "strategy": "ulysses"},
    {"cp": 2, "tp": 2, **RING},
    {"cp": 2, "recompute": "full", **RING},
    {"cp": 2, "recompute": "selective", **RING},
    {"cp": 2, "loss": "chunked", "recompute": "full", **RING},
    {"cp": 2, "dp": 2, "data_parallel": "zero1", **RING},
    {"cp": 2, "dp": 2, "data_parallel": "fsdp", **RING},
    {"dp": 4, "data_parallel": "fsdp", "loss": "chunked", "recompute": "full"},
]


def spec_of(precision, *, seq_len=512):
    spec = load_quickstart()
    workload = replace(spec.workload, seq_len=seq_len, precision=Precision(precision))
    return replace(resolve(spec, None), workload=workload)


def peak_of(*, axes, precision):
    """The most bytes that this rank's tensors held over two steps."""
    spec, candidate = spec_of(precision), candidate_from_axes(axes)
    layout, model = candidate.layout, spec.model
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    mesh = build_mesh(layout)
    cp = ContextParallel(
        mesh.cp,
        seq_len=spec.workload.seq_len,
        sharding=candidate.sharding.value,
        mask=spec.workload.mask.value,
        strategy=candidate.strategy.value,
        ulysses=layout.ulysses,
        stages=candidate.stages or None,
        heads=model.heads // layout.tp,
        kv_heads=model.kv_heads // layout.tp,
        head_dim=model.head_dim,
        dtype=dtype,
    )
    batch, memory = spec.workload.global_batch_seqs, TensorBudget(1 << 40)
    with memory:
        step = TrainStep(
            candidate,
            shape=model,
            mesh=mesh,
            cp=cp,
            memory=memory,
            seed=0,
            dtype=dtype,
            micro_batches=batch // layout.dp // candidate.micro_batch,
        )
        for index in range(2):
            own = sample_ids(dp_rank=mesh.at.dp, dp_size=layout.dp, global_batch_seqs=batch)
            step.run(
                [
                    load_sample(one, step=index, seed=0, workload=spec.workload, vocab=model.vocab)
                    for one in own
                ]
            )
    return max(memory.peak_bytes.values())


def predictor_for(axes, precision, capacity_bytes):
    spec = spec_of(precision)
    world = candidate_from_axes(axes).layout.world_size
    spec = replace(spec, cluster=replace(spec.cluster, world_size=world))
    machine = cpu_machine(spec.cluster, nodes=1, capacity_bytes=capacity_bytes)
    return TrialPredictor(spec, machine=machine)


#: Halves differ from single precision in what each kind of tensor weighs, not in which there are.
IN_HALVES = [
    {"dp": 2},
    {"tp": 2},
    {"pp": 2},
    {"cp": 2, **RING},
    {"cp": 2, "loss": "chunked", "recompute": "full", **RING},
    {"dp": 4, "data_parallel": "fsdp", "loss": "chunked", "recompute": "full"},
]


@pytest.mark.parametrize(
    ("changes", "precision"),
    [*((one, "fp32") for one in CASES), *((one, "bf16") for one in IN_HALVES)],
    ids=lambda one: one if isinstance(one, str) else "-".join(map(str, one.values())),
)
def test_no_layout_is_pruned_on_a_budget_that_just_holds_it(ranks, changes, precision):
    axes = PLAIN | changes
    candidate = candidate_from_axes(axes)
    world = candidate.layout.world_size
    peak = max(ranks.run(peak_of, world=world, axes=axes, precision=precision))

    assert predictor_for(axes, precision, peak).why_too_big(candidate) is None
    low = predictor_for(axes, precision, peak).predict(candidate).peak_lo_bytes
    assert predictor_for(axes, precision, low - 1).why_too_big(candidate) is not None
    assert low > peak / 8  # a bound that never prunes would pass the first line too
