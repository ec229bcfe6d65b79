"""Samples are a function of seed, step and number alone, documents included."""

import pytest
import torch
from fakes import workload

from cptune.bench.batch import IGNORED, load_sample, sample_hash, sample_ids

LENGTHS = (3, 5, 8, 100)
WORK = workload(seq_len=64, global_batch_seqs=8, mask="document")


def load(sample, *, step=0, seed=1, lengths=LENGTHS):
    return load_sample(sample, step=step, seed=seed, workload=WORK, vocab=40, lengths=lengths)


def test_documents_fill_the_sequence_and_the_last_token_of_each_has_no_label():
    sample = load(3)

    assert sum(sample.docs) == 64
    assert set(sample.docs[:-1]) <= set(LENGTHS)
    ends = torch.tensor(sample.docs).cumsum(0) - 1
    assert sorted((sample.labels_T == IGNORED).nonzero().flatten().tolist()) == ends.tolist()
    rest = torch.ones(64, dtype=torch.bool)
    rest[ends] = False
    assert torch.equal(sample.labels_T[rest][:1], sample.tokens_T[1:2])


@pytest.mark.parametrize("change", [{"sample": 4}, {"step": 1}, {"seed": 2}])
def test_each_sample_of_each_step_has_its_own_documents(change):
    assert load(3).docs == load(3).docs
    assert load(**({"sample": 3} | change)).docs != load(3).docs


def test_documents_do_not_change_the_text():
    assert torch.equal(load(3).tokens_T, load(3, lengths=()).tokens_T)
    assert load(3, lengths=()).docs == ()


@pytest.mark.parametrize("dp_size", [1, 2, 4, 8])
def test_hashes_of_the_groups_add_up_to_that_of_the_batch(dp_size):
    whole = int(sample_hash(range(8), map(load, range(8))), 16)
    parts = 0
    for dp_rank in range(dp_size):
        ids = sample_ids(dp_rank=dp_rank, dp_size=dp_size, global_batch_seqs=8)
        parts += int(sample_hash(ids, map(load, ids)), 16)
    assert parts % 2**64 == whole


@pytest.mark.parametrize("field", ["tokens_T", "labels_T", "docs"])
def test_a_hash_sees_text_labels_and_documents(field):
    sample = load(3)
    other = (8, 56) if field == "docs" else getattr(sample, field) + 1

    assert sample_hash([3], [sample]) != sample_hash([3], [sample._replace(**{field: other})])
    assert sample_hash([3], [sample]) != sample_hash([4], [sample])
