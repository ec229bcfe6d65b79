"""Merging blocks of keys: symmetric, exact, and indifferent to rows that saw nothing."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cptune.attention.merge import Partial, accumulator_dtype, merge_partials
from cptune.attention.slices import Rows

INF = float("inf")
scores = st.one_of(st.just(-INF), st.floats(-800, 800, width=32))


def partial(lse: list[float], value: float) -> tuple[Tensor, Tensor]:
    """(out_BSHD, lse_BHS) with one row and head a score."""
    lse_BHS = torch.tensor(lse, dtype=torch.float64)[None, :, None]
    return torch.full((1, 1, len(lse), 2), value, dtype=torch.float64), lse_BHS


@settings(deadline=None)  # another job may hold the core
@given(st.lists(st.tuples(scores, scores), min_size=1, max_size=8))
def test_merge_is_symmetric_and_never_nan(pairs: list[tuple[float, float]]) -> None:
    a, b = partial([x for x, _ in pairs], 1.0), partial([y for _, y in pairs], -2.0)
    one_out, one_lse = merge_partials(*a, *b)
    two_out, two_lse = merge_partials(*b, *a)
    torch.testing.assert_close(one_out, two_out, rtol=0, atol=0)
    torch.testing.assert_close(one_lse, two_lse, rtol=0, atol=0)
    assert one_out.isfinite().all()
    assert not one_lse.isnan().any()


@settings(deadline=None)  # another job may hold the core
@given(st.lists(scores, min_size=1, max_size=8))
def test_a_block_that_saw_nothing_changes_nothing(lse: list[float]) -> None:
    seen = partial(lse, 3.0)
    out, merged = merge_partials(*seen, *partial([-INF] * len(lse), 99.0))
    expected = torch.where(seen[1].transpose(1, 2).unsqueeze(-1) == -INF, 0.0, seen[0])
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    torch.testing.assert_close(merged, seen[1], rtol=0, atol=0)


def test_merging_two_halves_equals_one_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    scores_BHSR = torch.randn(2, 3, 5, 8, generator=generator, dtype=torch.float64)
    v_BRHD = torch.randn(2, 8, 3, 4, generator=generator, dtype=torch.float64)

    def attend(keys: slice) -> tuple[Tensor, Tensor]:
        part = scores_BHSR[..., keys]
        out = torch.einsum("bhsr,brhd->bshd", part.softmax(dim=-1), v_BRHD[:, keys])
        return out, part.logsumexp(dim=-1)

    out, lse = merge_partials(*attend(slice(0, 3)), *attend(slice(3, 8)))
    whole_out, whole_lse = attend(slice(0, 8))
    torch.testing.assert_close(out, whole_out, rtol=0, atol=1e-14)
    torch.testing.assert_close(lse, whole_lse, rtol=0, atol=1e-14)


def test_adding_in_place_is_the_same_merge_on_the_rows_named() -> None:
    q_BSHD = torch.zeros(1, 4, 2, 3, dtype=torch.float64)
    gathered = Partial.empty(q_BSHD)
    a = (torch.full((1, 2, 2, 3), 1.0).double(), torch.full((1, 2, 2), 0.5).double())
    b = (torch.full((1, 2, 2, 3), 5.0).double(), torch.full((1, 2, 2), 1.5).double())
    gathered.add(Rows(1, 3), *a)
    gathered.add(Rows(1, 3), *b)
    out, lse = merge_partials(*a, *b)
    torch.testing.assert_close(gathered.out[:, 1:3], out)
    torch.testing.assert_close(gathered.lse[:, :, 1:3], lse)
    assert (gathered.out[:, [0, 3]] == 0).all()
    assert (gathered.lse[:, :, [0, 3]] == -INF).all()


def test_accumulators_are_fp32_or_better() -> None:
    assert accumulator_dtype(torch.bfloat16) == torch.float32
    assert accumulator_dtype(torch.float32) == torch.float32
    assert accumulator_dtype(torch.float64) == torch.float64
    assert Partial.empty(torch.zeros(1, 2, 3, 4, dtype=torch.bfloat16)).out.dtype == torch.float32
