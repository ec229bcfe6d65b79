"""A traced step on real ranks: every axis is seen, and the figures keep to what they must."""

import pytest
import torch
import torch.distributed as dist
from decoder_cases import SHAPE, samples_of, shape_of
from rank_pool import RankError

from cptune.bench.attention import MeasuredContextParallel
from cptune.bench.clocks import compare_clocks
from cptune.bench.contention import contended_edges
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import build_mesh
from cptune.bench.recorder import Recorder
from cptune.bench.step import TrainStep
from cptune.bench.trace import trace_ablated, trace_step
from cptune.domain.candidate import Candidate, DataParallelKind, Recompute
from cptune.domain.layout import ParallelLayout
from cptune.domain.outcome import EdgeReport
from cptune.domain.study import TraceKind
from cptune.domain.timeline import ABLATION, SpanKind, Stamp

SAMPLES, MICRO_BATCH = 4, 2


def traced(*, axes, drop=False, kind="step"):
    """On every rank: the trace, the plan's bytes of a layer and sample, peaks before and after."""
    names = ("tp", "cp", "pp", "vpp", "dp", "ulysses")
    layout = ParallelLayout(**{name: axes[name] for name in names if name in axes})
    candidate = Candidate(
        layout=layout,
        micro_batch=MICRO_BATCH,
        recompute=Recompute(axes.get("recompute", "none")),
        data_parallel=DataParallelKind(axes.get("data_parallel", "ddp")),
    )
    mesh = build_mesh(layout)
    cp = MeasuredContextParallel(
        mesh.cp,
        seq_len=23,
        strategy=axes.get("strategy", "ring"),
        ulysses=layout.ulysses,
        kernel="math",
        heads=SHAPE.heads // layout.tp,
        kv_heads=SHAPE.kv_heads // layout.tp,
        head_dim=SHAPE.head_dim,
        dtype=torch.float64,
    )
    memory = TensorBudget(1 << 30)
    samples = samples_of(dp_rank=mesh.at.dp, dp_size=layout.dp, ignored={}, mask="causal")
    with memory:
        step = TrainStep(
            candidate,
            shape=SHAPE if kind == "step" else shape_of(layout),
            mesh=mesh,
            cp=cp,
            memory=memory,
            seed=3,
            dtype=torch.float64,
            micro_batches=SAMPLES // layout.dp // MICRO_BATCH,
        )
        step.run(samples)
    peaks = dict(memory.peak_bytes), memory.split()
    if drop:
        Recorder.watch = lambda recorder, work, transfer: work
    if kind == "step":
        with memory, memory.uncounted():  # as in a trial, between steps that count
            _, trace = trace_step(step, samples, mesh=mesh, cp=cp, memory=memory)
    else:
        trace = trace_ablated(step, samples, mesh=mesh, cp=cp, memory=memory)
    assert (memory.peak_bytes, memory.split()) == peaks
    assert step.clock.recorder is step.runner.recorder is cp.recorder is memory.collectives is None
    return trace, cp.plan.bytes(mesh.at.cp)


CASES = [
    ({"cp": 2}, {"cp", "dp", "world"}),
    ({"cp": 3}, {"cp", "dp", "world"}),
    ({"tp": 2, "cp": 2}, {"tp", "cp", "dp", "world"}),
    ({"tp": 2, "dp": 2, "data_parallel": "fsdp"}, {"tp", "dp", "world"}),
    ({"pp": 2, "vpp": 2, "cp": 2}, {"cp", "dp", "pp", "world"}),
    ({"pp": 2, "tp": 2, "recompute": "full"}, {"tp", "pp", "world"}),
    ({"cp": 2, "dp": 2, "data_parallel": "zero1"}, {"cp", "dp", "world"}),
    ({"cp": 4, "strategy": "hybrid", "ulysses": 2}, {"cp", "dp", "world"}),
]


def _name(case):
    return "-".join(f"{name}{value}" for name, value in case.items())


@pytest.mark.parametrize(("axes", "seen"), CASES, ids=[_name(axes) for axes, _ in CASES])
def test_every_axis_that_moves_is_seen_and_no_other(ranks, axes, seen):
    world = 1
    for name in ("tp", "cp", "pp", "dp"):
        world *= axes.get(name, 1)
    for trace, _ in ranks.run(traced, world=world, axes=axes):
        moved = {row.axis for row in trace.exposed if row.whole and row.bytes}
        assert moved == seen
        blocked_s = sum(row.blocked_s for row in trace.exposed if row.whole)
        for row in trace.exposed:
            assert 0 <= row.exposed_s <= row.communication_s <= trace.step_s
            assert row.exposed_s <= blocked_s + 1e-9  # what is exposed, the rank stood still in
        assert all(0 <= span.start_s <= span.stop_s for span in trace.spans)
        assert (trace.clock_offset_s, trace.clock_error_s) == (0.0, 0.0)


def test_messages_of_the_attention_carry_the_plans_bytes_in_every_layer(ranks):
    for trace, planned in ranks.run(traced, world=3, axes={"cp": 3}):
        want = SAMPLES * (
            planned.forward_sent
            + planned.forward_received
            + planned.backward_sent
            + planned.backward_received
        )
        layers = {row.layer: row.bytes for row in trace.exposed if row.axis == "cp"}
        assert layers == dict.fromkeys(range(SHAPE.layers), want) | {None: SHAPE.layers * want}
        messages = [span for span in trace.spans if span.kind is SpanKind.COMMUNICATION]
        ends = {span.stamp for span in messages if span.axis == "cp"}
        assert ends == {Stamp.COMPLETED}


