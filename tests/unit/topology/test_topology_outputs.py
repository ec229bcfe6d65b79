"""What is read is never written over, no file is written twice, and what cannot be is said."""

import os
from pathlib import Path

import pytest

from topology.outputs import why_overwritten, why_unwritable


@pytest.fixture
def given(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("5\n")
    return path


def test_an_output_that_is_an_input_is_refused_also_by_another_name(given):
    other = given.parent / "link.csv"
    other.symlink_to(given)
    for path in (given, other):
        why = why_overwritten({"--out": path}, inputs=[given])
        assert why == f"--out {path} is the input {given}; wanted another file"


def test_two_outputs_in_one_file_are_refused(given):
    path = given.parent / "x"
    why = why_overwritten({"--out": path, "--figure": path}, inputs=[given])
    assert why == f"--figure {path} is the file of --out; wanted another file"


def test_files_of_their_own_and_flags_that_were_not_given_are_fine(given):
    outputs = {"--out": given.parent / "x", "--figure": None, "--svg": given.parent / "y"}
    assert why_overwritten(outputs, inputs=[given, given.parent / "prolong"]) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none/x", "No such file or directory"),
        ("", "is there and is no regular file"),
        ("lengths.csv/x", "Not a directory"),
        ("lengths.csv/a/b", "No"),
        ("loop", "oop"),
        ("x" * 256, "File name too long"),
        ("pipe", "is there and is no regular file"),
    ],
)
def test_what_cannot_be_written_is_said_before_it_is(given, name, why):
    (given.parent / "loop").symlink_to(given.parent / "loop")
    os.mkfifo(given.parent / "pipe")
    path = given.parent / name

    said = why_unwritable(path)

    assert said is not None
    assert said.startswith(f"cannot write {path}: ")
    assert why in said


def test_a_file_that_can_be_written_is_not_made_and_not_changed(given):
    assert [why_unwritable(path) for path in (given.parent / "new", given)] == [None, None]
    assert [path.name for path in given.parent.iterdir()] == ["lengths.csv"]
    assert given.read_text() == "5\n"


@pytest.mark.skipif(not Path("/proc/sys/kernel").is_dir(), reason="no /proc, which nobody writes")
def test_a_directory_that_takes_no_files_is_found_by_trying():
    assert why_unwritable(Path("/proc/sys/kernel/x")) is not None


def test_an_output_that_is_no_path_at_all_overwrites_nothing(given):
    (given.parent / "loop").symlink_to(given.parent / "loop")
    outputs = {"--out": given.parent / "loop"}
    assert why_overwritten(outputs, inputs=[given, Path("x" * 5000), Path("a\0b")]) is None
