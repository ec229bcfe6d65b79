"""Exit codes and where each word goes: JSON to stdout alone, messages to stderr."""

import json
import signal
import sys
from dataclasses import replace

import pytest
from fakes import candidate, failed, measured, out_of_memory, space_of, sweep_spec, trial_of

from cptune import __version__
from cptune.__main__ import main as start
from cptune.cli import main, run
from cptune.cli.app import say_stopped
from cptune.cluster.connection import _own_exit_code
from cptune.domain.study import Objective
from cptune.errors import SpecError
from cptune.opening import open_run
from cptune.printing import sweep_json
from cptune.search.choose import Limits, choose
from cptune.search.prepare import prepare
from cptune.searching import Sweep, open_sampler
from cptune.spec import load, write_toml
from topology.nouns import Topology

CP1, CP2 = candidate(dp=2), candidate(cp=2)


@pytest.fixture(autouse=True)
def _signals():
    """The command line takes them; the other tests keep theirs."""
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, kept in before.items():
        signal.signal(number, kept)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["swep"], "swep"),
        (["sweep", "--colour"], "--colour"),
        (["sweep", "--format", "xml"], "xml"),
        (["sweep", "a.toml", "b.toml"], "b.toml"),
        (["sweep", "--runs"], "--runs"),
        (["topology", "--format", "tree2"], "tree2"),
        (["curve"], "SPEC"),
        (["curve", "a.toml", "--lengths", "5"], "--lengths"),
    ],
)
def test_bad_usage_exits_2_and_names_the_word(arguments, said, capsys):
    assert run(arguments) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err


def test_a_missing_spec_exits_2(tmp_path, capsys):
    path = tmp_path / "none.toml"

    assert run(["sweep", str(path), "--runs", str(tmp_path / "runs")]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: cannot read {path}: ")
    assert err.endswith("hint: wanted a sweep.toml\n")
    assert list(tmp_path.iterdir()) == []


def test_a_bad_spec_exits_2_with_every_problem_and_starts_nothing(tmp_path, capsys):
    path = tmp_path / "s.toml"
    path.write_text('[model]\npreset = "tiny"\n[workload]\nseq_len = "8"\nbatch = 1\n')

    assert run(["sweep", str(path), "--runs", str(tmp_path / "runs")]) == 2

    err = capsys.readouterr().err
    assert f"{path}:4: workload.seq_len | input should be a valid integer, not '8'\n" in err
    assert f"{path}:5: workload.batch | unknown key" in err
    assert "workload.global_batch_seqs | missing" in err
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("[axes]\ntp = [3]\n", "error: no layout of 4 ranks is legal"),
        ("[baseline]\ntp = 3\n", "error: baseline | tp=3 is not in the legal set"),
        ("[axes]\nsharding = []\ncp = [3]\n", "error: no layout of 4 ranks is legal"),
    ],
)
def test_a_spec_that_cannot_be_tried_exits_2_before_anything_is_made(
    tmp_path, capsys, changes, said
):
    path = tmp_path / "s.toml"
    path.write_text(write_toml(sweep_spec('[cluster]\nworld_size = 4\ngpu = "cpu"\n' + changes)))

    assert run(["sweep", str(path), "--runs", str(tmp_path / "runs")]) == 2

    assert capsys.readouterr().err.startswith(said)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a/b", "..", "-x", "a b", ""])
def test_a_name_that_is_no_directory_exits_2(tmp_path, capsys, name):
    path = tmp_path / "s.toml"
    path.write_text(write_toml(sweep_spec()))

    assert run(["sweep", str(path), f"--name={name}", "--runs", str(tmp_path / "runs")]) == 2

    assert "error: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_run_needs_resume(tmp_path, capsys):
    path = tmp_path / "s.toml"
    path.write_text(write_toml(sweep_spec('[cluster]\nworld_size = 4\ngpu = "cpu"\n')))
    run_path = tmp_path / "runs" / "fake"
    run_path.mkdir(parents=True)
    (run_path / "spec.toml").write_text("of an earlier run")

    assert run(["sweep", str(path), "--runs", str(tmp_path / "runs")]) == 2

    assert "hint: add --resume to continue it" in capsys.readouterr().err
    assert [one.name for one in run_path.iterdir()] == ["spec.toml"]


