"""Reports of ranks joined into one measurement, placements, and the views of a trial."""

from dataclasses import replace

import pytest
from fakes import (
    candidate,
    devices,
    failed,
    measured,
    out_of_memory,
    rank_report,
    rank_trace,
    trial_of,
)

from cptune.domain.layout import Coordinates, ParallelLayout
from cptune.domain.outcome import OutcomeKind, measurement_from
from cptune.domain.placement import Device, place
from cptune.domain.timeline import DEVICE_INTERVALS


def test_a_step_lasts_as_long_as_its_slowest_rank():
    reports = (
        rank_report(0, step_s=(1.0, 5.0, 1.0)),
        rank_report(1, step_s=(2.0, 2.0, 3.0)),
    )

    joined = measurement_from(reports, tokens_per_step=600)

    assert joined.step_s == 3.0  # the median of 2, 5, 3
    assert joined.slowest_rank == 1  # by its own median, 2 against 1
    assert (joined.step_p10_s, joined.step_p90_s) == pytest.approx((2.2, 4.6))
    assert joined.tokens_per_s == 200.0
    assert joined.tokens_per_s_per_gpu == 100.0
    assert joined.ranks == reports


def test_exposed_time_is_each_ranks_median_then_the_mean_over_ranks():
    reports = (
        rank_report(
            0,
            step_s=(1.0, 1.0, 1.0),
            tp_exposed_s=(0.1, 0.1, 9.0),
            cp_exposed_s=(0.2, 0.2, 0.2),
            dp_exposed_s=(0.0, 0.0, 0.0),
        ),
        rank_report(
            1,
            step_s=(1.0, 1.0, 1.0),
            tp_exposed_s=(0.3, 0.3, 0.3),
            cp_exposed_s=(0.0, 0.4, 0.4),
            dp_exposed_s=(0.1, 0.1, 0.1),
        ),
    )

    joined = measurement_from(reports, tokens_per_step=1)

    assert joined.tp_exposed_s == pytest.approx(0.2)
    assert joined.cp_exposed_s == pytest.approx(0.3)
    assert joined.dp_exposed_s == pytest.approx(0.05)
    assert joined.exposed_share == pytest.approx(0.55)


def test_peaks_are_the_largest_of_any_rank_and_imbalance_is_max_over_mean():
    reports = (
        rank_report(0, attended_pairs=10, peak_allocated_bytes=5, peak_reserved_bytes=9),
        rank_report(1, attended_pairs=30, forward_peak_bytes=1000, backward_peak_bytes=7),
    )

    joined = measurement_from(reports, tokens_per_step=1)

    assert joined.imbalance == 1.5
    assert joined.peak_allocated_bytes == 700
    assert joined.peak_reserved_bytes == 800
    assert (joined.forward_peak_bytes, joined.backward_peak_bytes) == (1000, 700)


def test_one_timed_step_is_its_own_deciles():
    joined = measurement_from((rank_report(0, step_s=(0.5,)),), tokens_per_step=1)

    assert (joined.step_p10_s, joined.step_s, joined.step_p90_s) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("steps", "text"), [(((0.1,), (0.1, 0.1)), r"\[1, 2\]"), (((), ()), r"\[0\]")]
)
def test_ranks_that_timed_different_steps_are_no_measurement(steps, text):
    reports = tuple(rank_report(rank, step_s=step_s) for rank, step_s in enumerate(steps))

    with pytest.raises(ValueError, match=f"ranks timed {text} steps"):
        measurement_from(reports, tokens_per_step=1)


def test_a_trial_says_what_it_came_to():
    one = candidate(cp=2)
    good, bad, short = (
        trial_of(one),
        trial_of(one, failed(OutcomeKind.TIMEOUT, "too slow")),
        trial_of(one, out_of_memory(30, free_bytes=12)),
    )

    assert (good.kind, good.reason, good.shortage) == (OutcomeKind.MEASURED, "", None)
    assert good.measurement == measured(ranks=2)
    assert (bad.kind, bad.reason, bad.measurement) == (OutcomeKind.TIMEOUT, "too slow", None)
    assert short.shortage is not None
    assert (short.shortage.asked_bytes, short.shortage.short_bytes) == (42, 30)


