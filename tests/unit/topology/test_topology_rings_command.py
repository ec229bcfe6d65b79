"""`python -m topology rings`: what it prints, and its exit codes."""

import io
import json
import sys

import pytest
from ring_samples import CORPUS, DGX_1V, NVLINK_RATE, cluster, node_of, node_of_table

from topology import Topology, TopologyError, rings_command
from topology.rings import plan_rings
from topology.rings_command import main, render_rings


@pytest.fixture
def inventory(tmp_path):
    """Writes a topology to a file that the command can read."""

    def write(topology: Topology) -> str:
        path = tmp_path / "inventory.json"
        path.write_text(json.dumps(topology.to_json()))
        return str(path)

    return write


def test_json_goes_to_stdout_alone(inventory, capsys):
    topology = cluster(node_of_table(DGX_1V))

    status = main(["--tp", "1", "--cp", "8", "--format", "json", inventory(topology)])

    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    assert json.loads(out) == plan_rings(topology, tp=1, cp=8).to_json()


def test_the_table_names_slow_edges_crossings_and_the_bound(inventory, capsys):
    nodes = [node_of("NV18", name=name, nics=8, bytes_per_s=NVLINK_RATE) for name in "ab"]

    assert main(["--tp", "1", "--cp", "16", inventory(cluster(*nodes))]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tp 1, cp 16: 1 group, 1 ring"
    assert any(line.startswith("ring 0: a:0 ") for line in lines)
    assert any(line.endswith(" NET 50.0 GB/s, 2 edges alike") for line in lines)
    assert "  edges between islands 2, nodes 2, switches 0" in lines
    assert sum(line.startswith("  leaves the node: ") for line in lines) == 2
    assert any("all rings at once: 50.0 GB/s" in line for line in lines)
    assert any("beat 400.0 GB/s (12% reached)" in line for line in lines)
    assert any("idle" in line for line in lines)


def test_unknown_rates_are_question_marks_and_said_to_be_planned():
    node = node_of("SYS", gpus=4, but={(0, 1): "NV4"})

    text = render_rings(plan_rings(cluster(node), tp=1, cp=4))

    assert "leaves the island: node0:1 - node0:2 SYS ?" in text
    assert "planning weights" in text
    assert "all rings at once: unknown, since 4 of 4 edges have no rate told" in text
    assert text.isascii()
    assert text.endswith("\n")


def test_a_bound_that_nobody_can_know_is_said_to_be_unknown_and_null(capsys, inventory):
    plan = plan_rings(cluster(node_of("NV4", gpus=4)), tp=1, cp=4)

    text = render_rings(plan)

    assert "unknown, since 4 of 4 edges have no rate told; what no rings over these" in text
    assert "since no capacity was told" in text
    assert "beat ?" not in text
    path = inventory(cluster(node_of("NV4", gpus=4)))
    assert main(["--tp", "1", "--cp", "4", "--format", "json", path]) == 0
    assert json.loads(capsys.readouterr().out)["bound_bytes_per_s"] is None


def test_a_ring_of_one_has_no_slowest_edge():
    text = render_rings(plan_rings(cluster(node_of("NV18", gpus=1)), tp=1, cp=1))

    assert "slowest edge" not in text
    assert "rings of one device: nothing is sent" in text
    assert "planning weights" not in text


def test_no_ring_exits_1_and_says_what_can_be_had(inventory, capsys):
    assert main(["--tp", "8", "--cp", "2", inventory(cluster(node_of("NV18")))]) == 1

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: tp=8, cp=2: wanted 2 tensor-parallel groups")
    assert "the nearest is cp=1 with tp=8" in err


@pytest.mark.parametrize(
    "argv",
    [
        ["--tp", "0", "--cp", "1"],
        ["--tp", "1", "--cp", "-1"],
        ["--tp", "x", "--cp", "1"],
        ["--tp", "1"],
        ["--tp", "1", "--cp", "1", "--format", "xml"],
    ],
)
def test_bad_usage_exits_2(argv, capsys):
    with pytest.raises(SystemExit) as left:
        main(argv)

    assert left.value.code == 2
    assert capsys.readouterr().out == ""


def test_a_file_that_cannot_be_read_exits_2(tmp_path, capsys):
    assert main(["--tp", "1", "--cp", "1", str(tmp_path / "gone.txt")]) == 2

    assert "gone.txt" in capsys.readouterr().err


def test_without_files_this_machine_is_asked(monkeypatch, capsys):
    monkeypatch.setattr(rings_command, "discover", lambda: cluster(node_of("NV18", name="here")))

    assert main(["--tp", "1", "--cp", "8"]) == 0

    assert "ring 0: here:0 here:1" in capsys.readouterr().out


def test_ctrl_c_exits_130(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(rings_command, "discover", interrupted)

    assert main(["--tp", "1", "--cp", "1"]) == 130


def test_a_closed_output_is_an_error_and_no_traceback(monkeypatch, capsys, tmp_path):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

        def fileno(self):
            return self.file.fileno()

    closed = Closed()
    with (tmp_path / "out").open("w") as closed.file:
        monkeypatch.setattr(rings_command, "discover", lambda: cluster(node_of("NV18")))
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["--tp", "1", "--cp", "8"]) == 1

    assert "cannot write standard output" in capsys.readouterr().err


def test_a_posted_table_is_read(capsys):
    tables = sorted((CORPUS / "topo-m").glob("01_*.txt"))
    if not tables:
        pytest.skip("the posted tables are not beside this checkout (shared/data/topologies)")

    assert main(["--tp", "1", "--cp", "8", str(tables[0])]) == 0

    assert ":0 node0:3 node0:2 node0:1 node0:5" in capsys.readouterr().out


def test_refusals_survive_as_topology_errors():
    with pytest.raises(TopologyError):
        plan_rings(cluster(), tp=1, cp=1)


def test_the_picture_is_written_beside_the_plan(inventory, tmp_path, capsys):
    picture = tmp_path / "rings.svg"
    path = inventory(cluster(node_of_table(DGX_1V)))

    status = main(["--tp", "1", "--cp", "8", "--svg", str(picture), "--format", "json", path])

    out, err = capsys.readouterr()
    assert (status, err) == (0, f"wrote {picture}\n")
    assert len(json.loads(out)["rings"]) == 1
    assert picture.read_text().startswith("<svg ")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["inventory.json", "rings.svg"]


def test_a_picture_that_cannot_be_written_is_exit_2(inventory, tmp_path, capsys):
    picture = tmp_path / "no such folder" / "rings.svg"

    status = main(
        ["--tp", "1", "--cp", "8", "--svg", str(picture), inventory(cluster(node_of_table(DGX_1V)))]
    )

    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith(f"error: --svg: cannot write {picture}: ")
