"""Which run a curve goes on with, and what it refuses before anything starts."""

import signal
from dataclasses import replace

import pytest
from fakes import candidate, out_of_memory, sweep_spec

from cptune.cli import run
from cptune.curve import _keep_grid
from cptune.domain.asked import CurveAsked
from cptune.domain.curve import CurveGrid, CurveRow
from cptune.opening import curve_directory, open_run
from cptune.search.curve_plan import CurvePlan, why_not_of
from cptune.search.prepare import prepare
from cptune.spec import load, write_toml
from cptune.store.curve import ROWS, read_asked, read_curve, write_asked, write_curve
from cptune.store.ledger import ParquetLedger


@pytest.fixture(autouse=True)
def _signals():
    """The command takes them; the other tests keep theirs."""
    taken = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = [signal.getsignal(one) for one in taken]
    yield
    for one, handler in zip(taken, before, strict=True):
        signal.signal(one, handler)


@pytest.fixture
def begun(tmp_path):
    """A spec, and the directory of a curve of it that was begun."""
    spec = tmp_path / "grow.toml"
    spec.write_text(write_toml(sweep_spec(name="grow")))
    kept = tmp_path / "runs" / "grow-curve"
    open_run(prepare(load(spec), None).spec, kept, resume=False).close()
    write_asked(kept, CurveGrid(seq_lens=(64, 128), cp=(1, 2)))
    return spec, kept


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "grow-curve"], "run 'grow-curve' exists in "),
        (["--resume", "--seq-lens", "64,256"], "others: --seq-lens: [64, 128] -> [64, 256]"),
        (["--resume", "--cp", "2"], "others: --cp: [1, 2] -> [2]"),
        (["--name", "no/name"], "--name | name is 'no/name'; wanted letters"),
        (["--out", "missing/rows.parquet"], "--out: cannot write missing/rows.parquet: No such"),
        (["--figure", "."], "--figure: cannot write .: it is there and is no regular file"),
        (["--out", "x" * 300], "xxx: File name too long"),
    ],
)
def test_a_curve_that_cannot_go_on_or_be_kept_is_refused_before_anything_starts(
    begun, capsys, words, said
):
    spec, kept = begun
    before = sorted(kept.rglob("*"))

    assert run(["curve", str(spec), "--runs", str(kept.parent), *words]) == 2
    assert said in capsys.readouterr().err
    assert sorted(kept.rglob("*")) == before
    assert sorted(kept.parent.iterdir()) == [kept]


def test_a_curve_of_a_changed_spec_is_refused_with_the_field(begun, capsys):
    spec, kept = begun
    spec.write_text(write_toml(sweep_spec("[search]\nseed = 7\n", name="grow")))

    assert run(["curve", str(spec), "--runs", str(kept.parent), "--resume"]) == 2
    assert "run 'grow-curve' was started with another spec: search.seed: 0 -> 7" in (
        capsys.readouterr().err
    )


def test_a_curve_without_a_name_is_a_fresh_run_and_resumes_the_last(begun):
    spec, kept = begun
    found = [
        curve_directory(load(spec), runs=kept.parent, name=name, resume=resume).name
        for name, resume in ((None, False), (None, True), ("grow-curve", True), ("other", False))
    ]
    assert found == ["grow-curve-2", "grow-curve", "grow-curve", "other"]
    (kept.parent / "grow-curve-2").mkdir()
    assert curve_directory(load(spec), runs=kept.parent, name=None, resume=True).name == (
        "grow-curve-2"
    )


def test_a_curve_that_is_not_there_is_not_resumed(begun, tmp_path, capsys):
    spec, _ = begun
    words = ["--runs", str(tmp_path / "others"), "--resume"]

    assert run(["curve", str(spec), *words]) == 2
    assert "no curve " in capsys.readouterr().err
    assert not (tmp_path / "others").exists()


def resumed(begun, capsys, *, text):
    """What is said where the file of what a curve was asked holds this text; and its path."""
    spec, kept = begun
    path = kept / "asked.json"
    path.write_text(text)
    before = sorted(kept.rglob("*"))
    assert run(["curve", str(spec), "--runs", str(kept.parent), "--resume"]) == 2
    assert sorted(kept.rglob("*")) == before
    return capsys.readouterr().err, path


