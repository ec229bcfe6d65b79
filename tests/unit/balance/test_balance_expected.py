"""The load that a workload's documents make: the same as simulating its steps one by one."""

import numpy as np
import pytest

from cptune.balance.distributions import read_distribution
from cptune.balance.expected import expect_load, slowest_over_mean
from cptune.balance.pack import cut_stream
from cptune.balance.simulate import Setting, sequential_times
from cptune.balance.spread import SpreadMeter
from cptune.balance.work import Work, published_token_keys
from cptune.domain.workload import AttentionMask, Workload
from cptune.errors import SpecError
from cptune.store.balance import open_lengths

STEPS = 1000


def workload(lengths, *, seq_len=32768, batch=64, mask=AttentionMask.DOCUMENT):
    return Workload(seq_len=seq_len, global_batch_seqs=batch, mask=mask, lengths=lengths)


def load(lengths, *, world=64, **changes):
    asked = workload(lengths, **changes)
    return expect_load(asked, world_size=world, open_file=open_lengths)


def simulated_rows(lengths, *, seq_len, batch, work):
    """Work of every sequence of `STEPS` steps, in random order."""
    setting = Setting(world=batch, tokens_per_gpu=seq_len, cps=(1,), work=work)
    need = STEPS * setting.step_tokens
    drawn = np.concatenate(list(read_distribution(lengths).chunks(need, seed=1)))
    documents, _ = cut_stream(drawn, need)
    rows = sequential_times(documents, setting=setting)[1]
    return np.random.default_rng(2).permutation(rows.ravel()).reshape(STEPS, batch)


@pytest.mark.parametrize("lengths", ["prolong", "wlb-llm", "lognormal(mean=3000, sigma=1.2)"])
@pytest.mark.parametrize("seq_len", [4096, 32768])
def test_the_expected_straggler_is_that_of_simulated_steps(lengths, seq_len):
    found = load(lengths, seq_len=seq_len)
    work = Work(token_keys=published_token_keys())
    rows = simulated_rows(lengths, seq_len=seq_len, batch=64, work=work)
    for groups in (2, 8, 64):
        meter = SpreadMeter()
        meter.add(rows.reshape(STEPS, groups, -1).sum(axis=2))
        seen = meter.spread().slowest_over_mean
        assert found.straggler_factor(groups) - 1 == pytest.approx(seen - 1, rel=0.08)
    pairs = simulated_rows(lengths, seq_len=seq_len, batch=64, work=Work()).mean()
    assert found.pairs_per_sequence == pytest.approx(pairs, rel=0.03)


def test_every_division_of_the_batch_that_the_world_allows_is_known():
    assert set(load("prolong", batch=48, world=16).slowest_over_mean) == {1, 2, 3, 4, 6, 8, 12, 16}


def test_even_sequences_have_no_straggler_and_one_group_never():
    assert load("prolong").straggler_factor(1) == 1.0
    even = slowest_over_mean(np.full(100, 3.0), batch=8, groups=[1, 2, 8])
    assert even == pytest.approx({1: 1.0, 2: 1.0, 8: 1.0})


def test_the_same_lengths_give_the_same_load():
    assert load("prolong") == load("prolong")


def test_a_file_counts_as_the_lengths_in_it(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(["1000"] * 900 + ["30000"] * 100))
    from_file = load(str(path))
    named = load("quantiles(0=1000, 0.8999=1000, 0.9=30000, 1=30000)")
    assert from_file.straggler_factor(64) == pytest.approx(named.straggler_factor(64), rel=0.03)
    assert from_file.pairs_per_sequence == pytest.approx(named.pairs_per_sequence, rel=0.01)


def test_without_documents_in_the_mask_there_is_no_load_but_the_file_is_checked(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("10\n-3\n")
    assert load("full") is None
    assert load("prolong", mask=AttentionMask.CAUSAL) is None
    with pytest.raises(SpecError, match=r"workload\.lengths \| .*lengths\.txt:2: '-3' is no"):
        load(str(path), mask=AttentionMask.CAUSAL)
