"""Two depths of a model that is linear in its layers give the third exactly."""

from dataclasses import replace

import pytest
from fakes import edge_report, measured, rank_trace
from hypothesis import given
from hypothesis import strategies as st

from cptune.domain.memory import Kept, MemorySplit
from cptune.domain.outcome import measurement_from
from cptune.predict.depth import Line, extrapolate

LINE = Line(shallow=2, deep=4, layers=16)


def seen_at(layers, *, spread=0.0, steps=5, backward=700):
    """A measurement whose every quantity is a constant and a part for each layer."""
    split = MemorySplit(
        states_bytes=100 + 10 * layers,
        activations_bytes=30 * layers,
        logits_bytes=55,
        comm_bytes=7,
        transient_bytes=3,
        optimizer_peak_bytes=100 + 20 * layers,
    )
    kept = Kept(
        attention_bytes=9,
        planned_attention_bytes=9,
        peak_bytes=40 * layers,
        planned_peak_bytes=40 * layers,
    )
    made = measured(ranks=2, memory=split, kept=kept, peak_bytes=split.peak_bytes)
    times = [0.1 + 0.01 * layers + spread * (index - steps // 2) for index in range(steps)]
    reports = [
        replace(
            report,
            step_s=tuple(times),
            tp_exposed_s=(0.001 * layers,) * steps,
            cp_exposed_s=(0.002 * layers,) * steps,
            dp_exposed_s=(0.003,) * steps,
            pp_exposed_s=(0.0,) * steps,
            forward_peak_bytes=500 + 25 * layers,
            backward_peak_bytes=backward + 10 * layers,
            attended_pairs=10 * layers,
            planned_sent_bytes=64 * layers,
            sent_bytes=64 * layers,
            edges=(edge_report(1 - report.rank, sent_bytes=64 * layers, seconds=0.1 * layers),),
        )
        for report in made.ranks
    ]
    return measurement_from(tuple(reports), tokens_per_step=256)


def traced_at(layers):
    """The same with a traced step on each rank."""
    row = rank_trace().whole("cp")
    seen = seen_at(layers)
    row = replace(row, exposed_s=0.001 * layers + 0.01, communication_s=0.002 * layers)
    trace = rank_trace(step_s=0.1 * layers, exposed=(row,))
    reports = tuple(replace(one, trace=trace) for one in seen.ranks)
    return measurement_from(reports, tokens_per_step=256)


def test_what_is_exposed_is_drawn_too_and_the_trace_stays_that_of_its_depth():
    found = extrapolate(traced_at(2), traced_at(4), LINE, tokens_per_step=256)

    assert found.cp_exposed_s == pytest.approx(0.001 * 16 + 0.01)
    assert found.cp_comm_s == pytest.approx(0.002 * 16)
    assert found.traced_step_s == pytest.approx(0.1 * 16)
    assert found.exposed_share == pytest.approx(traced_at(16).exposed_share)
    assert found.exposed_method == "interval-union"
    assert found.ranks[0].trace == traced_at(4).ranks[0].trace


def test_what_grows_by_the_layer_is_exact_at_full_depth():
    found = extrapolate(seen_at(2), seen_at(4), LINE, tokens_per_step=256)
    true = seen_at(16)

    assert found.step_s == pytest.approx(true.step_s)
    assert found.tokens_per_s == pytest.approx(true.tokens_per_s)
    assert found.cp_exposed_s == pytest.approx(true.cp_exposed_s)
    assert found.memory == true.memory
    assert found.peak_allocated_bytes == true.peak_allocated_bytes == found.memory.peak_bytes
    assert found.forward_peak_bytes == true.forward_peak_bytes
    for one, two in zip(found.ranks, true.ranks, strict=True):
        assert one.kept == two.kept
        assert (one.sent_bytes, one.attended_pairs) == (two.sent_bytes, two.attended_pairs)
        assert one.edges[0].sent_bytes == two.edges[0].sent_bytes


def test_it_says_that_it_was_drawn_and_from_what():
    found = extrapolate(seen_at(2), seen_at(4), LINE, tokens_per_step=256)

    assert found.depth.layers_measured == (2, 4)
    assert seen_at(4).depth is None


def test_steps_without_spread_have_no_band_and_noise_is_carried_to_full_depth():
    still = extrapolate(seen_at(2), seen_at(4), LINE, tokens_per_step=256).depth
    noisy = extrapolate(
        seen_at(2, spread=0.002), seen_at(4, spread=0.002), LINE, tokens_per_step=256
    )

    assert still.step_hi_s - still.step_lo_s == pytest.approx(0.0, abs=1e-12)
    assert noisy.depth.step_lo_s < noisy.step_s < noisy.depth.step_hi_s
    shallow = seen_at(2, spread=0.002)
    assert noisy.depth.step_hi_s - noisy.step_s > shallow.step_p90_s - shallow.step_s


def test_a_phase_that_overtakes_the_peak_widens_the_band():
    first, second = seen_at(2, backward=100), seen_at(4, backward=900)
    depth = extrapolate(first, second, LINE, tokens_per_step=256).depth

    assert depth.peak_hi_bytes > depth.peak_lo_bytes


def test_runs_of_unequal_length_meet_quantile_by_quantile():
    found = extrapolate(seen_at(2, steps=9), seen_at(4, steps=4), LINE, tokens_per_step=256)

    assert found.step_s == pytest.approx(seen_at(16).step_s)


@given(
    base=st.integers(0, 10**9),
    each=st.integers(0, 10**8),
    depths=st.lists(st.integers(1, 200), min_size=3, max_size=3, unique=True).map(sorted),
)
def test_a_line_is_read_exactly_and_never_below_zero(base, each, depths):
    shallow, deep, layers = depths
    line = Line(shallow=shallow, deep=deep, layers=layers)

    assert line.whole(base + each * shallow, base + each * deep) == pytest.approx(
        base + each * layers, rel=1e-12, abs=1
    )
    assert line.at(10.0, 0.0) == 0.0


@pytest.mark.parametrize("depths", [(4, 2, 8), (2, 2, 8), (2, 8, 8), (0, 2, 8)])
def test_depths_that_do_not_ascend_are_refused(depths):
    with pytest.raises(ValueError, match="wanted two that ascend"):
        Line(shallow=depths[0], deep=depths[1], layers=depths[2])


def test_what_is_unknown_at_one_depth_is_unknown_at_full_depth():
    def on_gpu(layers):
        seen = seen_at(layers)
        reports = tuple(
            replace(
                report,
                tp_exposed_s=(None,) * len(report.step_s),
                used_bytes=1000 * layers,
                edges=(edge_report(1, seconds=None),),
                trace=rank_trace(),
            )
            for report in seen.ranks
        )
        return measurement_from(reports, tokens_per_step=256)

    drawn = extrapolate(on_gpu(2), on_gpu(4), LINE, tokens_per_step=256)

    assert drawn.tp_blocked_s is None
    assert {one.tp_exposed_s for one in drawn.ranks} == {(None,) * 5}
    assert drawn.ranks[0].edges[0].seconds is None
    assert drawn.ranks[0].used_bytes == 16000


def test_a_quantile_that_falls_with_the_layers_is_kept_at_what_was_seen():
    assert LINE.steps([0.3, 0.4, 0.5], [0.2, 0.45, 0.7]) == pytest.approx((0.2, 0.75, 1.9))