def test_ranks_go_on_the_devices_in_their_order():
    placement = place(ParallelLayout(tp=2, cp=2), devices(5, kind="cuda"))

    assert [one.device.name for one in placement.ranks] == [
        "node0/cuda0",
        "node0/cuda1",
        "node0/cuda2",
        "node0/cuda3",
    ]
    assert placement.ranks[3].at == Coordinates(tp=1, cp=1, dp=0, pp=0)
    assert placement.mesh()[2] == {
        "rank": 2,
        "node": "node0",
        "gpu_uuid": "GPU-2",
        "tp": 0,
        "cp": 1,
        "dp": 0,
        "pp": 0,
    }


def test_too_few_devices_are_refused():
    with pytest.raises(ValueError, match="3 devices for 4 ranks"):
        place(ParallelLayout(cp=4), devices(3))


def test_two_ranks_never_share_a_device():
    twin = Device(node="node0", kind="cpu", index=0)

    with pytest.raises(
        ValueError, match=r"share one device: ranks 0 \(node0/cpu0\) and 1 .* on no"
    ):
        place(ParallelLayout(cp=2), [twin, twin])


def test_where_every_rank_traced_a_step_exposed_is_what_its_intervals_say():
    reports = (
        rank_report(0, cp_exposed_s=(0.05, 0.05), trace=rank_trace(step_s=0.2)),
        rank_report(1, cp_exposed_s=(0.07, 0.07), trace=rank_trace()),
    )

    joined = measurement_from(reports, tokens_per_step=1)

    assert joined.exposed_method == "interval-union"
    assert (joined.cp_exposed_s, joined.cp_comm_s) == pytest.approx((0.02, 0.03))
    assert joined.dp_exposed_s == pytest.approx(0.004)
    assert joined.cp_blocked_s == pytest.approx(0.06)
    assert joined.traced_step_s == 0.2
    assert joined.exposed_share == pytest.approx(0.024 / 0.2)  # of the step it was seen in


def test_one_rank_without_a_trace_leaves_what_was_blocked():
    reports = (
        rank_report(0, cp_exposed_s=(0.05, 0.05), trace=rank_trace()),
        rank_report(1, cp_exposed_s=(0.07, 0.07)),
    )

    joined = measurement_from(reports, tokens_per_step=1)

    assert joined.exposed_method == "blocked-in-wait"
    assert (joined.cp_comm_s, joined.traced_step_s) == (None, None)
    assert joined.cp_exposed_s == joined.cp_blocked_s == pytest.approx(0.06)


def test_two_ranks_never_share_a_gpu_that_two_nodes_report():
    twins = [Device(node=node, kind="cuda", index=0, uuid="GPU-7") for node in ("host#0", "host#1")]

    with pytest.raises(ValueError, match=r"ranks 0 \(host#0/cuda0\) and 1 \(host#1/.* on GPU-7"):
        place(ParallelLayout(cp=2), twins)


def on_gpu(rank, **changes):
    """A rank whose waits of tensor parallelism nobody saw in its timed steps."""
    return rank_report(rank, tp_exposed_s=(None, None), **changes)


def test_waits_that_nobody_saw_are_unknown_and_the_traced_step_tells_what_was_exposed():
    trace = rank_trace()
    trace = replace(
        trace, exposed=tuple(replace(row, method=DEVICE_INTERVALS) for row in trace.exposed)
    )

    joined = measurement_from((on_gpu(0, trace=trace), on_gpu(1, trace=trace)), tokens_per_step=1)

    assert joined.tp_blocked_s is None
    assert joined.cp_blocked_s == 0.0
    assert (joined.tp_exposed_s, joined.cp_exposed_s) == pytest.approx((0.0, 0.02))
    assert joined.exposed_method == "device-intervals"


def test_waits_that_nobody_saw_and_no_traced_step_are_no_measurement():
    with pytest.raises(ValueError, match="wanted a trace"):
        measurement_from((on_gpu(0), rank_report(1)), tokens_per_step=1)
