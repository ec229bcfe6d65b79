"""Trials to Parquet and back without loss; what is torn, altered or foreign hides nothing else."""

import math
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes import (
    candidate,
    devices,
    edge_report,
    failed,
    out_of_memory,
    rank_report,
    rank_trace,
    trial_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from cptune.domain.candidate import Strategy
from cptune.domain.depth import Depth
from cptune.domain.memory import Kept, MemorySplit
from cptune.domain.outcome import OutcomeKind, measurement_from
from cptune.domain.placement import place
from cptune.domain.trial import Predicted
from cptune.errors import LedgerError
from cptune.store import schema
from cptune.store.ledger import ParquetLedger, decode, encode
from cptune.store.rows import edge_rows, rank_rows, step_rows, trial_from_rows, trial_row

TABLES = ("trials", "ranks", "edges", "steps", "exposures")
CP2 = candidate(cp=2)
SPLIT = MemorySplit(
    states_bytes=1,
    activations_bytes=2,
    logits_bytes=3,
    comm_bytes=4,
    transient_bytes=690,
    optimizer_peak_bytes=5,
)
KEPT = Kept(attention_bytes=1, planned_attention_bytes=2, peak_bytes=3, planned_peak_bytes=4)
RICH = replace(
    trial_of(
        CP2,
        measurement_from(
            (
                rank_report(
                    0,
                    step_s=(0.1, 0.3),
                    tp_exposed_s=(0.01, 0.02),
                    cp_exposed_s=(0.03, 0.04),
                    dp_exposed_s=(0.05, 0.06),
                    pp_exposed_s=(0.07, 0.08),
                    warmup_s=(0.9, 0.4, 0.2),
                    gpu_uuid="GPU-0",
                    edges=(
                        edge_report(1, idle_s=0.25, busy_s=0.5),
                        edge_report(1, axis="dp", seconds=0.0),
                    ),
                    trace=rank_trace(),
                    memory=SPLIT,
                    kept=KEPT,
                ),
                rank_report(
                    1,
                    gpu_uuid="GPU-1",
                    first_loss=math.pi,
                    tp_exposed_s=(None, None),  # as on a GPU
                    used_bytes=900,
                    edges=(edge_report(0, seconds=None),),
                    trace=rank_trace(clock_offset_s=-2.5, clock_error_s=0.001),
                ),
            ),
            tokens_per_step=1000,
        ),
        number=3,
        attempt=2,
        turn=1,
    ),
    placement=place(CP2.layout, devices(2, kind="cuda")),
    predicted=Predicted(
        step_s=0.25, peak_lo_bytes=1, peak_bytes=2, peak_hi_bytes=3, model_version="1"
    ),
)
OOM = trial_of(candidate(dp=2), out_of_memory(512, free_bytes=7), number=4)
CRASH = trial_of(candidate(tp=2), failed(OutcomeKind.CRASHED, 'a "quoted"\nline'), number=5)
DRAWN = replace(
    RICH,
    number=7,
    outcome=replace(
        RICH.outcome,
        depth=Depth(
            layers_measured=(2, 4),
            step_lo_s=0.1,
            step_hi_s=0.4,
            peak_lo_bytes=1,
            peak_hi_bytes=2,
            layers=16,
        ),
    ),
)
BARE = trial_of(
    candidate(cp=4, strategy=Strategy.ALL_GATHER, stages=1),
    replace(failed(OutcomeKind.TIMEOUT, ""), rank=None, node=None),
    number=6,
    attempt=1,
)
ALL = [RICH, OOM, CRASH, BARE]


@pytest.fixture
def ledger(tmp_path):
    return ParquetLedger(tmp_path, writable=True)


def file_of(ledger_path: Path, table: str, trial) -> Path:
    name = f"{trial.number:06d}-{trial.candidate.key}-a{trial.attempt}.parquet"
    return ledger_path / table / name


def filled(tmp_path):
    ledger = ParquetLedger(tmp_path, writable=True)
    for trial in ALL:
        ledger.append(trial)
    return ledger


@pytest.mark.parametrize("trial", ALL, ids=["measured", "oom", "crashed", "bare"])
def test_a_trial_comes_back_equal(ledger, tmp_path, trial):
    ledger.append(trial)

    assert ParquetLedger(tmp_path, writable=False).read() == [trial]
    for table in TABLES:
        assert [one.name for one in (tmp_path / table).iterdir()] == [
            file_of(tmp_path, table, trial).name
        ]


def test_trials_are_read_by_number_and_attempt(ledger):
    trials = [trial_of(CP2, failed(), number=n, attempt=a) for n, a in ((10, 0), (2, 1), (2, 0))]
    for trial in trials:
        ledger.append(trial)

    assert ledger.read() == trials[::-1]


finite = st.floats(0, 1e6)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(finite, finite, finite, finite), min_size=1, max_size=3),
    st.integers(0, 2**63 - 1),
    st.text(st.characters(codec="utf-8")),
)
def test_rows_lose_nothing(times, size, word):
    steps, tp, cp, dp = zip(*times, strict=True)
    report = rank_report(
        0,
        step_s=tuple(one + 1e-9 for one in steps),
        tp_exposed_s=tp,
        cp_exposed_s=cp,
        dp_exposed_s=dp,
        sent_bytes=size,
        sample_hash=word,
    )
    trial = trial_of(candidate(), measurement_from((report,), tokens_per_step=1))

    back = trial_from_rows(
        dict.fromkeys(schema.TRIALS.names) | trial_row(trial),
        ranks=[dict.fromkeys(schema.RANKS.names) | row for row in rank_rows(trial)],
        edges=edge_rows(trial),
        steps=step_rows(trial),
    )

    assert back == trial


