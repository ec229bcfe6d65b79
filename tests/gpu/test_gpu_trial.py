"""A whole trial on one device: one rank, and several that share it, beside one on the CPU."""

import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from trial_jobs import alone, device_of, on_ranks

from cptune.bench.device import CpuDevice
from cptune.bench.job import DeviceMemoryError, MemoryBudgetExceededError
from cptune.bench.step import TrainStep
from cptune.domain.memory import MemorySplit
from cptune.domain.outcome import OomKind, RankReport
from cptune.domain.study import TraceKind
from cptune.domain.timeline import ABLATION, DEVICE_INTERVALS, INTERVAL_UNION, SpanKind

METHODS = {"cpu": INTERVAL_UNION, "ticket": DEVICE_INTERVALS, "cuda": DEVICE_INTERVALS}
#: Relative, of the loss and the gradient norm: order of sums, and bf16's 8 bits.
CLOSE = {"fp32": 1e-4, "bf16": 2e-2}

ONE_RANK = [
    {},
    {"recompute": "full", "loss": "chunked"},
    {"recompute": "selective", "micro_batch": 2, "data_parallel": "zero1"},
    {"precision": "bf16"},
    {"precision": "bf16", "data_parallel": "fsdp"},
]
TWO_RANKS = [
    {"cp": 2},
    {"cp": 2, "recompute": "full", "precision": "bf16"},
    {"tp": 2},
    {"pp": 2},
    {"dp": 2, "data_parallel": "fsdp"},
    {"dp": 2, "data_parallel": "zero1"},
]
FOUR_RANKS = [{"tp": 2, "cp": 2}, {"pp": 2, "cp": 2}, {"cp": 2, "dp": 2, "data_parallel": "fsdp"}]


def named(axes: dict) -> str:
    return "-".join(f"{name}{value}" for name, value in axes.items()) or "plain"


@pytest.fixture(scope="module")
def on_cpu() -> dict[str, RankReport]:
    """The same model and batch on one CPU process, by precision."""
    return {
        precision: alone({"precision": precision}, device=CpuDevice(), trace=TraceKind.OFF)
        for precision in CLOSE
    }


def check_same(report: RankReport, axes: dict, on_cpu: dict[str, RankReport]) -> None:
    precision = axes.get("precision", "fp32")
    wanted, close = on_cpu[precision], CLOSE[precision]
    assert report.first_loss == pytest.approx(wanted.first_loss, rel=close)
    assert report.first_grad_norm == pytest.approx(wanted.first_grad_norm, rel=close)


def check_memory(report: RankReport, kind: str) -> None:
    assert 0 < report.forward_peak_bytes <= report.peak_allocated_bytes
    assert 0 < report.backward_peak_bytes <= report.peak_allocated_bytes
    split = report.memory
    assert isinstance(split, MemorySplit)
    assert split.states_bytes > 0
    assert split.activations_bytes >= 0
    assert 0 < split.optimizer_peak_bytes <= report.peak_allocated_bytes
    # The parts of the watched steps add up to the peak, and no timed step had a higher one.
    assert split.peak_bytes == pytest.approx(report.peak_allocated_bytes, rel=0.02)
    if kind == "cuda":
        assert report.peak_allocated_bytes <= report.peak_reserved_bytes
        assert report.used_bytes is None or report.used_bytes > report.peak_allocated_bytes
    else:
        assert report.used_bytes is None


def check_trace(report: RankReport, kind: str) -> None:
    trace = report.trace
    assert trace is not None
    rows = [row for row in trace.exposed if row.method != ABLATION]
    assert {row.method for row in rows} == {METHODS[kind]}
    for row in rows:
        assert row.exposed_s is not None
        assert 0 <= row.exposed_s <= row.communication_s + 1e-9
        assert row.communication_s <= trace.step_s * 1.001
    edge_s = 1e-3  # two clocks meet at the base event
    for span in trace.spans:
        assert -edge_s <= span.start_s <= span.stop_s  # since the first rank began
        assert span.stop_s - span.start_s <= trace.step_s + edge_s
    computed = [span for span in trace.spans if span.kind is SpanKind.COMPUTE]
    assert {span.layer for span in computed} & {0, 1}
    assert sum(span.stop_s - span.start_s for span in computed) > 0


