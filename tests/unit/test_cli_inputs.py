"""Files that are not there: exit 2, and only one that was plausibly meant is asked about."""

from pathlib import Path

import pytest

from cptune.cli import run
from topology.cli import main as topology
from topology.inputs import cannot_read, file_meant

COMMANDS = [
    (run, ["plan"]),
    (run, ["explain"]),
    (run, ["sweep"]),
    (run, ["curve"]),
    (run, ["balance", "--no-measured", "--lengths"]),
    (run, ["topology"]),
    (topology, []),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a few files, one of them hidden."""
    monkeypatch.chdir(tmp_path)
    for name in ("llama.toml", "lengths.csv", "topo.txt", ".gitignore"):
        (tmp_path / name).write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    ("seen", "meant"),
    [("lama.toml", "llama.toml"), ("lenght.csv", "lengths.csv"), ("tpo.txt", "topo.txt")],
)
@pytest.mark.parametrize(("program", "words"), COMMANDS)
def test_a_slip_is_asked_about(folder, program, words, seen, meant, capsys):
    assert program([*words, seen]) == 2
    assert f", did you mean '{meant}'?" in capsys.readouterr().err


@pytest.mark.parametrize("seen", ["nope", "x", "gone.json", "x.toml", "my.csv"])
@pytest.mark.parametrize(("program", "words"), COMMANDS)
def test_what_only_lies_there_is_not_named(folder, program, words, seen, capsys):
    assert program([*words, seen]) == 2

    err = capsys.readouterr().err
    assert not any(path.name in err for path in folder.iterdir())
    assert "did you mean" not in err


@pytest.mark.parametrize(
    ("seen", "meant"),
    [("llama", "llama.toml"), ("llama.toml", None), ("no/llama.toml", None), ("a\0b", None)],
)
def test_a_stem_is_enough_and_what_is_there_needs_nothing(folder, seen, meant):
    assert file_meant(Path(seen)) == (meant and Path(meant))


def test_the_reason_of_the_system_is_said_in_its_words(folder):
    said = cannot_read(folder, IsADirectoryError(21, "Is a directory", "x"))
    assert said == f"cannot read {folder}: Is a directory"


def test_the_folder_of_what_was_given_is_kept(folder, monkeypatch, capsys):
    monkeypatch.chdir("/")

    assert run(["plan", f"{folder}/lama.toml"]) == 2
    assert f"did you mean '{folder}/llama.toml'?" in capsys.readouterr().err
