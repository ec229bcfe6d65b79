"""Presets that have the published size, and divisors for the nearest legal value."""

import pytest
from fakes import model, workload
from hypothesis import given
from hypothesis import strategies as st

from cptune.domain.units import bytes_text
from cptune.domain.workload import divisors, nearest_divisor, preset_fields, preset_names


@pytest.mark.parametrize(
    ("preset", "billions"),
    [
        ("llama2-7b", 6.74),
        ("llama2-13b", 13.02),
        ("llama2-70b", 68.98),
        ("llama3-8b", 8.03),
        ("llama3-70b", 70.55),
        ("llama3-405b", 405.85),
        ("llama3.2-1b", 1.24),
        ("llama3.2-3b", 3.21),
        ("qwen2.5-7b", 7.62),
        ("qwen3-8b", 8.19),
        ("mistral-7b", 7.24),
        ("gpt3-175b", 174.6),
    ],
)
def test_a_preset_has_its_published_parameters(preset, billions):
    # Half a unit of the last published digit; GPT-3 learns its positions, Qwen has biases.
    digits = len(str(billions).split(".")[1])

    assert model(preset).parameters / 1e9 == pytest.approx(billions, abs=0.55 * 10**-digits)


def test_every_preset_is_a_valid_shape():
    assert len(preset_names()) > 20
    for name in preset_names():
        assert model(name).parameters > 0
        assert "source" not in preset_fields(name)


def test_tiny_is_counted_by_hand():
    attention = 64 * 8 * 2 * (8 + 4)
    mlp = 3 * 64 * 128

    assert model().parameters == 2 * (attention + mlp + 2 * 64) + 2 * 256 * 64 + 64
    assert model(tied_embeddings=True).parameters == model().parameters - 256 * 64


def test_an_unknown_preset_lists_the_known():
    with pytest.raises(
        ValueError,
        match=r"preset 'llama9' is not known, did you mean 'llama3-8b'\? known: gpt3-13b, .*tiny",
    ):
        preset_fields("llama9")


def test_query_heads_are_a_multiple_of_kv_heads():
    with pytest.raises(
        ValueError, match=r"heads \(30\) must be a multiple of kv_heads \(8\); nearest .*: 6"
    ):
        model(heads=30, kv_heads=8)


@pytest.mark.parametrize("size", [0, -1, 10**400, 2**24 + 1])
def test_a_size_that_no_model_has_is_refused(size):
    with pytest.raises(ValueError, match=rf"^heads is {size}; wanted 1 (or more|to 16,777,216)$"):
        model(heads=size)


def test_tokens_of_a_step_are_those_of_the_whole_job():
    assert workload(seq_len=2048, global_batch_seqs=6).tokens_per_step == 12288


@given(st.integers(1, 5000))
def test_divisors_are_all_of_them_ascending(number):
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_divisors_of_a_large_prime_are_found_quickly():
    assert divisors(1_000_000_007) == [1, 1_000_000_007]


@pytest.mark.parametrize(
    ("number", "wanted", "near"), [(8, 3, 2), (12, 5, 4), (7, 3, 1), (7, 5, 7), (8, 100, 8)]
)
def test_the_nearest_divisor_is_the_smaller_of_two(number, wanted, near):
    assert nearest_divisor(number, wanted) == near


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (-1536, "-1.50 KiB"),
        (1 << 20, "1.00 MiB"),
        (80 * (1 << 30), "80.00 GiB"),
        (3 << 40, "3.00 TiB"),
    ],
)
def test_bytes_are_said_in_the_largest_unit(count, text):
    assert bytes_text(count) == text
