"""Messages of gradients: how near they are, and that their scale costs no byte."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cptune.attention.rounding import (
    ROUNDINGS,
    Rounding,
    _power_of_two,
    default_rounding,
    read_rounding,
)

SCALED = ROUNDINGS["scaled_fp16"]
FINE = 2.0**-11  # half a unit in the last of fp16's 11 bits
COARSE = 2.0**-6 + FINE  # of a message as short as one key and one value of one element


def decode(message: Tensor, rounding: Rounding = SCALED) -> Tensor:
    return message.double() * rounding.factor(message).double()


def make(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(exponent=st.integers(-90, 110), count=st.integers(2, 40), seed=st.integers(0, 9))
def test_a_scaled_message_is_near_at_every_magnitude(exponent: int, count: int, seed: int) -> None:
    part = make(count, seed=seed) * 2.0**exponent
    message = SCALED.encode(part.clone())
    assert (message.shape, message.dtype) == (part.shape, torch.float16)
    relative = ((decode(message) - part.double()) / part.double()).abs()
    assert (relative[8:] <= FINE).all()
    assert (relative <= (3 * FINE if count >= 8 else COARSE)).all()


def test_a_scale_is_a_power_of_two_to_the_bit() -> None:
    exponents = torch.arange(-126, 128)
    assert _power_of_two(exponents).tolist() == [2.0**at for at in range(-126, 128)]


def test_it_is_an_eighth_of_bf16_off() -> None:
    part = make(256, 2, 1, 2, 64) * 1e-6
    errors = [
        (decode(one.encode(part.clone()), one) - part.double()).norm().item()
        for one in (SCALED, ROUNDINGS["bf16"])
    ]
    assert errors[0] == pytest.approx(errors[1] / 8, rel=0.05)


def test_elements_a_millionth_of_the_largest_keep_all_their_bits() -> None:
    part = make(1000).sign() * torch.logspace(-6, 0, 1000)
    relative = ((decode(SCALED.encode(part.clone())) - part.double()) / part.double()).abs()
    assert relative[8:].max().item() <= FINE


def test_zeros_stay_zeros_and_nothing_stays_nothing() -> None:
    assert not decode(SCALED.encode(torch.zeros(3, 4))).any()
    empty = SCALED.encode(torch.empty(0, 4))
    assert (empty.shape, empty.dtype) == ((0, 4), torch.float16)
    assert decode(empty).numel() == 0


def test_magnitudes_beyond_fp32_do_not_come_back_as_others() -> None:
    part = make(20).double()
    assert not decode(SCALED.encode(part * 2.0**200)).isfinite().any()
    assert decode(SCALED.encode(part * 2.0**-200)).abs().max() < 2.0**-100


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_arrives_so(bad: float) -> None:
    part = make(20)
    part[13] = bad
    found = decode(SCALED.encode(part.clone()))
    assert not found[13].isfinite()
    assert found[:13].isfinite().all()


def test_a_scale_that_is_not_read_is_seen() -> None:
    part = make(64) * 1e-3
    message = SCALED.encode(part.clone())
    assert (message.double() - part.double()).norm() > part.double().norm()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_a_scale_a_message_is_the_partial_in_its_type(dtype: torch.dtype) -> None:
    part = make(5, 3)
    message = Rounding(dtype).encode(part)
    assert torch.equal(message, part.to(dtype))
    assert torch.equal(decode(message, Rounding(dtype)), part.to(dtype).double())


def test_halves_are_scaled_and_wider_types_stay() -> None:
    assert default_rounding(torch.bfloat16) == default_rounding(torch.float16) == SCALED
    assert default_rounding(torch.float32) == Rounding(torch.float32)
    assert default_rounding(torch.float64) == Rounding(torch.float64)
    assert read_rounding(None) is None
    assert read_rounding("bf16") == Rounding(torch.bfloat16)
