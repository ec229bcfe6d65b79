"""Each file of a trial is known as of its run; one of another run of the spec is none of it."""

import shutil
from dataclasses import replace

import pytest
from fakes import candidate, edge_report, out_of_memory, rank_report, rank_trace, trial_of

from cptune.cli import run
from cptune.domain.outcome import measurement_from
from cptune.domain.timeline import Span, SpanKind
from cptune.domain.trial import Origin
from cptune.errors import LedgerError
from cptune.store.ledger import ParquetLedger
from cptune.store.run_id import RUN_ID, read_run_id
from cptune.store.traces import read_spans, trace_path

SPAN = Span(kind=SpanKind.COMPUTE, name="forward", start_s=0.0, stop_s=0.5, layer=0)
SATELLITES = ("ranks", "steps", "edges", "exposures")


def trial(seconds, **changes):
    """Trial 0 as a run saw it: of the same candidate, and another measurement."""
    trace = rank_trace(step_s=seconds, spans=(replace(SPAN, stop_s=seconds),))
    exposed = tuple(replace(one, communication_s=seconds) for one in trace.exposed)
    reports = tuple(
        rank_report(
            rank,
            step_s=(seconds, seconds),
            edges=(edge_report(1 - rank, seconds=seconds),),
            trace=replace(trace, exposed=exposed),
        )
        for rank in range(2)
    )
    return trial_of(candidate(cp=2), measurement_from(reports, tokens_per_step=1), **changes)


@pytest.fixture
def two(tmp_path):
    """Two runs of one spec, each with its trial 0."""
    paths = tmp_path / "first", tmp_path / "second"
    for seconds, path in enumerate(paths, start=1):
        path.mkdir()
        ParquetLedger(path, writable=True).append(trial(seconds / 4))
    return paths


def file_of(path, table):
    (found,) = (path / table).iterdir()
    return found


def read(path):
    ledger = ParquetLedger(path, writable=False)
    return ledger.read(), ledger.quarantined


def test_a_trial_tells_its_run_and_its_trace(two):
    for path in two:
        ((kept,), quarantined) = read(path)
        assert quarantined == []
        assert kept.origin == Origin(
            run_id=read_run_id(path), trace_sha256=kept.origin.trace_sha256
        )
        assert len(read_spans(trace_path(path, kept), trial=kept)) == 2
    assert len({read_run_id(path) for path in two}) == 2


def test_a_trace_of_another_run_of_the_spec_is_refused_by_name(two, capsys):
    first, second = two
    ((kept,), _) = read(first)
    shutil.copy(trace_path(second, kept), trace_path(first, kept))

    with pytest.raises(LedgerError) as caught:
        read_spans(trace_path(first, kept), trial=kept)

    assert f"trial 0 of another run: of run {read_run_id(second)}" in str(caught.value)
    assert f"wanted {read_run_id(first)}" in str(caught.value)
    assert run(["trace", str(first), "0"]) == 1
    assert "of another run" in capsys.readouterr().err


def test_a_trace_that_only_its_digest_betrays_is_refused(two):
    """Of the same run and trial, and yet not what was written: one figure was changed."""
    first, _ = two
    ((kept,), _) = read(first)
    other = first.parent / "other"
    other.mkdir()
    (other / RUN_ID).write_text(f"{read_run_id(first)}\n")
    ParquetLedger(other, writable=True).append(trial(0.3))
    shutil.copy(trace_path(other, kept), trace_path(first, kept))

    with pytest.raises(LedgerError, match="is not as it was written: its SHA-256 is "):
        read_spans(trace_path(first, kept), trial=kept)


def test_a_trace_beside_a_trial_that_wrote_none_is_refused(two):
    first, second = two
    ((kept,), _) = read(first)
    alone = replace(kept, origin=replace(kept.origin, trace_sha256=None))

    with pytest.raises(LedgerError, match="wanted none, as the row of trial 0 says"):
        read_spans(trace_path(first, kept), trial=alone)
    with pytest.raises(LedgerError, match="of another run"):
        read_spans(trace_path(second, kept), trial=kept)


@pytest.mark.parametrize("table", SATELLITES)
def test_a_table_of_another_run_of_the_spec_is_set_aside_by_name(two, table):
    first, second = two
    shutil.copy(file_of(second, table), file_of(first, table))

    found, quarantined = read(first)

    name = file_of(first, table).name
    assert f"{table}/{name}: was altered or is of another run: SHA-256 " in quarantined[0]
    if table == "ranks":  # a trial without them is run again
        assert found == []
    else:
        assert len(found) == 1
    if table == "steps":
        assert found[0].measurement.ranks[0].step_s == ()


def test_a_whole_trial_of_another_run_is_set_aside_and_the_others_stay(two):
    first, second = two
    stray = trial_of(candidate(tp=2), out_of_memory(), number=1)
    ParquetLedger(second, writable=True).append(stray)
    for table in ("trials", *SATELLITES):
        (name,) = (path.name for path in (second / table).iterdir() if "000001" in path.name)
        shutil.copy(second / table / name, first / table / name)

    writer = ParquetLedger(first, writable=True)

    assert [one.number for one in writer.read()] == [0]
    assert f"is of run {read_run_id(second)}, wanted {read_run_id(first)}" in writer.quarantined[0]
    assert [one.number for one in writer.read()] == [0]
    assert writer.quarantined == []


def test_an_id_that_was_lost_is_that_of_the_trials(two):
    first, _ = two
    before = read_run_id(first)
    (first / RUN_ID).unlink()

    assert [one.number for one in read(first)[0]] == [0]  # a reader cannot tell, and does not
    assert ParquetLedger(first, writable=True).read() == [trial(0.25).without_spans()]
    assert read_run_id(first) == before


@pytest.mark.parametrize("text", ["", "run 1", "0" * 31, "A" * 32])
def test_a_file_that_holds_no_id_is_refused_with_the_way_out(two, text):
    (two[0] / RUN_ID).write_text(text)

    with pytest.raises(LedgerError, match="wanted 32 hexadecimal digits") as caught:
        ParquetLedger(two[0], writable=True)

    assert "move it away" in caught.value.hint


def test_a_copy_of_a_whole_run_is_that_run(two):
    first, _ = two
    shutil.copytree(first, first.parent / "copy")

    found, quarantined = read(first.parent / "copy")

    assert (found, quarantined) == (read(first)[0], [])
    assert read_spans(trace_path(first.parent / "copy", found[0]), trial=found[0])


@pytest.mark.parametrize("table", SATELLITES)
def test_a_reader_names_a_file_that_cannot_be_read_once(two, table):
    file = file_of(two[0], table)
    file.write_bytes(file.read_bytes()[:-9])

    said = [one for one in read(two[0])[1] if one.startswith(f"{table}/")]

    assert len(said) == 1
    assert "cannot be read" in said[0]