@pytest.mark.parametrize("lens", ["[-5]", "[]", '"128"', "[1.5]", "[true]", "null", "[1e3]"])
def test_a_grid_that_is_none_is_refused_as_input_with_its_file(begun, lens, capsys):
    said, path = resumed(begun, capsys, text=f'{{"seq_lens": {lens}, "cp": [1]}}')

    assert f"{path} | seq_lens " in said
    assert "put the file back as the curve wrote it" in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "asked.json is no JSON: "),
        ("[]", "asked.json | it holds []; wanted an object with seq_lens and cp"),
        ('{"cp": [1]}', "asked.json | seq_lens is missing; wanted a list of whole numbers"),
        ('{"seq_lens": [64], "cp": [3]}', "asked.json | cp has 3; wanted a divisor of 4 ranks: "),
        ('{"seq_lens": [64, 4294967296], "cp": [1]}', "seq_lens has 4294967296; wanted whole"),
        ('{"seq_lens": [64], "cp": [1], "cps": [2]}', "cps is unknown, did you mean 'cp'?"),
    ],
)
def test_an_edited_grid_is_refused_as_input_with_what_is_wrong(begun, text, told, capsys):
    assert told in resumed(begun, capsys, text=text)[0]


def test_everything_that_is_wrong_with_a_grid_is_named_at_once(begun, capsys):
    said, path = resumed(begun, capsys, text='{"seq_lens": [0], "cp": 2, "length": [1]}')

    assert said.count(f"{path} | ") == 3


CURVE = CurveRow(seq_len=64, candidate=candidate(cp=1), outcome=out_of_memory())


def begun_with_rows(begun, lens=(64,), cp=1):
    spec, kept = begun
    rows = [replace(CURVE, seq_len=one, candidate=candidate(cp=cp)) for one in lens]
    write_curve(kept / ROWS, rows)
    return spec, kept


@pytest.mark.parametrize("words", [[], ["--seq-lens", "32,64"], ["--cp", "1"]])
def test_rows_without_what_was_asked_are_not_gone_on_with(begun, words, capsys):
    """Other lengths would stand beside them in one curve, and nobody would know."""
    spec, kept = begun_with_rows(begun)
    (kept / "asked.json").unlink()
    before = sorted(kept.rglob("*"))

    assert run(["curve", str(spec), "--runs", str(kept.parent), "--resume", *words]) == 2
    said = capsys.readouterr().err
    assert "run 'grow-curve' has 1 rows and no asked.json" in said
    assert "put the file back as the curve wrote it, or start another curve" in said
    assert sorted(kept.rglob("*")) == before


@pytest.mark.parametrize(
    ("lens", "cp", "told"),
    [
        ((96,), 1, "seq_lens has 64 where the rows of CP=1 have 96"),
        ((64, 96), 2, None),  # the first gave no figure, so the second is one of the bisection
        ((64,), 4, "cp has no 4, of which there are rows"),
    ],
)
def test_rows_that_cannot_have_come_from_the_grid_betray_an_edit(begun, lens, cp, told, capsys):
    _, kept = begun_with_rows(begun, lens=lens, cp=cp)

    wrong = why_not_of(read_asked(kept), read_curve(kept))

    assert wrong == ([] if told is None else [told])
    if told:
        text = (kept / "asked.json").read_text()
        assert told in resumed(begun, capsys, text=text)[0]


def test_a_curve_killed_before_it_kept_what_it_was_asked_goes_on(begun):
    spec, kept = begun
    (kept / "asked.json").unlink()
    plan = CurvePlan(prepare(load(spec), None).spec, CurveAsked())

    _keep_grid(plan, CurveAsked(), kept, known=[])

    assert read_asked(kept) == plan.grid


def test_a_sweep_is_no_curve_to_go_on_with_and_a_curve_no_sweep(begun, capsys):
    spec, kept = begun
    swept = kept.parent / "swept"
    open_run(replace(prepare(load(spec), None).spec, name="swept"), swept, resume=False).close()
    ParquetLedger(swept, writable=True)
    words = ["--runs", str(kept.parent), "--resume", "--name"]

    assert run(["curve", str(swept / "spec.toml"), *words, "swept"]) == 2
    assert "is a sweep, not a curve: it holds trials" in capsys.readouterr().err
    assert run(["sweep", str(spec), *words, "grow-curve"]) == 2
    said = capsys.readouterr().err
    assert "is a curve, not a sweep: it holds asked.json" in said
    assert "give the sweep another --name" in said
