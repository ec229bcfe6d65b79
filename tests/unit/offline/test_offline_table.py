"""Every row of a table is used, or named with the reason why not."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes import measured, out_of_memory, setting, sweep_spec, trial_of
from replay_tables import ROWS, row, write_csv

from cptune.domain.outcome import OutcomeKind
from cptune.errors import SpecError
from cptune.offline.replay import read_landscapes
from cptune.offline.table import sift
from cptune.search.space import build_space
from cptune.spec import write_toml
from cptune.store.ledger import ParquetLedger
from topology.discover import discover


def only(rows):
    (found,) = sift(rows).landscapes
    return found


def test_what_a_row_leaves_out_is_of_the_default_and_said():
    found = sift(ROWS)
    (one,) = found.landscapes[0].space.candidates[-1:]
    assert (one.key, found.rows) == ("tp1-cp4-pp1-dp1-mb1-zigzag-ring-st3-none-full-ddp-auto", 6)
    assert found.notes == [
        "not in every row, so of its default there: "
        "sharding, strategy, recompute, loss, data_parallel"
    ]


def test_csv_and_parquet_say_the_same(tmp_path):
    csv_path = write_csv(tmp_path / "table.csv")
    pq.write_table(pa.Table.from_pylist(list(ROWS)), tmp_path / "table.parquet")
    seen = [read_landscapes(path).landscapes[0] for path in (csv_path, tmp_path / "table.parquet")]
    assert seen[0].results == seen[1].results


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tp": "two"}, "tp is 'two'"),
        ({"tp": 1.5}, "tp is 1.5: wanted a whole number"),
        ({"tp": 0}, "tp is 0"),
        ({"cp": None}, "cp is missing"),
        ({"step_s": None}, "step_s is missing"),
        ({"step_s": float("nan")}, "step_s is missing"),
        ({"step_s": "inf"}, "wanted a finite number"),
        ({"step_s": -1.0}, "step_s is -1.0: wanted 1e-30 to 1e+09 s"),
        ({"peak_bytes": -1}, "peak_bytes is -1: wanted 0 to "),
        ({"step_s": 1e308}, "step_s is 1e+308: wanted 1e-30 to"),
        ({"outcome": "oom"}, "outcome is 'oom'"),
        ({"outcome": "mesured"}, "did you mean 'measured'?"),
        ({"gpu": "H1000"}, "H1000"),
        ({"gpu": None}, "gpu is missing"),
        ({"workload": ""}, "workload is missing"),
        ({"heads": 3}, "heads (3) must be a multiple"),
        ({"strategy": "rings"}, "did you mean 'ring'?"),
        ({"gather_hops": "[[2]]"}, "gather_hops is '[[2]]'"),
        ({"preset": "llama9"}, "llama9"),
    ],
)
def test_an_unreadable_row_is_named_and_hides_no_other(changes, why):
    found = sift([*ROWS, row(**changes)])
    assert [line[:8] for line in found.unreadable] == ["line 8: "]
    assert why in found.unreadable[0]
    assert len(found.landscapes[0].results) == 6


def test_illegal_rows_and_duplicates_are_named():
    found = sift([*ROWS, row(3, 1), row(1, 2, 0.1), row(1, 1, 9.0, dp=2)])
    assert found.duplicates == ["line 9: tp1 cp2 dp2 zigzag ring/1 as line 5"]
    assert [line.split(":")[0] for line in found.illegal] == ["line 8", "line 10"]
    assert "wanted exactly 4" in found.illegal[1]
    assert only(ROWS).best_s == found.landscapes[0].best_s == 1.0


def test_one_name_for_two_batches_is_told_apart():
    found = sift([*ROWS, *({**one, "seq_len": 128} for one in ROWS)])
    assert [one.name for one in found.landscapes] == ["small", "small (2)"]
    assert "told apart" in " ".join(found.notes)


def test_a_workload_without_a_success_is_left_out_and_said():
    found = sift([*ROWS, row(1, 1, None, "timeout", workload="lost")])
    assert [one.name for one in found.landscapes] == ["small"]
    assert "workload 'lost' has no step time and is left out" in found.notes


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "it is empty"),
        ("a,b\n1,2\n", "1 rows and none that can be replayed: 1 unreadable"),
        ("a,b\n1,2,3\n", "more cells than the header"),
        ("PAR1 and nothing else", "cannot read"),
    ],
)
def test_a_table_of_which_nothing_is_left_is_refused(tmp_path, content, why):
    (tmp_path / "table.csv").write_text(content)
    with pytest.raises(SpecError, match=why):
        read_landscapes(tmp_path / "table.csv")


def test_a_table_that_is_not_there_is_refused_with_the_one_that_is(tmp_path):
    write_csv(tmp_path / "table.csv")
    with pytest.raises(SpecError, match="did you mean"):
        read_landscapes(tmp_path / "tabel.csv")


@pytest.fixture
def run_directory(tmp_path):
    """A run that tried three candidates, one of them twice."""
    spec = sweep_spec('[cluster]\nworld_size = 4\ngpu = "cpu"\ndevice_memory_bytes = 100000000\n')
    (tmp_path / "spec.toml").write_text(write_toml(spec))
    (tmp_path / "topology.json").write_text(json.dumps(discover().to_json()))
    ledger = ParquetLedger(tmp_path, writable=True)
    first, second, third, *_ = build_space(spec.axes, setting(4)).candidates
    ledger.append(trial_of(first, out_of_memory(), number=0))
    ledger.append(trial_of(second, measured(step_s=9.0), number=1))
    ledger.append(trial_of(second, measured(step_s=2.0), number=1, attempt=1))
    ledger.append(trial_of(third, measured(step_s=1.0), number=2))
    ledger.append(trial_of(third, measured(step_s=0.5), number=2, attempt=1, turn=1))
    return tmp_path


def test_our_own_ledger_is_a_landscape(run_directory):
    found = read_landscapes(run_directory)
    (one,) = found.landscapes
    assert sorted(result.step_s or 0 for result in one.results.values()) == [0, 1.0, 2.0]
    assert OutcomeKind.OUT_OF_MEMORY in {result.kind for result in one.results.values()}
    assert one.foresight.case.machine.capacity_bytes == 100_000_000


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"no run directory: it has no spec\.toml"):
        read_landscapes(tmp_path)
