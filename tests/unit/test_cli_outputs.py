"""Outputs that cannot be written: exit 2 before the work, the same for every command."""

import sys
from pathlib import Path

import pytest
from fakes import sweep_spec

from cptune.cli import run
from cptune.cli.app import app
from cptune.cli.outputs import OUTPUT_FLAGS, joined
from cptune.errors import LedgerError
from cptune.spec import write_toml
from topology import rings_command
from topology.cli import main as topology

MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
IMPOSSIBLE = ["none/x", ".", "t.txt/x", "x" * 256, "", "-"]
COMMANDS = [
    (run, ["balance", "--no-measured", "--lengths", "unread.csv"], "--out"),
    (run, ["balance", "--no-measured", "--lengths", "unread.csv"], "--figure"),
    (run, ["report", "unread"], "--out"),
    (run, ["topology", "unread.txt"], "--out"),
    (run, ["topology", "rings", "--tp", "1", "--cp", "2", "unread.txt"], "--svg"),
    (topology, ["unread.txt"], "--out"),
    (topology, ["rings", "--tp", "1", "--cp", "2", "unread.txt"], "--svg"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Nothing that the commands read is there: they must not come so far."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text(MATRIX)
    return tmp_path


@pytest.mark.parametrize("path", IMPOSSIBLE)
@pytest.mark.parametrize(("program", "words", "flag"), COMMANDS)
def test_it_is_refused_before_anything_is_read(folder, program, words, flag, path, capsys):
    assert program([*words, f"{flag}={path}"]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {flag}: cannot write ")
    assert program is topology or "hint: wanted a file" in err
    assert "unread" not in err
    assert [one.name for one in folder.iterdir()] == ["t.txt"]


@pytest.mark.parametrize(("program", "words", "flag"), COMMANDS)
def test_a_hyphen_is_no_file_however_it_is_given(folder, program, words, flag, capsys):
    assert program([*words, flag, "-"]) == 2

    said = f"error: {flag}: cannot write -: it means standard output"
    assert capsys.readouterr().err.startswith(said)
    assert [one.name for one in folder.iterdir()] == ["t.txt"]


def test_every_flag_of_an_output_file_is_known():
    commands = (
        "balance",
        "curve",
        "explain",
        "plan",
        "report",
        "sweep",
        "trace",
        "topology",
        "probe",
    )
    apps = [*(app[name] for name in commands), app["topology"]["rings"]]

    found = {
        argument.name
        for one in apps
        for argument in one.assemble_argument_collection()
        if argument.name.startswith("--") and argument.hint in (Path | None, Path)
    }

    assert found - {"--runs", "--table"} == OUTPUT_FLAGS


def test_a_hyphen_that_is_no_output_stays_a_word():
    words = ["topology", "--format", "json", "-", "--out", "x"]
    assert joined(words) == words
    assert joined(["--out", "-", "-"]) == ["--out=-", "-"]


def test_a_file_whose_name_begins_with_a_hyphen_is_read_by_its_whole_path(folder, capsys):
    (folder / "-t.txt").write_text(MATRIX)

    assert run(["topology", "-t.txt"]) == 2
    hint = capsys.readouterr().err.splitlines()[-1]
    assert run(["topology", hint.removeprefix("hint: a file of this name is ")]) == 0


def test_a_disk_that_is_lost_in_the_middle_exits_1(folder, monkeypatch, capsys):
    def lost(*_, **__):
        raise LedgerError("cannot write x: No space left on device")

    monkeypatch.setattr("cptune.store.balance.write_durably", lost)
    words = ["--no-measured", "--world", "8", "--lengths", "fixed(tokens=100)", "--out", "x"]

    assert run(["balance", *words]) == 1
    assert "No space left" in capsys.readouterr().err


def test_a_topology_whose_disk_is_lost_in_the_middle_exits_1(folder, monkeypatch, capsys):
    def vanish(*_, **__):
        (folder / "gone").rmdir()
        return "<svg/>"

    (folder / "gone").mkdir()
    monkeypatch.setattr("topology.picture.render_svg", vanish)
    words = ["--tp", "1", "--cp", "2", "t.txt", "--svg", "gone/x.svg"]

    assert run(["topology", "rings", *words]) == 1
    (folder / "gone").mkdir()
    assert rings_command.main(words) == 1
    assert capsys.readouterr().err.count("error: cannot write gone/x.svg: No such file") == 2


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (run, ["topology", "t.txt"]),
        (topology, ["t.txt"]),
        (topology, ["rings", "--tp", "1", "--cp", "2", "t.txt"]),
        (run, ["topology", "rings", "--tp", "1", "--cp", "2", "t.txt"]),
        (run, ["plan", "s.toml"]),
        (run, ["plan", "s.toml", "--format", "json"]),
    ],
)
def test_a_closed_standard_output_is_an_error_and_no_traceback(
    folder, monkeypatch, capsys, program, words
):
    (folder / "s.toml").write_text(
        write_toml(sweep_spec('[cluster]\nworld_size = 4\ngpu = "cpu"\n'))
    )
    monkeypatch.setattr(sys, "stdout", None)

    assert program(words) == 1

    assert "closed" in capsys.readouterr().err


@pytest.mark.parametrize("program", [topology, lambda words: run(["topology", *words])])
def test_a_closed_standard_input_is_an_error_and_no_traceback(monkeypatch, capsys, program):
    monkeypatch.setattr(sys, "stdin", None)

    assert program(["-"]) == 2

    assert "cannot read -: standard input is closed" in capsys.readouterr().err


def test_a_name_as_long_as_the_system_takes_can_be_written(folder):
    name = "x" * 255

    assert run(["topology", "t.txt", "--out", name]) == 0
    words = ["--no-measured", "--world", "8", "--lengths", "fixed(tokens=100)"]
    assert run(["balance", *words, "--out", "y" * 255]) == 0

    assert (folder / name).exists()


def test_without_a_standard_error_the_exit_code_is_left(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)

    assert run(["plan", "none.toml"]) == 2
    assert capsys.readouterr().out == ""
