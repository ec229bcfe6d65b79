"""The curve on a launcher that knows the truth: bytes by length and degree, no process."""

import io
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from fakes import ScriptedLauncher, failed, measured, out_of_memory, sweep_spec
from rich.console import Console

from cptune.curve import CurveStudy
from cptune.domain.asked import CurveAsked
from cptune.domain.curve import CurveGrid
from cptune.domain.memory import MemorySplit
from cptune.domain.outcome import OutcomeKind
from cptune.errors import LedgerError, SpecError
from cptune.predict.limits import Hardware
from cptune.report.curve import curve_lines, curve_page, row_cells
from cptune.report.figures import curve_figure
from cptune.search.curve_plan import CurvePlan
from cptune.search.prepare import resolve
from cptune.store.curve import ROWS, read_curve, write_curve

CAPACITY = 1_000_000
STATES = 40_000


def split_of(rest):
    return MemorySplit(
        states_bytes=STATES,
        activations_bytes=rest,
        logits_bytes=0,
        comm_bytes=0,
        transient_bytes=0,
        optimizer_peak_bytes=STATES,
    )


def study(*, rest_of, step_of=lambda tokens, cp: 1.0, asked=None, loss_of=lambda cp: 5.0, known=()):
    """Run a curve whose truth is `rest_of(tokens of a rank)` bytes beside the states."""
    spec = resolve(sweep_spec("[axes]\ntp = [1]\ncp = [1, 2, 4]\npp = [1]\n"), None)
    plan = CurvePlan(spec, asked or CurveAsked(seq_lens="512,1024,2048"))
    tried = []

    def launcher_of(at):
        tokens = at.workload.seq_len

        def answer(candidate):
            cp = candidate.layout.cp
            tried.append((cp, tokens))
            rest = rest_of(tokens / cp)
            if STATES + rest > CAPACITY:
                return out_of_memory(STATES + rest - CAPACITY)
            seen = measured(
                peak_bytes=STATES + rest,
                step_s=step_of(tokens, cp),
                memory=split_of(rest),
                first_loss=loss_of(cp),
            )
            return replace(seen, forward_peak_bytes=STATES + rest // 2)

        return ScriptedLauncher(default=answer)

    kept = []
    made = CurveStudy(
        plan,
        launcher_of=launcher_of,
        capacity_bytes=CAPACITY,
        hardware=Hardware(cores=(None,)),
        keep=lambda row, rows: kept.append(len(rows)),
        known=known,
    )
    return made.run(), tried, kept


def linear(tokens):
    return round(500 * tokens)


def test_each_degree_reaches_its_longest_length_in_few_trials():
    curve, tried, kept = study(rest_of=linear)

    answer = curve.to_json()
    assert answer["longest_fitting_seq_len"] == {"1": 1920, "2": 3840, "4": 7680}
    assert answer["exponent"] == {cp: pytest.approx(1.0, abs=1e-3) for cp in "124"}
    assert answer["shortest_helping_seq_len"]["fits"] == 1984
    assert len(tried) <= 16
    assert kept == list(range(1, len(tried) + 1))


def test_a_curve_cut_after_any_row_goes_on_to_the_same_and_tries_nothing_twice(tmp_path):
    whole, tried, _ = study(rest_of=linear, loss_of=lambda cp: 5.0 + (cp == 4))
    assert OutcomeKind.WRONG_RESULT in {row.kind for row in whole.rows}

    for count in range(len(whole.rows) + 1):
        write_curve(tmp_path / ROWS, whole.rows[:count])
        known = read_curve(tmp_path)
        again, rest, kept = study(rest_of=linear, loss_of=lambda cp: 5.0 + (cp == 4), known=known)

        assert tried[:count] + rest == tried
        assert kept == list(range(count + 1, len(tried) + 1))
        assert again.to_json() == whole.to_json()
        assert curve_lines(again) == curve_lines(whole)
        assert [row_cells(row) for row in again.rows] == [row_cells(row) for row in whole.rows]


def test_rows_that_cannot_be_read_are_not_measured_over(tmp_path):
    assert read_curve(tmp_path) == []
    (tmp_path / ROWS).write_bytes(b"PAR1 and no more")

    with pytest.raises(LedgerError, match="holds no rows to go on from"):
        read_curve(tmp_path)


def test_scores_written_out_are_suspected():
    curve, _, _ = study(rest_of=lambda tokens: round(50 * tokens + 0.5 * tokens**2))

    assert curve.exponent(1) > 1.6
    assert any("an attention that writes its scores is suspected" in w for w in curve.warnings())
    assert not study(rest_of=linear)[0].warnings()


def test_a_degree_is_faster_only_beyond_the_spread():
    faster, _, _ = study(
        rest_of=linear, step_of=lambda tokens, cp: 1.0 if tokens < 1024 else 1 / cp
    )
    never, _, _ = study(rest_of=linear)

    assert faster.shortest_faster() == 1024
    assert never.shortest_faster() is None


def test_nothing_fits_is_said_and_everything_is_kept(tmp_path):
    curve, tried, _ = study(rest_of=lambda tokens: 2 * CAPACITY)

    assert curve.to_json()["longest_fitting_seq_len"] == {"1": None, "2": None, "4": None}
    assert {row.kind for row in curve.rows} == {OutcomeKind.OUT_OF_MEMORY}
    write_curve(tmp_path / "c.parquet", curve.rows)
    rows = pq.read_table(tmp_path / "c.parquet").to_pylist()
    assert [(row["cp"], row["seq_len"]) for row in rows] == tried
    assert all(row["short_bytes"] > 0 and row["peak_bytes"] is None for row in rows)


def test_a_degree_that_trains_something_else_is_no_point_of_the_curve():
    curve, _, _ = study(rest_of=linear, loss_of=lambda cp: 5.0 + (cp == 4))

    assert [row.kind for row in curve.of(4)] == [OutcomeKind.WRONG_RESULT]
    assert "first loss is 6" in curve.of(4)[0].reason
    assert "CP=4 at 512 tokens: wrong_result" in curve.warnings()[0]


def test_an_illegal_degree_of_the_axes_is_a_row_with_its_reason():
    spec = resolve(sweep_spec(), None)
    plan = CurvePlan(spec, CurveAsked(seq_lens="512"))
    plan.grid = replace(plan.grid, cp=(3,))
    launcher = ScriptedLauncher()
    made = CurveStudy(
        plan,
        launcher_of=lambda at: launcher,
        capacity_bytes=CAPACITY,
        hardware=Hardware(cores=(None,)),
        keep=lambda row, rows: None,
    )

    curve = made.run()

    assert launcher.launched == []
    assert [row.kind for row in curve.rows] == [OutcomeKind.INFEASIBLE]
    assert curve.rows[0].reason


def test_a_trial_that_crashed_is_not_bisected():
    spec = resolve(sweep_spec("[axes]\ntp = [1]\ncp = [1]\npp = [1]\n"), None)
    launcher = ScriptedLauncher(default=lambda candidate: failed())
    plan = CurvePlan(spec, CurveAsked(seq_lens="512,1024"))
    made = CurveStudy(
        plan,
        launcher_of=lambda at: launcher,
        capacity_bytes=CAPACITY,
        hardware=Hardware(cores=(None,)),
        keep=lambda row, rows: None,
    )

    assert [row.kind for row in made.run().rows] == [OutcomeKind.CRASHED]


@pytest.mark.parametrize(
    ("lens", "cp"),
    [
        *[("1k", ""), ("", "two"), ("0,5", ""), ("", "-2"), ("512,,", ""), ("", "3")],
        ("512,99999999999999999999", ""),
    ],
)
def test_a_list_that_is_none_is_refused(lens, cp):
    spec = resolve(sweep_spec(), None)

    with pytest.raises(SpecError, match=r"^--(seq-lens|cp) (is|has) .*; wanted"):
        CurvePlan(spec, CurveAsked(seq_lens=lens, cp=cp))


def test_the_lengths_of_the_spec_are_a_quarter_a_half_and_all():
    plan = CurvePlan(resolve(sweep_spec(), None), CurveAsked())

    assert plan.grid == CurveGrid(seq_lens=(16, 32, 64), cp=(1, 2, 4))
    assert plan.granule == 2


def test_people_read_sizes_and_where_cp_helps():
    curve, _, _ = study(rest_of=linear)

    cells = row_cells(curve.of(1)[0])
    assert cells == (
        *("1", "512", "164.06 KiB", "700 B", "289.06 KiB", "39.06 KiB", "800 B", "1,000"),
        "measured",
    )
    lines = curve_lines(curve)
    assert "CP=1: longest that fits 1,920 tokens (to 64)" in lines[0]
    assert "CP helps from 1,984 tokens on: CP=1 does not fit there" in lines


def test_a_line_under_the_table_tells_what_is_reserved():
    out = Console(file=io.StringIO(), width=200)

    out.print(curve_page(study(rest_of=linear)[0]))

    (line,) = [one for one in out.file.getvalue().splitlines() if "reserved: " in one]
    assert "most that the whole process held on a CPU, outside the budget" in line


def test_the_figure_draws_forward_and_backward_of_each_degree_and_the_capacity():
    page = curve_figure(study(rest_of=linear)[0])

    for cp in (1, 2, 4):
        for half in ("forward", "backward"):
            assert f'"name":"cp {cp}, {half}"' in page
    assert "capacity" in page
