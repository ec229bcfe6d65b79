"""Which run a curve goes on with, and what it refuses before anything starts."""

import signal

import pytest
from fakes import sweep_spec

from cptune.cli import run
from cptune.domain.curve import CurveGrid
from cptune.opening import curve_directory, open_run
from cptune.search.prepare import prepare
from cptune.spec import load, write_toml
from cptune.store.curve import write_asked


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


@pytest.mark.parametrize("lens", ["[-5]", "[]", '"128"', "[1.5]", "[true]", "null"])
def test_a_grid_that_is_none_is_refused_with_its_file(begun, lens, capsys):
    spec, kept = begun
    (kept / "asked.json").write_text(f'{{"seq_lens": {lens}, "cp": [1]}}')

    assert run(["curve", str(spec), "--runs", str(kept.parent), "--resume"]) == 1
    assert f"{kept / 'asked.json'} cannot be read: " in capsys.readouterr().err
