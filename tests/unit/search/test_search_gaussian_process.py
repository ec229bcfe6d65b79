"""The Gaussian process against closed forms, and the gain against its integral."""

from math import exp, log, pi, sqrt

import numpy as np
import pytest

from cptune.search.gaussian_process import (
    Kernel,
    expected_improvement,
    fit_kernel,
    log_evidence,
    mean_below,
    normal_share,
    posterior,
)

KERNEL = Kernel(length=2.0, scale=0.5, offset=1.5, noise=0.1)
POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 2.0]])
VALUES = np.array([0.2, -0.1, 0.7])


def matern(apart, kernel=KERNEL):
    r = sqrt(5) * apart / kernel.length
    return kernel.scale**2 * (1 + r + r * r / 3) * exp(-r) + kernel.offset**2


def test_nothing_known_is_the_prior():
    mean, sd = posterior(KERNEL, np.zeros((0, 2)), np.zeros(0), POINTS)
    assert mean.tolist() == [0, 0, 0]
    assert sd == pytest.approx([sqrt(0.25 + 2.25)] * 3)


def test_one_reading_is_the_closed_form():
    mean, sd = posterior(KERNEL, POINTS[:1], VALUES[:1], POINTS[1:2])
    prior, shared = 2.5, matern(1.0)
    assert mean == pytest.approx([shared / (prior + 0.01) * 0.2])
    assert sd == pytest.approx([sqrt(prior - shared**2 / (prior + 0.01))])


def test_many_readings_are_the_normal_equations():
    asked = np.array([[2.0, 1.0], [0.0, 0.0]])
    k_NN = KERNEL.covariance(POINTS, POINTS) + 0.01 * np.eye(3)
    k_NM = KERNEL.covariance(POINTS, asked)
    mean, sd = posterior(KERNEL, POINTS, VALUES, asked)
    assert mean == pytest.approx(k_NM.T @ np.linalg.inv(k_NN) @ VALUES)
    left = 2.5 - np.diag(k_NM.T @ np.linalg.inv(k_NN) @ k_NM)
    assert sd == pytest.approx(np.sqrt(left))


def test_without_noise_a_reading_is_met():
    exact = Kernel(length=2.0, scale=0.5, offset=1.5, noise=1e-6)
    mean, sd = posterior(exact, POINTS, VALUES, POINTS)
    assert mean == pytest.approx(VALUES, abs=1e-6)
    assert sd == pytest.approx([0.0] * 3, abs=1e-4)


def test_the_evidence_is_the_density_of_the_readings():
    k_NN = KERNEL.covariance(POINTS, POINTS) + 0.01 * np.eye(3)
    density = exp(-0.5 * VALUES @ np.linalg.inv(k_NN) @ VALUES)
    density /= sqrt((2 * pi) ** 3 * np.linalg.det(k_NN))
    assert log_evidence(KERNEL, POINTS, VALUES) == pytest.approx(log(density))


def test_readings_that_swing_fit_a_larger_scale_than_calm_ones():
    line = np.arange(8.0)[:, None]
    calm, wild = 0.02 * np.sin(line[:, 0]), 1.5 * np.sin(line[:, 0])
    scales = [fit_kernel(line, y, offset=2.0, noise=0.03).scale for y in (calm, wild)]
    assert scales[0] == 0.1
    assert scales[1] >= 0.8


@pytest.mark.parametrize(("mean", "sd"), [(0.0, 1.0), (0.5, 0.2), (-0.4, 0.3), (2.0, 0.5)])
def test_the_gain_is_its_integral(mean, sd):
    best, z = 0.3, np.linspace(-9, 9, 200_001)
    density = np.exp(-0.5 * z * z) / sqrt(2 * pi)
    integral = np.trapezoid(np.maximum(best - mean - sd * z, 0) * density, z)
    assert expected_improvement(mean, sd, best) == pytest.approx(integral, abs=1e-8)


def test_a_certain_value_gains_what_it_lies_below():
    assert expected_improvement(1.0, 0.0, 1.5) == 0.5
    assert expected_improvement(2.0, 0.0, 1.5) == 0.0


def test_the_normal_share_is_one_half_in_the_middle():
    assert (normal_share(0), normal_share(1.96)) == pytest.approx((0.5, 0.975), abs=1e-3)


@pytest.mark.parametrize(("mean", "sd", "bound"), [(0, 1, 0), (0.1, 0.2, 0), (-1, 0.5, 0.3)])
def test_the_mean_below_a_bound_is_its_integral(mean, sd, bound):
    x = np.linspace(mean - 9 * sd, bound, 200_001)
    density = np.exp(-0.5 * ((x - mean) / sd) ** 2)
    integral = np.trapezoid(x * density, x) / np.trapezoid(density, x)
    assert mean_below(mean, sd, bound) == pytest.approx(integral, abs=1e-6)
    assert mean_below(100.0, 1.0, 0.0) == 0.0