def test_an_edge_row_says_how_fast_it_was():
    first, second, _ = edge_rows(RICH)

    assert (first["a_rank"], first["b_rank"], first["axis"]) == (0, 1, "cp")
    assert (first["bytes"], first["received_bytes"], first["seconds"]) == (512, 256, 0.001)
    assert first["bytes_per_s"] == 512_000
    assert second["bytes_per_s"] is None  # no time was seen
    assert (first["idle_s"], first["busy_s"], second["busy_s"]) == (0.25, 0.5, None)


def test_the_tables_join_on_key_and_attempt(tmp_path):
    filled(tmp_path)

    for table in TABLES:
        rows = pq.read_table(file_of(tmp_path, table, RICH)).to_pylist()
        assert {(row["candidate_key"], row["attempt"]) for row in rows} == {(CP2.key, 2)}
    steps = pq.read_table(file_of(tmp_path, "steps", RICH)).to_pylist()
    assert [step["index"] for step in steps if step["is_warmup"]] == [-3, -2, -1]
    assert len(steps) == 3 + 4


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def empty(path):
    path.write_bytes(b"")


def text(path):
    path.write_text("candidate_key,number\n")


def other_table(path):
    path.write_bytes(encode([], schema.EDGES))


def no_rows(path):
    path.write_bytes(encode([], schema.TRIALS))


def unknown_word(path):
    path.write_bytes(encode([trial_row(RICH) | {"outcome": "melted"}], schema.TRIALS))


def hole(path):
    path.write_bytes(encode([trial_row(RICH) | {"tp": None}], schema.TRIALS))


def flip(path, offset):
    """Turn one bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


def last_byte_of(path, column):
    """Where the last data page of a column ends."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunk = group.column(schema.TRIALS.names.index(column))
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return start + chunk.total_compressed_size - 1


@pytest.mark.parametrize("damage", [cut, empty, text, other_table, no_rows, unknown_word, hole])
def test_a_damaged_trial_is_set_aside_by_name_and_the_others_survive(tmp_path, damage):
    ledger = filled(tmp_path)
    path = file_of(tmp_path, "trials", RICH)
    damage(path)

    assert ledger.read() == ALL[1:]

    assert len(ledger.quarantined) == 1
    assert ledger.quarantined[0].startswith(f"trials/{path.name}: ")
    assert not path.exists()
    assert (tmp_path / "quarantine" / f"trials-{path.name}").exists()
    assert ledger.read() == ALL[1:]
    assert ledger.quarantined == []


@pytest.mark.parametrize("column", ["candidate_key", "step_s", "peak_allocated_bytes"])
def test_one_flipped_bit_is_caught_by_the_page_checksum(tmp_path, column):
    ledger = filled(tmp_path)
    path = file_of(tmp_path, "trials", RICH)
    flip(path, last_byte_of(path, column))

    assert ledger.read() == ALL[1:]

    assert "CRC" in ledger.quarantined[0]


