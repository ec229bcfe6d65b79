"""Calibration: rates move, the band narrows, and the version says so."""

from dataclasses import replace
from math import exp, log

import pytest
from predict_cases import candidate, case

from cptune.predict.calibrate import UNCALIBRATED, Residual, calibrate
from cptune.predict.prediction import Predictor


def residual(compute=1.0, exposed=1.0, peak=1.0):
    return Residual(
        predicted_compute_s=10.0,
        measured_compute_s=10.0 * compute,
        predicted_exposed_s=2.0,
        measured_exposed_s=2.0 * exposed,
        predicted_peak_bytes=1e10,
        measured_peak_bytes=1e10 * peak,
    )


def test_no_trials_leave_the_model_as_it_is():
    assert calibrate([]) is UNCALIBRATED
    assert UNCALIBRATED.model_version("2026.2") == "2026.2"


def test_factors_are_means_shrunk_by_two_trials():
    found = calibrate([residual(compute=1.5)] * 2)
    assert found.compute_factor == pytest.approx(1.5**0.5)
    assert found.exposed_factor == 1.0
    many = calibrate([residual(compute=1.5, exposed=3.0)] * 98)
    assert many.compute_factor == pytest.approx(1.5**0.98)
    assert many.exposed_factor == pytest.approx(3.0**0.98)


def test_the_same_trials_give_the_same_version_and_others_another():
    one, two = calibrate([residual(peak=1.1)]), calibrate([residual(peak=1.2)])
    assert one.version == calibrate([residual(peak=1.1)]).version
    assert one.version != two.version
    assert one.model_version("2026.2").startswith("2026.2+1trials.")


def test_the_band_narrows_from_eight_trials_on_and_never_widens():
    peaks = [0.9, 1.1] * 4
    few, many = (calibrate([residual(peak=p) for p in peaks[:n]]) for n in (7, 8))
    assert few.peak_ratio is None
    wanted = max(abs(log(p / many.peak_factor)) for p in peaks)
    assert many.peak_ratio == pytest.approx(exp(wanted))
    low, centre, high = many.narrow(50.0, 100.0, 200.0)
    assert (low, high) == (centre / many.peak_ratio, centre * many.peak_ratio)
    assert replace(many, peak_ratio=9.0).narrow(50.0, 100.0, 200.0)[::2] == (50.0, 200.0)


def test_a_prediction_carries_the_calibration_that_moved_it():
    given, one = case(world=8, batch=1), candidate(cp=8)
    plain = Predictor(given).predict(one)
    learnt = calibrate([residual(compute=2.0, peak=0.9)] * 8)
    moved = Predictor(given, learnt).predict(one)
    assert moved.time.compute_s == pytest.approx(plain.time.compute_s * learnt.compute_factor)
    assert moved.memory.high_bytes < plain.memory.high_bytes
    assert moved.memory.low_bytes > plain.memory.low_bytes
    assert plain.model_version == "2026.3"
    assert moved.model_version == f"2026.3+{learnt.version}"


def test_a_measurement_of_nothing_is_refused():
    with pytest.raises(ValueError, match="wanted both above 0"):
        calibrate([residual(peak=0.0)])


def test_one_odd_trial_moves_little():
    steady = [residual(compute=2.0)] * 4
    found = calibrate([*steady, residual(compute=50.0)], belief_trials=0.0)
    assert found.compute_factor == pytest.approx(2.0)


def test_unknown_rates_are_learnt_whole_from_one_trial():
    found = calibrate([residual(compute=5.0, exposed=7.0, peak=1.2)], belief_trials=0.0)
    assert found.compute_factor == pytest.approx(5.0)
    assert found.exposed_factor == pytest.approx(7.0)
    assert found.peak_factor == pytest.approx(1.2 ** (1 / 3))  # bytes are counted, and believed


def test_waiting_that_nobody_predicted_goes_with_the_compute():
    hidden = replace(residual(), predicted_exposed_s=0.01, measured_exposed_s=10.0)
    found = calibrate([hidden], belief_trials=0.0)
    assert found.exposed_factor == 1.0
    assert found.compute_factor == pytest.approx(2.0)


def test_trials_of_one_kind_that_agree_leave_room_for_another_kind():
    alike = calibrate([residual(peak=0.9)] * 20)
    assert alike.peak_ratio == 1.06
    spread = calibrate([residual(peak=0.9)] * 10 + [residual(peak=1.2)] * 2)
    assert spread.peak_ratio > 1.2


def test_trials_that_are_faster_than_the_tables_know_leave_no_utilisation_and_no_error():
    given, one = case(), candidate(tp=8, dp=8)
    taught = calibrate([residual(compute=1e-3, exposed=1e-3)] * 50)

    assert Predictor(given).predict(one).mfu > 0
    assert Predictor(given, calibration=taught).predict(one).mfu is None
