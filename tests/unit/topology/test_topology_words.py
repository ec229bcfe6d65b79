"""The nearest legal word: always one, whatever the case."""

import pytest

from topology.words import nearest_word, slip_of, suggestion

GPUS = ("H100-SXM-80GB", "H100-SXM-96GB", "A100-SXM-80GB", "cpu")


@pytest.mark.parametrize(
    ("seen", "near"),
    [
        ("h100", "H100-SXM-80GB"),
        ("CPUs", "cpu"),
        ("A100", "A100-SXM-80GB"),
        ("B100-SXM-80GB", "H100-SXM-80GB"),
    ],
)
def test_the_nearest_is_found_whatever_the_case(seen, near):
    assert nearest_word(seen, GPUS) == near


def test_a_slip_is_asked_about_and_a_far_word_gets_the_nearest():
    assert suggestion("cuasal", ["full", "causal"]) == ", did you mean 'causal'?"
    assert suggestion(7, ["full", "causal"]) == "; nearest legal: full"
    assert suggestion("x", []) == ""


def test_a_slip_is_of_a_word_that_is_spelt_alike_or_of_none():
    assert slip_of("lama.toml", [".gitignore", "llama.toml"]) == "llama.toml"
    assert slip_of("nope", [".gitignore", "notes"]) is None
    assert slip_of("x", []) is None
