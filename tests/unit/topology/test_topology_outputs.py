"""What is read is never written over, and no file is written twice."""

import pytest

from topology.outputs import why_overwritten


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
