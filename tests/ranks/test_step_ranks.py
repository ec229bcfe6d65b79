"""What a step held is free when it is done with: the ranks of a sweep live for many trials."""

import gc
import weakref

import pytest
import torch
from decoder_cases import SHAPE, layout_of, samples_of

from cptune.attention import ContextParallel
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import build_mesh
from cptune.bench.step import TrainStep
from cptune.domain.candidate import Candidate, DataParallelKind


def left_of(step):
    """How many parameters and masters of a step outlive it, once the last name of it is gone."""
    owned = step[0].optimizer._owned
    seen = [weakref.ref(one) for pair in owned for one in (pair.parameter, pair.master)]
    del owned, step[:]
    gc.collect()
    return sum(one() is not None for one in seen)


def ran(*, axes, dtype):
    layout = layout_of(axes)
    mesh = build_mesh(layout)
    memory = TensorBudget(1 << 30)
    candidate = Candidate(
        layout=layout, data_parallel=DataParallelKind(axes.get("data_parallel", "ddp"))
    )
    with memory:
        step = TrainStep(
            candidate,
            shape=SHAPE,
            mesh=mesh,
            cp=ContextParallel(mesh.cp, seq_len=23),
            memory=memory,
            seed=3,
            dtype=getattr(torch, dtype),
            micro_batches=4 // layout.dp,
        )
        step.run(samples_of(dp_rank=mesh.at.dp, dp_size=layout.dp, ignored={}, mask="causal"))
    return [step]


def left_after_a_step(**case):
    return left_of(ran(**case))


def left_while_something_holds_a_weight(**case):
    step = ran(**case)
    held = step[0].optimizer._owned[0].parameter
    return left_of(step) if held is not None else 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "axes",
    [{"cp": 2}, {"dp": 2, "data_parallel": "zero1"}, {"dp": 2, "data_parallel": "fsdp"}],
    ids=str,
)
def test_nothing_of_a_step_outlives_it(ranks, axes, dtype):
    assert ranks.run(left_after_a_step, world=2, axes=axes, dtype=dtype) == [0, 0]


def test_a_weight_that_is_held_is_seen(ranks):
    left = ranks.run(left_while_something_holds_a_weight, world=2, axes={"cp": 2}, dtype="float32")
    assert min(left) > 0
