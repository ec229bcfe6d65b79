"""What the benchmark says of published rows that do not agree: twins, kinds of run, one check."""

from dataclasses import replace

import pytest
from predict_cases import candidate, case

from bench.floor import floor_of, noise_of, twins
from bench.kinds import Kind, check_that_explains, every_pipeline, kind_of, with_check
from bench.published import Published
from bench.scoring import ratio, spearman, tail
from cptune.domain.candidate import DataParallelKind
from cptune.domain.stack import Stack
from cptune.predict.activations import EAGER, HEAVY
from cptune.predict.memory import MemoryModel
from cptune.predict.prediction import Predictor

ZERO1, DDP = DataParallelKind.ZERO1, DataParallelKind.DDP
CHECK_S = 300e-6
WIDE: dict[str, int] = {"tp": 16, "micro_batch": 8}


def row(step_s=1.0, *, kind=ZERO1, footprint=None, world=512, **more):
    """A published row; `footprint` is the one that its peak has, none where it is not known."""
    tp = more.get("tp", 8)
    sizes = {"tp": tp, "dp": world // tp // more.get("pp", 1)} | more
    one = case(seq_len=4096, batch=256, world=world, stack=Stack.EAGER)
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


def told(one, check_s=0.0):
    """The row as it would be were the prediction right but for a check of each collective."""
    checked = replace(one.case, check_s=check_s)
    return replace(one, step_s=Predictor(checked).predict(one.candidate).time.step_s)


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
    assert kind_of(row(footprint=HEAVY, **WIDE)) is Kind.KEPT
    assert kind_of(row(footprint=EAGER, **WIDE)) is Kind.AGAIN
    assert kind_of(row(**WIDE)) is Kind.UNTOLD
    assert kind_of(row(tp=1, dp=256, footprint=HEAVY)) is Kind.UNTOLD


def test_a_planted_check_is_found_from_pipelines_of_other_sizes_and_given_to_slow_rows_alone():
    pipelines = [told(row(world=world, pp=2, **WIDE), CHECK_S) for world in (32, 64, 128)]
    slow = [told(row(world=world, footprint=EAGER, **WIDE), CHECK_S) for world in (32, 128, 512)]
    kept = told(row(footprint=HEAVY, **WIDE))
    (table, by_rule), with_stack, chosen = with_check([*slow, kept], pipelines)
    assert [line[2] for line in table.rows] == ["300"] * 3
    assert [ratio(with_stack(one)) for one in (*slow, kept)] == pytest.approx([1.0] * 4, abs=1e-3)
    assert all(ratio(one) < 0.9 for one in slow)
    assert with_stack(kept) == kept
    (used,) = (line for line in by_rule.rows if line[-1] == "used")
    assert used[2:4] == ["3", "0.0%"]
    assert chosen == pytest.approx(0, abs=1e-3)


def test_pipelines_of_the_same_size_say_nothing():
    pipelines = [
        told(row(world=world, pp=2, **WIDE), seconds)
        for world, seconds in ((32, 3000e-6), (64, CHECK_S))
    ]
    slow = told(row(world=32, footprint=EAGER, **WIDE), 3000e-6)
    kept = told(row(footprint=HEAVY, **WIDE))
    _, with_stack, _ = with_check([slow, kept], pipelines)
    assert with_stack(slow).case.check_s == pytest.approx(CHECK_S, rel=1e-2)
    assert ratio(with_stack(slow)) < 0.5


def test_what_tells_a_size_is_chosen_by_the_others_alone():
    pipelines = [told(row(world=world, pp=2, **WIDE), CHECK_S) for world in (32, 64, 128)]
    between = {"footprint": replace(EAGER, gathered=0.3 * HEAVY.gathered), "tp": 16}

    def chosen(check_s):
        sizes = [(world, n) for world in (32, 128, 512) for n in (2, 4, 8)]
        rows = [
            told(row(world=world, micro_batch=n, **between), check_s[world]) for world, n in sizes
        ]
        return with_check(rows, pipelines)[2]

    assert chosen(dict.fromkeys((32, 128, 512), CHECK_S)) == pytest.approx(0, abs=1e-3)
    assert chosen({32: 0.0, 128: 0.0, 512: CHECK_S}) > 0.3


def test_every_pipeline_is_shown_as_it_is_and_checked():
    pipelines = [
        told(row(world=world, pp=2, tp=tp, micro_batch=batch), CHECK_S)
        for world in (32, 64)
        for tp, batch in ((8, 4), (16, 8), (16, 2))
    ]
    for line in every_pipeline(pipelines, pipelines).rows:
        assert line[1] == "3"
        assert line[5:] == ["0.0%", "1.000", "1.000"]
        assert float(line[3]) < 0.9


def test_a_row_that_is_faster_than_predicted_is_not_checked():
    fast = row(1e-3, footprint=EAGER, **WIDE)
    assert check_that_explains(fast) == 0.0
