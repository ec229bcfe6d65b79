"""The whole question in one pass: rows by source, notes, files, and the words for people."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from cptune.balance.answer import answer_asked, read_histogram
from cptune.balance.asked import BalanceAsked, Packing, Split
from cptune.balance.batches import Batches, Timed, compare, document_seconds, pearson
from cptune.balance.effort import in_blocks
from cptune.balance.histogram import Histogram
from cptune.balance.simulate import Setting
from cptune.balance.spread import Source, Spread, build_row
from cptune.balance.study import run_study
from cptune.balance.theory import straggler_factor
from cptune.cli import run
from cptune.errors import SpecError
from cptune.report.balance import COLUMNS, balance_page, spread_cells, study_lines
from cptune.store.balance import open_lengths, write_balance
from cptune.store.schema import BALANCE

ROW = {
    "dp",
    "cp",
    "packing",
    "cv",
    "variance",
    "variance_ratio_to_cp1",
    "max_over_min",
    "slowest_over_mean",
    "source",
    "layers",
}


def scripted(batches, *, ranks):
    """A kernel without noise that takes a nanosecond for the square of a document."""
    rows_s = {
        cp: {at: sum(n * n for n in row) * 1e-9 / cp for at, row in enumerate(rows)}
        for cp, rows in batches.rows.items()
    }
    alone_s = {cp: {n: n * n * 1e-9 / cp for n in batches.calibration} for cp in batches.rows}
    return [Timed(rows_s=rows_s, alone_s=alone_s, kernel="scripted")] * ranks


def answered(**asked):
    flags = {"world": 8, "tokens_per_gpu": 512, "cp": "1,2,4", "measured": False} | asked
    return answer_asked(BalanceAsked(**flags), open_file=open_lengths, measurer=scripted)


def test_the_json_is_the_contract():
    found = answered(lengths="lognormal(mean=200, sigma=1)").to_json()
    assert set(found) == {"lengths", "rows"}
    assert set(found["lengths"]) == {"count", "mean_tokens", "max_tokens"}
    assert [set(row) for row in found["rows"]] == [ROW] * 6
    assert {(row["source"], row["cp"], row["dp"]) for row in found["rows"]} == {
        (source, cp, 8 // cp) for source in ("theory", "simulated") for cp in (1, 2, 4)
    }
    assert all(row["variance_ratio_to_cp1"] == 1 for row in found["rows"] if row["cp"] == 1)
    assert json.loads(json.dumps(found)) == found


def test_a_seed_decides_everything():
    one, same, other = (answered(seed=seed, packing=Packing.QUADRATIC) for seed in (0, 0, 1))
    assert one.to_json() == same.to_json() != other.to_json()


def test_the_documents_of_a_file_are_taken_in_its_order(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("3\n4\n5\n4\n")
    study = answered(lengths=str(path), world=4, tokens_per_gpu=4, cp="1,2", token_keys=0)
    rows = {row.cp: row for row in study.rows if row.source is Source.SIMULATED}
    works = np.array([7, 7, 10, 10])
    assert rows[1].cv == pytest.approx(works.std() / works.mean())
    assert rows[1].max_over_min == pytest.approx(10 / 7)
    halves = np.array([6 + 10 + 1, 20]) / 2
    assert rows[2].variance_ratio_to_cp1 == pytest.approx(halves.var() / works.var())
    assert rows[2].slowest_over_mean == pytest.approx(halves.max() / halves.mean())
    assert (study.lengths.count, study.lengths.max_tokens) == (4, 5)


def test_a_file_without_a_whole_step_is_drawn_from_and_that_is_said(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("30\n40\n500\n")
    study = answered(lengths=str(path), seed=3)
    assert "570 tokens are less than one step of 4,096" in study.notes[0]
    assert "with seed 3" in study.notes[0]
    assert study.lengths.count == 3
    slow = answered(lengths=str(path), split=Split.ZIGZAG)
    assert "the simulation splits zigzag" in "".join(slow.notes)


def test_cp_1_is_the_base_even_when_it_is_not_asked_for():
    study = answered(cp="4", lengths="fixed(tokens=300)")
    assert {row.cp for row in study.rows} == {4}
    assert study.rows[0].variance_ratio_to_cp1 < 1


def test_a_ratio_to_nothing_is_1_for_nothing_and_unknown_for_more():
    even, uneven = (
        Spread(mean=1, variance=variance, cv=0, max_over_min=1, slowest_over_mean=1)
        for variance in (0.0, 0.5)
    )
    ratios = [
        build_row(one, base=base, cp=2, dp=4, packing="sequential", source=Source.THEORY)
        for one, base in ((even, even), (uneven, even), (even, uneven))
    ]
    assert [row.variance_ratio_to_cp1 for row in ratios] == [1.0, None, 0.0]
    assert spread_cells(ratios[1])[6] == "-"


def test_a_cap_cuts_documents_and_a_window_evens_them():
    free, capped = answered(lengths="prolong"), answered(lengths="prolong", cap=128)
    window = answered(lengths="prolong", window=16)
    assert capped.lengths.max_tokens == 128
    assert capped.rows[-1].cv < free.rows[-1].cv
    assert window.rows[-1].cv < free.rows[-1].cv


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"lengths": "absent.txt"}, "no file and no distribution"),
        ({"cap": 0}, "cap is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"cp": "1,3"}, "cp is 3"),
        ({"window": 0}, "window is 0"),
        ({"token_keys": float("nan")}, "token_keys is nan"),
        ({"model": "absent"}, "preset 'absent' is not known"),
    ],
)
def test_a_wrong_flag_is_refused(asked, said):
    with pytest.raises(SpecError, match=said):
        answered(**asked)


def test_rows_are_kept_as_parquet(tmp_path):
    study = answered()
    write_balance(tmp_path / "rows.parquet", study.rows)
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.schema.equals(BALANCE)
    assert table.to_pylist() == study.to_json()["rows"]


def test_a_workload_gives_its_histogram_for_the_straggler_factor(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("5\n7\n")
    assert read_histogram(str(path), open_file=open_lengths).total_tokens == 12
    named = read_histogram("prolong", open_file=open_lengths)
    setting = Setting(world=64, tokens_per_gpu=8192, cps=(8,))
    assert 1.0 < straggler_factor(named, setting=setting, cp=8) < 10.0
    with pytest.raises(SpecError, match="no file"):
        read_histogram("absent", open_file=open_lengths)


def test_people_read_the_table_and_what_to_do():
    study = answered(lengths="prolong(max=512)", model="tiny")
    lines = study_lines(study)
    assert any("both" in line for line in lines)
    assert any("1/CP" in line for line in lines)
    assert len(spread_cells(study.rows[0])) == len(COLUMNS)
    assert balance_page(study).renderables


def test_measured_rows_stand_beside_the_others():
    study = answered(measured=True, cp="1,2,8")
    measured = [row for row in study.rows if row.source is Source.MEASURED]
    assert [(row.cp, row.dp) for row in measured] == [(1, 16), (2, 8)]
    assert [one.correlation for one in study.compared] == pytest.approx([1.0, 1.0], abs=1e-4)
    assert [one.measured.cv for one in study.compared] == pytest.approx(
        [one.counted.cv for one in study.compared], rel=0.02
    )
    assert sum("correlation 1.000" in line for line in study_lines(study)) == 2


def test_a_group_is_as_slow_as_its_slowest_rank():
    batches = Batches(rows={2: [[8], [8]]}, steps=1, scale=1.0)
    alone = {2: dict.fromkeys(batches.calibration, 1.0)}
    ranks = [
        Timed(rows_s={2: row_s}, alone_s=alone, kernel="scripted")
        for row_s in ({0: 1.0, 1: 5.0}, {0: 4.0, 1: 2.0})
    ]
    (found,) = compare(batches, ranks)
    assert (found.measured.mean, found.measured.max_over_min) == (4.5, 5 / 4)


def test_times_of_documents_lie_between_those_timed_alone():
    alone_s = {100: 1.0, 400: 4.0}
    assert document_seconds([100, 200, 400, 800], alone_s=alone_s) == pytest.approx([1, 2, 4, 16])
    assert pearson(np.ones(3), np.arange(3.0)) == 1.0
    assert pearson(np.arange(3.0), -np.arange(3.0)) == pytest.approx(-1.0)


def test_the_command_prints_json_alone_on_stdout(capsys, tmp_path):
    out = tmp_path / "rows.parquet"
    words = ["balance", "--lengths", "prolong", "--world", "8", "--tokens-per-gpu", "512"]
    words += ["--cp", "1,2", "--packing", "first-fit", "--no-measured", "--seed", "1"]
    assert run([*words, "--format", "json", "--out", str(out)]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)["rows"]
    assert {row["packing"] for row in rows if row["source"] == "simulated"} == {"first-fit"}
    assert "as fast" in said.err
    assert out.exists()
    assert run(words) == 0
    assert "slowest/mean" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "5\n-1\n", "5\nx\n", "5\nNaN\n"])
def test_a_bad_file_ends_the_command_with_2(capsys, tmp_path, text):
    path = tmp_path / "a.txt"
    path.write_text(text)
    assert run(["balance", "--lengths", str(path), "--no-measured"]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_hundred_million_lengths_take_no_more_memory_than_one_million():
    histogram = Histogram()
    held = histogram.counts.nbytes + histogram.sums.nbytes
    for _ in range(3):
        histogram.add(np.full(100_000, 1000))
    assert histogram.counts.nbytes + histogram.sums.nbytes == held < 1 << 20
    setting = Setting(world=4, tokens_per_gpu=1000, cps=(1,))
    study = run_study((np.full(10_000, 1000) for _ in range(20)), setting=setting)
    assert study.lengths.count == 200_000


def test_the_cp_that_documents_need_is_not_capped_at_the_largest_looked_at():
    def last_note(cps):
        setting = Setting(world=8, tokens_per_gpu=128, cps=cps)
        stream = [np.full(2000, 1000, dtype=np.int64)]
        return run_study(stream, setting=setting).notes[-1]

    assert last_note((1, 2)) == (
        "steps by the CP that their longest document needs: CP=8 100%; the longest document "
        "needs CP=8, and 2 is the largest looked at"
    )
    assert last_note((1, 2, 4, 8)) == "steps by the CP that their longest document needs: CP=8 100%"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"world": 1 << 20}, "100 steps of 8,589,934,592 tokens hold"),
        ({"tokens_per_gpu": 1 << 30}, "wanted 100,000,000 at most"),
        ({"cap": 1}, "documents of 1 tokens; wanted 100,000,000 at most"),
        ({"lengths": "fixed(tokens=1e12)"}, "documents of up to 1,000,000,000,000 tokens fill"),
        ({"lengths": "lognormal(mean=1e12, sigma=1e12)"}, "wanted 100,000,000 at most"),
        ({"world": 1, "cp": "1", "tokens_per_gpu": 1}, "fill more than 100,000,000 rows"),
    ],
)
def test_what_would_take_hours_or_all_memory_is_refused_with_the_bound(changes, said):
    asked = BalanceAsked(**{"measured": False, "world": 512, "cp": "1"} | changes)

    with pytest.raises(SpecError, match=said) as refused:
        answer_asked(asked, open_file=open_lengths)

    assert "wanted a" in refused.value.hint


def test_blocks_hold_every_document_once_in_order():
    documents = np.arange(1, 2001, dtype=np.int64) * 1000
    blocks = list(in_blocks([documents], tokens_per_gpu=100))

    assert len(blocks) > 1
    assert np.concatenate(blocks).tolist() == documents.tolist()