def test_no_flipped_bit_anywhere_gives_another_trial(tmp_path):
    writer = ParquetLedger(tmp_path, writable=True)
    writer.append(RICH)
    path = file_of(tmp_path, "trials", RICH)
    reader, size = ParquetLedger(tmp_path, writable=False), path.stat().st_size

    for offset in range(0, size, size // 150):
        flip(path, offset)
        assert reader.read() in ([], [RICH]), offset
        flip(path, offset)
    assert reader.read() == [RICH]


def test_a_file_of_another_schema_version_is_foreign(tmp_path):
    path = tmp_path / "a.parquet"
    metadata = {**schema.STEPS.metadata, b"cptune.schema_version": b"2"}
    path.write_bytes(encode([], schema.STEPS.with_metadata(metadata)))

    with pytest.raises(LedgerError, match=r"schema_version is b'2', wanted b'1'"):
        decode(path, schema.STEPS)


def test_a_file_with_another_column_is_foreign(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(encode([], schema.STEPS.remove(0)))

    with pytest.raises(LedgerError, match="is foreign: its columns are not those of the table"):
        decode(path, schema.STEPS)


def test_a_figure_drawn_from_two_depths_stays_one(tmp_path):
    ledger = ParquetLedger(tmp_path, writable=True)
    ledger.append(RICH)
    ledger.append(DRAWN)

    assert ledger.read() == [RICH, DRAWN]


@pytest.mark.parametrize("table", ["edges", "steps", "exposures"])
@pytest.mark.parametrize("damage", [cut, empty, Path.unlink])
def test_a_damaged_satellite_keeps_the_trial(tmp_path, table, damage):
    ledger = filled(tmp_path)
    damage(file_of(tmp_path, table, RICH))

    found = ledger.read()

    assert [one.number for one in found] == [3, 4, 5, 6]
    assert found[0].measurement.step_s == RICH.measurement.step_s
    assert found[0].placement == RICH.placement
    assert found[1:] == ALL[1:]
    assert [name.partition(":")[0] for name in ledger.quarantined] == [
        f"{table}/{file_of(tmp_path, table, RICH).name}"
    ]


def test_a_trial_that_lost_its_ranks_is_set_aside_to_be_run_again(tmp_path):
    ledger = filled(tmp_path)
    cut(file_of(tmp_path, "ranks", RICH))

    assert ledger.read() == ALL[1:]
    assert [name.partition("/")[0] for name in ledger.quarantined] == ["ranks", "trials"]


def test_a_reader_moves_and_makes_nothing(tmp_path):
    filled(tmp_path)
    cut(file_of(tmp_path, "trials", RICH))
    (tmp_path / "trials" / ".tmp-of-a-writer").write_text("half")
    before = sorted(tmp_path.rglob("*"))

    reader = ParquetLedger(tmp_path, writable=False)

    assert reader.read() == ALL[1:]
    assert len(reader.quarantined) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_reader_of_nothing_finds_nothing(tmp_path):
    assert ParquetLedger(tmp_path / "none", writable=False).read() == []
    assert not (tmp_path / "none").exists()


def test_a_writer_removes_what_an_ended_one_left(tmp_path):
    filled(tmp_path)
    for table in TABLES:
        (tmp_path / table / ".tmp-x.parquet-1-ab").write_text("half")

    ledger = ParquetLedger(tmp_path, writable=True)

    assert ledger.read() == ALL
    assert [p for p in tmp_path.rglob(".tmp-*")] == []  # noqa: C416


def test_satellites_without_a_trial_are_no_trial(ledger, tmp_path):
    ledger.append(RICH)
    file_of(tmp_path, "trials", RICH).unlink()

    assert ledger.read() == []
    assert ledger.quarantined == []


def test_a_table_that_cannot_be_made_is_an_error_of_ours(tmp_path):
    (tmp_path / "edges").write_text("a file")

    with pytest.raises(LedgerError, match=r"cannot make .*edges: File exists"):
        ParquetLedger(tmp_path, writable=True)


def test_a_run_directory_that_looks_like_a_partition_adds_no_column(tmp_path):
    directory = tmp_path / "tp=1"
    directory.mkdir()
    ledger = ParquetLedger(directory, writable=True)
    ledger.append(RICH)

    assert ledger.read() == [RICH]


def test_a_column_outside_the_schema_is_our_own_mistake():
    with pytest.raises(AssertionError, match="not in the schema"):
        encode([{"speed": 1}], schema.STEPS)


def test_a_run_from_before_the_later_columns_is_read(ledger, tmp_path):
    """Without the columns and the table that came later."""
    plain = trial_of(CP2, number=3)
    bare = replace(plain.measurement, step_ci_share=None, noisy=False)
    for name in ("traced_step_s", "tp_blocked_s", "cp_blocked_s", "dp_blocked_s", "pp_blocked_s"):
        bare = replace(bare, **{name: None})
    old = replace(plain, outcome=bare)
    ledger.append(old)
    (tmp_path / "exposures").joinpath(file_of(tmp_path, "exposures", old).name).unlink()
    tables = (
        ("trials", schema.TRIALS),
        ("ranks", schema.RANKS),
        ("edges", schema.EDGES),
        ("steps", schema.STEPS),
    )
    for table, columns in tables:
        path = file_of(tmp_path, table, old)
        rows, older = pq.read_table(path).to_pylist(), columns
        for name in schema._LATER[table]:
            older = older.remove(older.names.index(name))
        kept = [{name: row[name] for name in older.names} for row in rows]
        path.write_bytes(encode(kept, older))

    assert ledger.read() == [old]
    assert ledger.quarantined == []


@pytest.mark.parametrize("table", [table for table in TABLES if table != "trials"])
def test_rows_of_another_trial_under_its_name_are_set_aside_and_both_are_named(tmp_path, table):
    other = replace(RICH, number=RICH.number + 1, candidate=candidate(cp=2, kernel="other"))
    ledger = ParquetLedger(tmp_path, writable=True)
    ledger.append(RICH)
    ledger.append(other)
    first, second = sorted((tmp_path / table).iterdir())
    first.write_bytes(second.read_bytes())

    found = ledger.read()

    assert [one.number for one in found if one != RICH.without_spans()][-1] == other.number
    assert RICH.without_spans() not in found
    wanted = f"{table}/{first.name}: holds rows of {other.candidate.key} attempt {other.attempt}"
    assert ledger.quarantined[0].startswith(wanted)
    assert RICH.candidate.key in ledger.quarantined[0]