def test_a_directory_of_other_files_is_no_run(tmp_path, capsys):
    path = tmp_path / "s.toml"
    path.write_text(write_toml(sweep_spec('[cluster]\nworld_size = 4\ngpu = "cpu"\n')))
    (tmp_path / "runs" / "fake").mkdir(parents=True)
    (tmp_path / "runs" / "fake" / "thesis.txt").write_text("mine")

    assert run(["sweep", str(path), "--runs", str(tmp_path / "runs")]) == 2

    assert "is no run directory" in capsys.readouterr().err


def test_a_resume_with_another_spec_names_the_change(tmp_path, capsys):
    cluster = '[cluster]\nworld_size = 4\ngpu = "cpu"\n'
    path = tmp_path / "s.toml"
    path.write_text(write_toml(sweep_spec(cluster)))
    run_path = tmp_path / "runs" / "fake"
    run_path.mkdir(parents=True)
    axes = "[axes]\ntp = [1, 2, 4]\ncp = [1, 2, 4]\npp = [1, 2, 4]\nmicro_batch = [1, 2, 4]\n"
    (run_path / "spec.toml").write_text(
        write_toml(sweep_spec(f"{cluster}{axes}[budget]\ntrials = 7\n"))
    )

    assert run(["sweep", str(path), "--runs", str(tmp_path / "runs"), "--resume"]) == 2

    assert "was started with another spec: budget.trials: 7 -> 20\n" in capsys.readouterr().err


def test_a_resume_of_nothing_exits_2(tmp_path, capsys):
    assert run(["sweep", "--resume", "--runs", str(tmp_path)]) == 2

    assert f"cannot read {tmp_path / 'quickstart' / 'spec.toml'}" in capsys.readouterr().err


def test_debug_shows_the_error_itself(tmp_path):
    with pytest.raises(SpecError, match="cannot read"):
        run(["sweep", str(tmp_path / "none.toml")], debug=True)
    with pytest.raises(SpecError, match="cannot read"):
        main(["--debug", "sweep", str(tmp_path / "none.toml")])


@pytest.mark.parametrize("arguments", [["--help"], ["sweep", "--help"], []])
def test_help_exits_0(arguments, capsys):
    assert run(arguments) == 0

    assert "Usage: cptune" in capsys.readouterr().out


def test_version_exits_0(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])

    assert caught.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


def test_the_inventory_goes_to_stdout_alone(capsys):
    assert run(["topology", "--format", "json"]) == 0

    out, err = capsys.readouterr()
    assert len(Topology.from_json(json.loads(out)).nodes) == 1
    assert err == ""


def test_the_inventory_goes_to_a_file(tmp_path, capsys):
    path = tmp_path / "topology.json"

    assert run(["topology", "--out", str(path)]) == 0

    assert Topology.from_json(json.loads(path.read_text())).nodes
    assert capsys.readouterr().out == ""


def test_the_json_of_a_sweep_holds_every_trial(tmp_path):
    space = space_of(CP1, CP2, excluded={"heads": 3})
    trials = (
        trial_of(CP1, out_of_memory(1), number=0),
        trial_of(CP2, measured(ranks=2), number=1),
        trial_of(CP2, failed(message="newer"), number=1, attempt=1),
    )
    limits = Limits(capacity_bytes=1000, memory_margin=0.1, objective=Objective())
    done = Sweep(
        spec=sweep_spec(),
        directory=tmp_path,
        space=space,
        trials=trials,
        choice=choose(trials, space, limits),
        recipe=None,
    )

    document = json.loads(json.dumps(sweep_json(done)))

    assert document["recipe"] is None
    assert (document["legal"], document["excluded"]) == (2, {"heads": 3})
    assert [(one["number"], one["outcome"], one["reason"]) for one in document["trials"]] == [
        (0, "out_of_memory", trials[0].reason),
        (1, "crashed", "newer"),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seq-lens", "1k"], "--seq-lens is '1k'"),
        (["--cp", "0,2"], "--cp has 0; wanted 1"),
    ],
)
def test_a_curve_over_no_numbers_exits_2_before_anything_starts(tmp_path, capsys, words, said):
    path = tmp_path / "a.toml"
    path.write_text(write_toml(sweep_spec()))

    assert run(["curve", str(path), "--runs", str(tmp_path / "runs"), *words]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert not (tmp_path / "runs").exists()


class Interrupted:
    """An import path on which Ctrl-C is pressed while the command line is being imported."""

    @staticmethod
    def find_spec(name, *_):
        if name == "cptune.cli":
            raise KeyboardInterrupt


def test_ctrl_c_during_the_imports_ends_with_130_and_no_traceback(monkeypatch):
    monkeypatch.delitem(sys.modules, "cptune.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])

    with pytest.raises(SystemExit) as ended:
        start()

    assert ended.value.code == 130


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trace", "run", "1.5"], "TRIAL is 1.5; wanted a whole number, 1 or 2"),
        (["balance", "--world", "8.6"], "--world is 8.6; wanted a whole number, 8 or 9"),
        (["topology", "rings", "--tp", "1.6", "--cp", "2"], "--tp is 1.6"),
        (["topology", "probe", "--cp", "2.5"], "--cp is 2.5"),
    ],
)
def test_a_fraction_where_a_whole_number_is_wanted_is_not_rounded(capsys, words, said):
    assert run(words) == 2
    assert said in capsys.readouterr().err


