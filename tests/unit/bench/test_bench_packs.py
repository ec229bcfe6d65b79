"""Each sequence attends its own documents, whatever pass it is in and however rows are padded."""

import pytest
import torch

from cptune.attention import ContextParallel
from cptune.bench.batch import IGNORED, Sample
from cptune.bench.packs import Packs

PACKS = [(4, 7), (11,), (1, 9, 1)]


def packs_of(*, row_multiple=1):
    cp = ContextParallel(
        None,
        seq_len=11,
        mask="document",
        docs=(11,),
        kernel="math",
        heads=2,
        kv_heads=2,
        head_dim=4,
        dtype=torch.float64,
    )
    return Packs(cp, row_multiple=row_multiple)


def qkv(batch, rows):
    draw = torch.Generator().manual_seed(1)
    shape = (3, batch, rows, 2, 4)
    return torch.randn(shape, dtype=torch.float64, generator=draw).unbind()


def attended(q_BSHD, k_BSKD, v_BSKD, docs):
    """One sequence by torch's own attention, document after document."""
    parts = zip(*(one[0].split(docs) for one in (q_BSHD, k_BSKD, v_BSKD)), strict=True)
    return torch.cat(
        [
            torch.nn.functional.scaled_dot_product_attention(
                *(one.transpose(0, 1) for one in part), is_causal=True
            ).transpose(0, 1)
            for part in parts
        ]
    )


@pytest.mark.parametrize("row_multiple", [1, 4])
def test_every_sequence_of_a_pass_attends_its_own_documents(row_multiple):
    packs = packs_of(row_multiple=row_multiple)
    packs.prepare(PACKS)
    [context] = packs.contexts(PACKS, micro_batch=3)
    rows = context.positions_BS.shape[1]
    q_BSHD, k_BSKD, v_BSKD = qkv(3, rows)

    out_BSHD = context.attend(q_BSHD, k_BSKD, v_BSKD)

    assert rows == (11 if row_multiple == 1 else 12)
    assert not out_BSHD[:, 11:].any()
    for index, docs in enumerate(PACKS):
        own = slice(index, index + 1)
        want = attended(q_BSHD[own, :11], k_BSKD[own, :11], v_BSKD[own, :11], docs)
        torch.testing.assert_close(out_BSHD[index, :11], want, rtol=0, atol=1e-12)
    assert context.positions_BS[2, :11].tolist() == [0, *range(9), 0]


def test_passes_are_cut_in_order():
    packs = packs_of()
    packs.prepare(PACKS)

    contexts = packs.contexts(PACKS, micro_batch=1)

    assert [one.positions_BS[0].tolist().count(0) for one in contexts] == [2, 1, 3]


def test_equal_packs_share_one_context():
    packs = packs_of()
    packs.prepare([(4, 7), (4, 7)])

    [context] = packs.contexts([(4, 7), (4, 7)], micro_batch=2)

    assert context.positions_BS.shape == (1, 11)


def test_padding_has_no_label():
    packs = packs_of(row_multiple=4)
    sample = Sample(torch.arange(11), torch.arange(11), (4, 7))
    packs.prepare([sample.docs])

    tokens_BS, labels_BS = packs.shard([sample])

    assert tokens_BS.tolist() == [[*range(11), 0]]
    assert labels_BS.tolist() == [[*range(11), IGNORED]]


def test_the_work_of_a_step_is_that_of_its_documents():
    packs = packs_of()
    packs.prepare(PACKS)

    assert packs.work(PACKS).pairs == sum(
        length * (length + 1) // 2 for docs in PACKS for length in docs
    )
    assert packs.work(PACKS[:1]).pairs == 10 + 28
