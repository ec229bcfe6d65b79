"""The commands `plan` and `explain`: JSON on stdout alone, exit codes, words for people."""

import json

import pytest

from cptune.cli import run
from cptune.errors import SpecError
from cptune.planning.machine import build_machine
from cptune.spec import parse
from topology.nouns import Gpu, Link, LinkKind, Nic, Node, Topology

SPEC = """
[model]
preset = "llama3-8b"
[workload]
seq_len = 131072
global_batch_seqs = 16
[cluster]
world_size = 64
gpu = "H100-SXM-80GB"
[axes]
tp = [1, 2]
cp = [4, 8]
pp = [1]
micro_batch = [1]
recompute = ["full"]
data_parallel = ["zero1"]
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "long.toml"
    path.write_text(SPEC)
    return str(path)


def call(capsys, *words):
    code = run(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_legal_layout_exits_0_with_json_alone(spec, capsys):
    code, out, err = call(capsys, "explain", spec, "--tp", "1", "--cp", "8", "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(out)["legal"] is True


def test_an_illegal_layout_prints_the_json_and_exits_1(spec, capsys):
    code, out, _ = call(capsys, "explain", spec, "--tp", "3", "--format", "json")
    assert code == 1
    assert json.loads(out)["legal"] is False


@pytest.mark.parametrize("words", [("--tp", "0"), ("--cp", "-1"), ("--cp", "two")])
def test_a_value_below_one_or_no_number_exits_2(spec, capsys, words):
    code, out, err = call(capsys, "explain", spec, *words)
    assert (code, out) == (2, "")
    assert "error:" in err


def test_people_read_the_peak_the_step_and_what_binds(spec, capsys):
    code, out, _ = call(capsys, "explain", spec, "--cp", "8", "--flops")
    assert code == 0
    for words in ("memory: low ", "on rank 0 of stage 0", "bound by compute", "Megatron", "hfu"):
        assert words in out
    code, out, _ = call(capsys, "explain", spec, "--tp", "3")
    assert code == 1
    for words in ("is not legal", "32 query heads", "Nearest legal layouts", "refuses it"):
        assert words in out


def test_a_plan_prints_a_ranking_and_what_to_measure(spec, capsys):
    code, out, _ = call(capsys, "plan", spec)
    assert code == 0
    for words in ("layouts may be tried", "Worth measuring", "Excluded", "tp1 cp8"):
        assert words in out
    code, out, _ = call(capsys, "plan", spec, "--format", "json", "--top", "1")
    answer = json.loads(out)
    assert (code, len(answer["rows"])) == (0, 1)
    assert set(answer["counts"]) == {"legal", "excluded"}


def test_nothing_fits_exits_1_in_words(spec, tmp_path, capsys):
    small = tmp_path / "small.toml"
    small.write_text(SPEC.replace("[axes]", "device_memory_bytes = 1000000000\n[axes]"))
    code, out, _ = call(capsys, "plan", str(small))
    assert code == 1
    assert "Nothing fits" in out
    assert "GiB above the 953.67 MiB of a device" in out
    none = tmp_path / "none.toml"
    none.write_text(SPEC.replace("world_size = 64", "world_size = 63"))
    code, out, _ = call(capsys, "plan", str(none))
    assert code == 1
    assert "no layout is legal" in out


def test_an_unknown_gpu_is_a_message_with_a_hint(spec, tmp_path, capsys):
    odd = tmp_path / "odd.toml"
    odd.write_text(SPEC.replace("H100-SXM-80GB", "H101"))
    code, _, err = call(capsys, "plan", str(odd))
    assert code == 2
    assert "'H101' is not known" in err
    assert "hint: add its peaks" in err


def node(name, gpus, lanes, gpu="NVIDIA H100 80GB HBM3"):
    links = [
        Link(a=a, b=b, kind=LinkKind.NVLINK if lanes else LinkKind.SYS, bytes_per_s=lanes)
        for a in range(gpus)
        for b in range(a + 1, gpus)
    ]
    return Node(
        name=name,
        gpus=tuple(Gpu(index=i, name=gpu) for i in range(gpus)),
        nics=tuple(Nic(name=f"mlx5_{i}", speed_bytes_per_s=25e9) for i in range(2)),
        gpu_links=tuple(links),
    )


def machine_of(tmp_path, *nodes, extra=""):
    inventory = tmp_path / "topology.json"
    inventory.write_text(json.dumps(Topology(source="test", nodes=nodes).to_json()))
    cluster = f'[cluster]\ntopology = "{inventory}"\n{extra}'
    text = SPEC[: SPEC.index("[cluster]")] + cluster
    return build_machine(parse(text, source="test", default_name="test").cluster)


def test_an_inventory_gives_gpu_world_islands_and_links(tmp_path):
    machine = machine_of(tmp_path, node("a", 4, 478e9), node("b", 4, 400e9))
    assert (machine.gpu.name, machine.world_size, machine.node_size) == ("H100-SXM-80GB", 8, 4)
    assert (machine.island_size, machine.island_bytes_per_s) == (4, 400e9)
    assert machine.network_bytes_per_s == 2 * 25e9 / 4


def test_gpus_without_nvlink_are_no_island(tmp_path):
    machine = machine_of(tmp_path, node("a", 4, None), extra="world_size = 4\n")
    assert machine.island_bytes_per_s == 25e9


def test_two_kinds_of_gpu_are_refused_unless_one_is_chosen(tmp_path):
    nodes = node("a", 2, 478e9), node("b", 2, 478e9, gpu="NVIDIA H200")
    with pytest.raises(SpecError, match="the inventory has H100-SXM-80GB, H200-SXM-141GB"):
        machine_of(tmp_path, *nodes)
    assert machine_of(tmp_path, *nodes, extra='gpu = "H200-SXM-141GB"').gpu.name.startswith("H200")


def test_an_inventory_of_another_gpu_than_the_spec_asks_for_is_refused(tmp_path):
    a100 = node("a", 2, 300e9, gpu="NVIDIA A100-SXM4-80GB")
    with pytest.raises(SpecError, match="'H100-SXM-80GB' asked, and the inventory has A100-SXM"):
        machine_of(tmp_path, a100, extra='gpu = "H100-SXM-80GB"')
    word = node("a", 2, 300e9, gpu="H100")
    assert machine_of(tmp_path, word, extra='gpu = "H100-SXM-80GB"').gpu.name == "H100-SXM-80GB"


def test_an_inventory_that_is_none_is_refused(tmp_path, capsys):
    bad = tmp_path / "bad.toml"
    bad.write_text(SPEC.replace("[axes]", f'topology = "{tmp_path / "gone.json"}"\n[axes]'))
    code, _, err = call(capsys, "plan", str(bad))
    assert code == 2
    assert "cannot read" in err


def document_spec(tmp_path, lengths, *, gpu="H100-SXM-80GB"):
    path = tmp_path / "documents.toml"
    packed = f'seq_len = 32768\nmask = "document"\nlengths = "{lengths}"'
    text = SPEC.replace("seq_len = 131072", packed).replace("cp = [4, 8]", "cp = [1, 8]")
    path.write_text(text.replace("H100-SXM-80GB", gpu))
    return str(path)


def test_a_file_of_lengths_beside_the_spec_makes_a_straggler(tmp_path, capsys, monkeypatch):
    (tmp_path / "lengths.csv").write_text("doc,tokens\n" + "a,500\n" * 95 + "b,30000\n" * 5)
    spec = document_spec(tmp_path, "lengths.csv")
    monkeypatch.chdir("/")
    code, out, _ = call(capsys, "explain", spec, "--tp", "4", "--format", "json")
    answer = json.loads(out)
    assert code == 0
    assert answer["straggler"]["factor"] > 1.3
    assert 0 < answer["straggler"]["seconds"] < answer["time"]["compute_s"]
    assert sum(answer["time"].values()) == pytest.approx(answer["step_s"])
    code, out, _ = call(capsys, "explain", spec, "--tp", "4")
    assert "straggler: the slowest data-parallel group has" in out
    code, out, _ = call(capsys, "plan", spec)
    assert code == 0
    assert "Attention work of the slowest group over the mean" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("10\n-5\n", "x.txt:2: '-5' is no document length"),
        ("10\nten\n", "x.txt:2: 'ten' is no document length"),
        ("10 20\n30 nan\n", "x.txt:2: 'nan' is no document length"),
        ("\x1f\x8bbroken", "cannot read"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "explain", "sweep"])
def test_a_bad_file_of_lengths_exits_2_with_line_and_value(tmp_path, capsys, command, text, said):
    (tmp_path / "x.txt").write_text(text, encoding="latin-1")
    spec = document_spec(tmp_path, "x.txt", gpu="cpu" if command == "sweep" else "H100-SXM-80GB")
    more = ("--runs", str(tmp_path / "runs")) if command == "sweep" else ()
    code, out, err = call(capsys, command, spec, *more)
    assert (code, out) == (2, "")
    assert "workload.lengths | " in err
    if command != "sweep":
        assert said in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("lengths", ["absent.txt", ".", "zipf(a=1)", "a" * 5000])
def test_lengths_that_are_no_file_and_no_distribution_are_refused_with_their_line(
    tmp_path, capsys, lengths
):
    spec = document_spec(tmp_path, lengths)
    code, out, err = call(capsys, "plan", spec)
    assert (code, out) == (2, "")
    assert "documents.toml:7: workload.lengths | " in err
    assert "no file and no distribution" in err


def test_a_small_model_is_printed_in_a_unit_that_shows_it(tmp_path, capsys):
    path = tmp_path / "tiny.toml"
    path.write_text(
        '[model]\npreset = "tiny"\n[workload]\nseq_len = 2048\nglobal_batch_seqs = 4\n'
        'precision = "fp32"\n[cluster]\ngpu = "cpu"\nworld_size = 4\n'
        "device_memory_bytes = 16500000\n"
    )
    _, out, _ = call(capsys, "plan", str(path))
    assert "MiB" in out
    assert "GiB" not in out
    assert " 0.0 " not in out
    _, out, _ = call(capsys, "explain", str(path), "--cp", "1")
    assert "likely on rank 0 of stage 0, MiB: " in out
    assert "short by " in out
    assert "KiB at the lowest" in out
