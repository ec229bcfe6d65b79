"""Names of other software are told as ours; a slip of the hand is still that."""

import pytest
from fakes import sweep_spec
from hypothesis import given
from hypothesis import strategies as st

from cptune.cli import run
from cptune.domain.aliases import _table, known_as, meant
from cptune.domain.candidate import DataParallelKind, ShardingKind, Strategy
from cptune.domain.stack import Stack
from cptune.domain.workload import Norm, Precision
from cptune.errors import SpecError

SETS = (Stack, Strategy, ShardingKind, DataParallelKind, Precision, Norm)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(word, "fused") for word in ("megatron", "Transformer-Engine", "TE", "nemo", "Megatron-LM")]
    + [(word, "eager") for word in ("torchtitan", "nanotron", "torch", "fsdp")],
)
def test_a_stack_of_the_field_is_told_as_ours(theirs, ours):
    with pytest.raises(SpecError) as caught:
        sweep_spec(f'[stack]\nkind = "{theirs}"\n')

    assert f"not '{theirs}'; '{theirs}' is '{ours}' here" in str(caught.value)


def test_one_word_is_ours_by_the_set_it_is_asked_of():
    assert known_as("fsdp2", Stack) == "eager"
    assert known_as("fsdp2", DataParallelKind) == "fsdp"
    assert known_as("fsdp2", Strategy) is None


def test_a_flag_tells_it_too(tmp_path, capsys):
    assert run(["explain", str(tmp_path / "s.toml"), "--strategy", "a2a"]) == 2
    assert "'a2a' is 'ulysses' here" in capsys.readouterr().err


def test_a_slip_of_the_hand_is_no_alias():
    assert meant("eagr", Stack) == ", did you mean 'eager'?"


@given(st.sampled_from(sorted({ours for found in _table().values() for ours in found})))
def test_every_word_of_the_table_is_one_of_a_set(ours):
    assert any(ours in {*words} for words in SETS)