def test_a_resume_follows_a_file_of_lengths_that_moved(tmp_path):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "lengths.csv").write_text("8\n")
    text = '[cluster]\nworld_size = 4\ngpu = "cpu"\n[workload]\nseq_len = 64\n'
    text += 'global_batch_seqs = 4\nmask = "document"\nlengths = "lengths.csv"\n'
    text += 'precision = "fp32"\n[model]\npreset = "tiny"\n'
    specs = []
    for folder in ("here", "there"):
        path = tmp_path / folder / "s.toml"
        path.write_text(text)
        specs.append(prepare(load(path), None).spec)
    open_run(specs[0], tmp_path / "runs" / "s", resume=False).close()

    open_run(specs[1], tmp_path / "runs" / "s", resume=True).close()

    kept = (tmp_path / "runs" / "s" / "spec.toml").read_text()
    assert str(tmp_path / "there" / "lengths.csv") in kept
    changed = replace(specs[0], workload=replace(specs[0].workload, lengths="prolong"))
    with pytest.raises(SpecError, match=r"another spec: workload\.lengths"):
        open_run(changed, tmp_path / "runs" / "s", resume=True)


@pytest.mark.parametrize(
    ("stop", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C\n"),
        (SystemExit(143), 143, "stopped by SIGTERM\n"),
        (SystemExit(129), 129, "stopped by SIGHUP\n"),
    ],
)
@pytest.mark.parametrize("says", [False, True])
def test_a_signal_ends_a_command_with_its_code_and_one_line(
    tmp_path, monkeypatch, capsys, stop, code, line, says
):
    def stopped(*_, **__):
        if says:
            say_stopped(stop, "stopped; go on with: this")
        raise stop

    monkeypatch.setattr("cptune.planning.plan.plan", stopped)
    path = tmp_path / "s.toml"
    path.write_text(write_toml(sweep_spec()))

    with pytest.raises(SystemExit) as ended:
        main(["plan", str(path)])

    assert ended.value.code == code
    assert capsys.readouterr().err == ("stopped; go on with: this\n" if says else line)
    stop.__notes__ = []


def test_the_bare_number_of_a_signal_that_ray_exits_with_becomes_its_exit_code():
    def ended_by(code):
        with pytest.raises(SystemExit) as ended, _own_exit_code():
            raise SystemExit(code)
        return ended.value.code

    assert [ended_by(code) for code in (15, 143, 1)] == [143, 143, 1]


@pytest.mark.parametrize(("address", "code"), [("nowhere", 2), ("h:0", 2), ("127.0.0.1:1", 1)])
def test_an_address_that_is_none_or_where_nobody_listens_leaves_no_run(
    tmp_path, capsys, address, code
):
    path = tmp_path / "s.toml"
    path.write_text(write_toml(sweep_spec('[cluster]\nworld_size = 4\ngpu = "cpu"\n')))
    words = ["--runs", str(tmp_path / "runs"), "--address", address]

    assert run(["sweep", str(path), *words]) == code

    assert address in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("study", "file"),
    [("sqlite", "study.db"), ("journal", "study.journal"), ("journal file", "study.journal")],
)
def test_the_study_of_a_run_is_where_the_spec_says(tmp_path, study, file):
    text = f'[cluster]\nworld_size = 4\ngpu = "cpu"\n[storage]\nstudy = "{study}"\n'
    prepared = prepare(sweep_spec(text), None)

    with open_run(prepared.spec, tmp_path / "runs" / "s", resume=False) as opened:
        open_sampler(prepared, opened).close()
        names = {path.name for path in opened.path.iterdir()}

    assert names == {"lock", "spec.toml", file}
    assert load(tmp_path / "runs" / "s" / "spec.toml").storage.study == study
