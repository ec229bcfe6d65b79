"""The command: what goes where, and with which exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from topology import Topology, TopologyError
from topology.cli import main, render_json, write_text

ROOT = Path(__file__).parents[3]


def test_json_goes_to_stdout_alone(capsys):
    assert main(["--format", "json"]) == 0

    out, err = capsys.readouterr()
    assert len(Topology.from_json(json.loads(out)).nodes) == 1
    assert err == ""


def test_the_table_is_the_default(capsys):
    assert main([]) == 0

    assert capsys.readouterr().out.startswith("node ")


def test_out_records_json_and_leaves_stdout_empty(tmp_path, capsys):
    path = tmp_path / "topology.json"

    assert main(["--out", str(path)]) == 0

    out, err = capsys.readouterr()
    assert out == ""
    assert str(path) in err
    assert Topology.from_json(json.loads(path.read_text())).nodes
    assert list(tmp_path.iterdir()) == [path]


def test_out_takes_the_format_that_is_asked_for(tmp_path):
    path = tmp_path / "topology.txt"

    assert main(["--out", str(path), "--format", "table"]) == 0

    assert path.read_text().startswith("node ")


def test_an_unwritable_out_exits_2_with_path_and_reason(tmp_path, capsys):
    path = tmp_path / "none" / "topology.json"

    assert main(["--out", str(path)]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: --out: cannot write {path}: No such file or directory\n"


@pytest.mark.parametrize("argv", [["--format", "xml"], ["--extra"], ["--form", "json"]])
def test_bad_usage_exits_2(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)

    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--format", "jsn"], ["rings", "--format", "jsn"]])
def test_a_wrong_word_is_refused_with_the_nearest(argv, capsys):
    with pytest.raises(SystemExit):
        main(argv)

    assert "saw 'jsn', wanted table, json" in (err := capsys.readouterr().err)
    assert "did you mean 'json'?" in err


def test_writing_replaces_the_whole_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("a much longer old text")

    write_text(path, text="new")

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_nothing_behind_and_the_old_file_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    with pytest.raises(UnicodeEncodeError):
        write_text(path, text="\ud800")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_standard_output_exits_1_without_traceback():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "topology"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert done.returncode == 1
    assert done.stderr == "error: cannot write standard output: No space left on device\n"


def test_writing_keeps_a_symbolic_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")

    write_text(tmp_path / "link", text="new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_folder_is_not_overwritten(tmp_path):
    with pytest.raises(TopologyError, match="no regular file"):
        write_text(tmp_path, text="new")


def test_rendered_json_reads_back_equal():
    topology = Topology(source="nvml", nodes=())

    assert Topology.from_json(json.loads(render_json(topology))) == topology


MATRIX = "     GPU0 GPU1 NUMA Affinity\nGPU0 X NV4 0\nGPU1 NV4 X 1\n"


def test_files_are_read_instead_of_this_machine(tmp_path, capsys):
    path = tmp_path / "pasted.txt"
    path.write_text(MATRIX)

    assert main([str(path), "--format", "json"]) == 0

    out, err = capsys.readouterr()
    topology = Topology.from_json(json.loads(out))
    assert topology.source == "nvidia-smi"
    assert topology.nodes[0].gpu_links[0].lanes == 4
    assert err == ""


def test_standard_input_is_a_file_called_dash():
    done = subprocess.run(
        [sys.executable, "-m", "topology", "-", "--format", "tree"],
        cwd=ROOT,
        input=MATRIX,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0
    assert "NVLINK x4 to GPU 1" in done.stdout


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file or directory"),
        (b"a\0b", "NUL byte"),
        (b"hello\n", "wanted one of nvidia-smi topo -m"),
        (MATRIX.replace("NV4 0", "NV4. 0").encode(), "line 2, row GPU0, column GPU1"),
    ],
)
def test_a_file_that_cannot_be_read_exits_2_and_names_the_place(content, told, tmp_path, capsys):
    path = tmp_path / "pasted.txt"
    if content is not None:
        path.write_bytes(content)

    assert main([str(path)]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert str(path) in err
    assert told in err


def test_a_folder_is_no_file(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2

    assert "Is a directory" in capsys.readouterr().err


def test_rings_as_first_word_is_a_command_of_its_own(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["rings", "--no-such-option"])

    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err
