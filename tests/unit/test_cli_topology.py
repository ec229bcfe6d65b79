"""`cptune topology`: files, standard input, and what is refused before anything starts."""

import io
import json
import signal
import sys

import pytest

from cptune.cli import run
from topology import Network, Node, Topology

TWO_GPUS = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"


@pytest.fixture(autouse=True)
def _signals():
    """A command that starts Ray takes signals; the other tests keep theirs."""
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.fixture
def standard_input(monkeypatch):
    """Standard input that holds a matrix of two GPUs."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TWO_GPUS.encode())))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "node.txt"
    path.write_text(TWO_GPUS)
    return str(path)


def gpus_of(text):
    return [len(node["gpus"]) for node in json.loads(text)["nodes"]]


@pytest.mark.usefixtures("standard_input")
@pytest.mark.parametrize(
    "words", [["-", "--format", "json"], ["--format", "json", "-"], ["--format", "json", "--", "-"]]
)
def test_a_dash_is_standard_input(words, capsys):
    assert run(["topology", *words]) == 0

    assert gpus_of(capsys.readouterr().out) == [2]


@pytest.mark.usefixtures("standard_input")
def test_rings_read_standard_input(capsys):
    assert run(["topology", "rings", "-", "--tp", "1", "--cp", "2", "--format", "json"]) == 0

    assert [len(ring["order"]) for ring in json.loads(capsys.readouterr().out)["rings"]] == [2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--colour"], "unknown option --colour"),
        (["none.txt"], "cannot read none.txt"),
        (["ring", "none.txt"], "no file ring\nhint: did you mean cptune topology rings?"),
        (["--address", "nowhere"], "--address is 'nowhere'; wanted host:port"),
        (["/dev/null"], "/dev/null: the input is empty; wanted one of nvidia-smi topo -m"),
        (["--address", "127.0.0.1:1", "none.txt"], "--address 127.0.0.1:1 and none.txt"),
        (["rings", "--tp", "0", "--cp", "2"], "--tp is 0; wanted 1 or more"),
        (["rings", "--tp", "1"], "--cp is missing"),
        (["probe", "--cp", "1"], "wanted 2 ranks or more"),
        (["probe", "--cp", "2", "--share", "7"], "share is 7.0"),
        (["probe", "--cp", "2", "none.txt"], "cannot read none.txt"),
        (["probe", "--cp", "2", "--out", "no/such/edges"], "--out: cannot write no/such/edges: No"),
        (["probe", "--cp", "2", "--bogus"], "unknown option --bogus"),
        (["probe"], "--cp is missing"),
    ],
)
def test_what_is_wrong_exits_2_and_starts_nothing(words, said, capsys):
    assert run(["topology", *words]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_probe_is_a_command_of_its_own_too(capsys):
    assert run(["probe", "--cp", "1"]) == 2

    assert "wanted 2 ranks or more" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["rings", "--tp", "1"], ["probe"]])
def test_rings_that_no_topology_here_can_hold_exit_1_and_say_what_can(command, file, capsys):
    assert run(["topology", *command, "--cp", "4", file]) == 1

    out, err = capsys.readouterr()
    assert out == ""
    assert "wanted 4 tensor-parallel groups of 1" in err
    assert "hint: the nearest is cp=2 with tp=1" in err


@pytest.mark.parametrize("words", [[], ["rings", "--tp", "1", "--cp", "2"], ["probe", "--cp", "2"]])
def test_a_cluster_that_nobody_answers_for_exits_1(words, capsys):
    assert run(["topology", *words, "--address", "127.0.0.1:1"]) == 1

    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot reach Ray at 127.0.0.1:1" in err


def test_rings_are_drawn_where_a_file_is_named(file, tmp_path, capsys):
    picture = tmp_path / "rings.svg"

    assert run(["topology", "rings", "--tp", "1", "--cp", "2", "--svg", str(picture), file]) == 0

    assert picture.read_text().startswith("<svg")
    assert capsys.readouterr().err == f"wrote {picture}\n"


def test_a_topology_that_cannot_be_written_exits_2(file, tmp_path, capsys):
    path = tmp_path / "none" / "topology.json"

    assert run(["topology", file, "--out", str(path)]) == 2

    assert f"error: --out: cannot write {path}" in capsys.readouterr().err


def test_a_recorded_cluster_without_gpus_is_read_back(tmp_path, capsys):
    known = Topology(source="sysfs", nodes=(Node(name="a"), Node(name="b")), network=Network())
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(known.to_json()))

    assert run(["topology", str(path), "--format", "json"]) == 0

    assert Topology.from_json(json.loads(capsys.readouterr().out)).nodes == known.nodes
