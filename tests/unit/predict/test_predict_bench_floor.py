"""What the benchmark says of published rows that do not agree: twins, kinds of run, one wait."""

from dataclasses import replace

import pytest
from predict_cases import candidate, case

from bench.floor import floor_of, noise_of, twins
from bench.kinds import Kind, kind_of, with_wait
from bench.published import Published
from bench.scoring import ratio, spearman, tail
from cptune.domain.candidate import DataParallelKind
from cptune.domain.stack import Stack
from cptune.predict.activations import EAGER, HEAVY
from cptune.predict.memory import MemoryModel
from cptune.predict.prediction import Predictor

ZERO1, DDP = DataParallelKind.ZERO1, DataParallelKind.DDP
WAIT_S = 400e-6


def row(step_s=1.0, *, kind=ZERO1, footprint=None, **more):
    """A published row; `footprint` is the one that its peak has, none where it is not known."""
    sizes = {"tp": 8, "dp": 64} | more
    one = case(seq_len=4096, batch=256, world=512, stack=Stack.EAGER)
    tried = candidate(kind=kind, **sizes)
    peak = footprint and MemoryModel(one).worst(tried, footprint).allocated_bytes
    return Published(
        source="hf-playbook",
        row={"model": "llama3-8b"},
        case=one,
        candidate=tried,
        step_s=step_s,
        peak_bytes=peak,
    )


def told(one, wait_s=0.0):
    """The row as it would be were the prediction right but for a wait at each collective."""
    said = Predictor(one.case).predict(one.candidate).time.step_s
    lay = one.candidate.layout
    passes = 256 // lay.dp // one.candidate.micro_batch
    return replace(one, step_s=said + wait_s * passes * 32 * 8 * (lay.tp - 1))


def floor(*rows):
    return floor_of(rows, noise_of(rows), rank=spearman, tail=tail)


def test_twins_are_one_layout_but_for_the_zero_stage():
    same = [row(kind=DDP), row(kind=ZERO1)]
    assert twins([*same, row(micro_batch=2), row(tp=16, dp=32)]) == [same]


def test_twins_that_agree_leave_no_floor_whatever_the_zero_stage_costs():
    rows = [
        row(seconds * cost, kind=kind, micro_batch=batch)
        for seconds, batch in ((1.0, 1), (2.0, 2), (4.0, 4))
        for kind, cost in ((DDP, 1.0), (ZERO1, 1.2))
    ]
    found = floor(*rows)
    assert found.oracle_tail == pytest.approx(0)
    assert found.drawn_tail == pytest.approx((0, 0, 0))
    assert found.oracle_rank == found.drawn_rank[0] == 1


def test_twins_that_do_not_agree_are_a_floor_of_both():
    even = [row(kind=kind, micro_batch=batch) for batch in (1, 2) for kind in (DDP, ZERO1)]
    torn = [row(1.0, kind=DDP, micro_batch=4), row(4.0, kind=ZERO1, micro_batch=4)]
    found = floor(*torn, *even)
    assert found.paired == found.rows == 6
    assert found.oracle_tail == pytest.approx((4 - 1) / (4 + 1))
    assert found.drawn_tail[2] == pytest.approx(4 ** (1 / 2**0.5) - 1)
    assert found.drawn_rank[0] < 1


def test_a_peak_tells_what_was_kept_where_the_footprints_differ():
    assert kind_of(row(tp=16, dp=32, micro_batch=8, footprint=HEAVY)) is Kind.KEPT
    assert kind_of(row(tp=16, dp=32, micro_batch=8, footprint=EAGER)) is Kind.AGAIN
    assert kind_of(row(tp=16, dp=32, micro_batch=8)) is Kind.UNTOLD
    assert kind_of(row(tp=1, dp=256, footprint=HEAVY)) is Kind.UNTOLD


def test_a_planted_wait_is_found_from_other_sizes_and_given_to_slow_rows_alone():
    slow = [
        told(row(tp=tp, dp=512 // tp, micro_batch=4, footprint=EAGER), WAIT_S) for tp in (8, 16, 32)
    ]
    kept = told(row(tp=16, dp=32, micro_batch=8, footprint=HEAVY))
    table, waited = with_wait([*slow, kept], ratio)
    assert [line[2] for line in table.rows] == ["400"] * 3
    assert [waited(one) for one in (*slow, kept)] == pytest.approx([1.0] * 4)
    assert all(ratio(one) < 0.9 for one in slow)


def test_a_wait_that_is_no_constant_is_not_hidden_by_the_fit():
    slow = [
        told(row(tp=tp, dp=512 // tp, micro_batch=4, footprint=EAGER), wait_s)
        for tp, wait_s in ((8, WAIT_S), (16, WAIT_S), (32, 5 * WAIT_S))
    ]
    _, waited = with_wait(slow, ratio)
    assert waited(slow[-1]) < 0.5