def check_steps(report: RankReport, kind: str, axes: dict) -> None:
    assert all(seconds > 0 for seconds in report.step_s)
    for name in ("cp", "dp", "pp"):
        stalls = getattr(report, f"{name}_exposed_s")
        for stall_s, step_s in zip(stalls, report.step_s, strict=True):
            assert -1e-4 <= stall_s <= step_s
    seen = kind == "cpu" or axes.get("tp", 1) == 1
    assert all((one is not None) == seen for one in report.tp_exposed_s)
    assert all((edge.seconds is not None) == (kind == "cpu") for edge in report.edges)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("axes", ONE_RANK, ids=named)
def test_one_rank_trains_as_on_the_cpu(kind: str, axes: dict, on_cpu) -> None:
    report = alone(axes, device=device_of(kind))

    check_same(report, axes, on_cpu)
    check_memory(report, kind)
    check_trace(report, kind)
    check_steps(report, kind, axes)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "world", "cases"),
    [
        ("cpu", 2, TWO_RANKS[:3]),
        ("ticket", 2, TWO_RANKS),
        pytest.param("cuda", 2, TWO_RANKS, marks=pytest.mark.gpu),
        pytest.param("cuda", 4, FOUR_RANKS, marks=pytest.mark.gpu),
    ],
    indirect=["kind"],
    ids=["cpu-2", "ticket-2", "cuda-2", "cuda-4"],
)
def test_ranks_that_share_a_device_train_as_one_on_the_cpu(
    kind: str, world: int, cases, on_cpu
) -> None:
    for axes, reports in zip(cases, on_ranks(kind, cases, world=world), strict=True):
        for report in reports:
            check_same(report, axes, on_cpu)
            check_memory(report, kind)
            check_trace(report, kind)
            check_steps(report, kind, axes)
        for name in ("tp", "cp", "dp", "pp"):
            if axes.get(name, 1) > 1:
                moved = [report.trace.whole(name).bytes for report in reports]
                assert all(moved), (axes, name)


@pytest.mark.timeout(240)
def test_groups_of_two_backends_carry_a_trial_as_with_nccl(on_cpu) -> None:
    cases = [{"cp": 2, "dp": 1}, {"dp": 2, "data_parallel": "fsdp"}, {"pp": 2}]
    found = on_ranks("cpu", cases, world=2, backend="cpu:gloo,cuda:gloo")

    for axes, reports in zip(cases, found, strict=True):
        for report in reports:
            check_same(report, axes, on_cpu)


@pytest.mark.timeout(240)
def test_a_budget_that_is_too_small_is_told_with_its_sizes_and_the_next_trial_runs(
    kind: str, on_cpu
) -> None:
    device = device_of(kind)
    # A GPU's allocator takes memory in blocks of 2 and 20 MiB, and libraries want workspaces.
    capacity = 24 << 20 if kind == "cuda" else 3 << 20
    raised = DeviceMemoryError if kind == "cuda" else MemoryBudgetExceededError

    with pytest.raises(raised) as caught:
        alone({}, device=device, capacity_bytes=capacity)

    assert "out of memory" in str(caught.value)
    if kind == "cuda":
        shortage = caught.value.shortage
        assert shortage is not None
        assert shortage.kind in (OomKind.TENSOR, OomKind.CAPACITY, OomKind.FRAGMENTATION)
        assert shortage.asked_bytes > 0
        assert 0 <= shortage.free_bytes <= capacity
    check_same(alone({}, device=device), {}, on_cpu)


def test_tensors_are_watched_in_the_timed_steps_of_a_cpu_alone(kind: str, monkeypatch) -> None:
    watched: list[bool] = []
    plain = TrainStep.run

    def run(step, samples):
        watched.append(bool(_get_current_dispatch_mode_stack()))
        return plain(step, samples)

    monkeypatch.setattr(TrainStep, "run", run)
    report = alone({}, device=device_of(kind), trace=TraceKind.OFF)

    timed = len(report.step_s)
    assert all(watched[:-timed])
    assert set(watched[-timed:]) == {kind == "cpu"}


def test_what_a_gpu_test_imports_is_on_a_machine_without_the_clusters_libraries() -> None:
    absent = ("ray", "optuna", "pydantic", "cyclopts", "plotly", "tomli_w", "rich", "hypothesis")
    code = f"import sys\nfor name in {absent}: sys.modules[name] = None\n" + "".join(
        f"import {name}\n" for name in ("trial_jobs", "gpu_ranks", "cptune.bench.cuda")
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


def test_torch_is_as_the_tests_take_it() -> None:
    assert not torch.backends.cuda.matmul.allow_tf32
