"""FLOPs of a step: parameters, the causal half, GQA, SwiGLU and the two conventions."""

import pytest
from predict_cases import case, preset

from cptune.domain.candidate import Recompute
from cptune.domain.documents import DocumentLoad
from cptune.domain.workload import AttentionMask, ModelShape, Workload
from cptune.predict.flops import mfu, step_flop

TOY = ModelShape(layers=2, hidden=4, heads=2, kv_heads=1, head_dim=2, ffn=8, vocab=10)


def flop(model, seq_len, recompute=Recompute.NONE, *, documents=None, **more):
    workload = Workload(seq_len=seq_len, global_batch_seqs=1, **more)
    return step_flop(model, workload, recompute, documents)


def test_llama3_8b_has_its_published_parameters():
    assert preset("llama3-8b").parameters == 8_030_261_248


def test_every_term_of_a_toy_is_counted_by_hand():
    per_token = 2 * (4 * 2 * (2 + 1) * 2 + 3 * 4 * 8)  # q, k, v, out and three of the mlp
    matrices, head = 2 * per_token * 6, 2 * 4 * 10 * 6
    attention = 2 * 4 * (6 * 6 / 2) * 2 * 2
    assert flop(TOY, 6).model == 3 * (matrices + head + attention)
    assert flop(TOY, 6).full_square == 3 * (matrices + head + 2 * attention)
    assert flop(TOY, 6).hardware == 3 * (matrices + head) + 3.5 * attention
    full = flop(TOY, 6, Recompute.FULL)
    assert full.model == flop(TOY, 6).model
    assert full.hardware == flop(TOY, 6).hardware + matrices + attention


@pytest.mark.parametrize(("seq_len", "share"), [(8192, 0.13), (131072, 0.70), (524288, 0.90)])
def test_attention_is_the_known_share_of_llama3_8b(seq_len, share):
    whole = flop(preset("llama3-8b"), seq_len)
    attention = whole.full_square - whole.model  # the other half
    assert attention / whole.model == pytest.approx(share, abs=0.01)


def test_gelu_has_two_matrices_and_a_full_mask_no_half():
    gelu = ModelShape(
        layers=1, hidden=4, heads=1, kv_heads=1, head_dim=4, ffn=16, vocab=1, mlp="gelu"
    )
    assert flop(gelu, 1, mask=AttentionMask.FULL).model == 3 * (
        2 * (4 * 4 * 4 + 2 * 4 * 16) + 2 * 4 + 4 * 4
    )


def test_a_document_mask_counts_the_squares_of_its_documents():
    four = DocumentLoad(pairs_per_sequence=4 * 3.0, slowest_over_mean={1: 1.0})
    whole = flop(TOY, 8, documents=four, mask=AttentionMask.DOCUMENT, lengths="fixed(tokens=2)")
    attention = 2 * 4 * 12 * 2 * 2
    assert flop(TOY, 8).model - whole.model == 3 * (2 * 4 * (8 * 8 / 2) * 4 - attention)


def test_a_rate_above_the_peak_is_refused():
    assert mfu(4e12, step_s=1.0, world_size=2, peak_flop_per_s=4e12) == 0.5
    with pytest.raises(ValueError, match=r"is 2\.00 of their peak"):
        mfu(16e12, step_s=1.0, world_size=2, peak_flop_per_s=4e12)


def test_experts_count_what_a_token_visits():
    moe = ModelShape(
        layers=1, hidden=4, heads=1, kv_heads=1, head_dim=4, ffn=16, vocab=1, experts=8,
        experts_per_token=2, expert_ffn=8,
    )  # fmt: skip
    dense = ModelShape(layers=1, hidden=4, heads=1, kv_heads=1, head_dim=4, ffn=16, vocab=1)
    assert flop(moe, 4).model == flop(dense, 4).model
    assert moe.parameters - dense.parameters == 3 * 4 * (8 * 8 - 16) + 4 * 8


def test_the_case_of_the_tests_is_what_it_says():
    assert case().workload.tokens_per_step == 131072