def test_layers_are_known_in_forward_and_backward(ranks):
    for trace, _ in ranks.run(traced, world=2, axes={"tp": 2}):
        computed = {
            (span.name, span.layer) for span in trace.spans if span.kind is SpanKind.COMPUTE
        }
        for layer in range(SHAPE.layers):
            assert {("forward", layer), ("backward", layer)} <= computed
        tp = {row.layer: row.bytes for row in trace.exposed if row.axis == "tp" and not row.whole}
        inside = [tp[layer] for layer in range(SHAPE.layers)]
        assert len(set(inside)) == 1  # the same collectives in each
        assert inside[0] > 0


def test_a_recorder_that_drops_the_end_of_a_message_is_refused(ranks):
    with pytest.raises(RankError, match="transfers were never seen to end; the first is keys"):
        ranks.run(traced, world=2, axes={"cp": 2}, drop=True)


def clocks(*, distinct):
    return compare_clocks(clock_id=f"clock of {dist.get_rank()}" if distinct else None)


def test_ranks_of_one_kernel_read_one_clock(ranks):
    assert [(one.offset_s, one.error_s) for one in ranks.run(clocks, world=3, distinct=False)] == [
        (0.0, 0.0)
    ] * 3


def test_the_clock_of_another_host_is_known_within_half_a_round_trip(ranks):
    first, *others = ranks.run(clocks, world=3, distinct=True)

    assert (first.offset_s, first.error_s) == (0.0, 0.0)
    for one in others:  # it is the same clock in truth
        assert 0 < abs(one.offset_s) <= one.error_s < 1.0


ABLATED = [
    ({"cp": 2, "tp": 2}, {"tp", "cp", "dp"}),
    ({"cp": 2, "dp": 2, "data_parallel": "fsdp", "recompute": "full"}, {"cp", "dp"}),
    ({"cp": 2, "dp": 2, "data_parallel": "zero1"}, {"cp", "dp"}),
    ({"pp": 2, "tp": 2}, {"tp", "pp"}),
]


@pytest.mark.parametrize(("axes", "seen"), ABLATED, ids=[_name(axes) for axes, _ in ABLATED])
def test_each_axis_is_cut_from_the_same_step_and_a_pipelines_is_unknown(ranks, axes, seen):
    for trace, _ in ranks.run(traced, world=4, axes=axes, kind="ablation"):
        rows = {row.axis: row for row in trace.exposed if row.method == ABLATION}
        assert rows.keys() == seen
        for axis, row in rows.items():
            assert (row.communication_s is not None) == (axis == "cp")
            assert row.exposed_s is None or row.exposed_s > 0
        if "pp" in rows:
            assert rows["pp"].exposed_s is None


def cut(*, name):
    """Whether the wires moved nothing, and the kernel computed nothing, inside each switch."""
    group = dist.new_group()
    cp = MeasuredContextParallel(group, seq_len=16, mask="full", kernel="math")
    q, k, v = torch.randn(
        3, 1, cp.local_len, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).unbind()
    whole = cp.attend(q, k, v)
    with getattr(cp, name)():
        inside = cp.attend(q, k, v)
    return (whole - inside).abs().max().item(), (cp.attend(q, k, v) - whole).abs().max().item()


@pytest.mark.parametrize("name", ["without_transfer", "without_compute"])
def test_a_switch_changes_what_comes_out_and_only_inside(ranks, name):
    for inside, after in ranks.run(cut, world=2, name=name):
        assert inside > 1e-3
        assert after == 0.0


def edges_of(*, tp, cp, kind):
    """The edges of this rank after a pass of attention, and what the trial then tried."""
    layout = ParallelLayout(tp=tp, cp=cp)
    mesh = build_mesh(layout)
    attention = MeasuredContextParallel(mesh.cp, seq_len=16, kernel="math")
    attention.attend(*torch.zeros(3, 1, attention.local_len, 2, 4).unbind())
    members = dist.get_process_group_ranks(mesh.cp)
    edges = [
        EdgeReport(peer_rank=members[peer], axis="cp", sent_bytes=1, received_bytes=1, seconds=1.0)
        for peer in attention.traffic.peers
    ]
    memory = TensorBudget(1 << 30)
    return contended_edges(TraceKind(kind), edges, mesh=mesh, cp=attention, memory=memory)


def test_edges_of_the_group_of_rank_0_know_what_their_neighbours_cost(ranks):
    for rank, edges in enumerate(ranks.run(edges_of, world=4, tp=2, cp=2, kind="ablation")):
        (edge,) = edges
        assert edge.busy_s > 0
        alone = rank in (0, 2)  # ranks 0 and 2 share their tp coordinate
        assert (edge.idle_s is not None) == (edge.contention is not None) == alone


@pytest.mark.parametrize(("tp", "cp", "kind"), [(2, 2, "step"), (1, 4, "ablation")])
def test_without_neighbours_or_unasked_nothing_is_tried(ranks, tp, cp, kind):
    for edges in ranks.run(edges_of, world=4, tp=tp, cp=cp, kind=kind):
        assert {(edge.idle_s, edge.busy_s) for edge in edges} == {(None, None)}
