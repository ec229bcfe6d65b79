"""What `plan` and `explain` print: each verdict beside its numbers, the stack, every rank."""

import json
import re

import pytest

from cptune.cli import run

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
recompute = ["none", "full"]
data_parallel = ["zero1", "fsdp"]
"""
NUMBER = r"(\d+\.\d+)"
BAND = re.compile(rf"low {NUMBER}, likely {NUMBER}, high {NUMBER} (\w+)")
BOUNDS = re.compile(rf"{NUMBER} a device, {NUMBER} inside the margin")


@pytest.fixture
def say(tmp_path, capsys):
    """What a command prints about the spec with more lines in its cluster."""

    def call(command, *words, more="", text=SPEC):
        path = tmp_path / "s.toml"
        path.write_text(text.replace("[axes]", f"{more}\n[axes]"))
        run([command, str(path), *words])
        return capsys.readouterr().out

    return call


def verdict_of(band, bounds):
    low, _, high = band
    capacity, inside = bounds
    return "no" if low > capacity else "yes" if high <= inside else "unknown"


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (["--tp", "4", "--cp", "4", "--recompute", "full"], "yes"),
        (["--tp", "4", "--cp", "4"], "unknown"),
        (["--tp", "1", "--cp", "4"], "no"),
    ],
)
def test_explain_shows_the_numbers_that_its_verdict_follows_from(say, words, verdict):
    out = say("explain", *words)

    band = [float(one) for one in BAND.search(out).groups()[:3]]
    bounds = [float(one) for one in BOUNDS.search(out).groups()]
    assert re.search(r"fits: (\w+)", out)[1] == verdict == verdict_of(band, bounds)


def test_every_row_of_a_plan_shows_the_numbers_that_its_verdict_follows_from(say):
    out = say("plan", "--top", "300")

    bounds = [float(one) for one in BOUNDS.search(out).groups()]
    rows = re.findall(rf"{NUMBER} +{NUMBER} +{NUMBER}  (yes|no|unknown) ", out)
    seen = {row[3] for row in rows}
    assert (len(rows), seen) == (300, {"yes", "unknown"})
    assert all(verdict_of([float(one) for one in row[:3]], bounds) == row[3] for row in rows)
    assert "fits: yes where high is inside the margin, no where low is above the device" in out


def test_every_layout_that_is_worth_measuring_or_lighter_has_its_band(say):
    fsdp = SPEC.replace('"zero1", "fsdp"', '"fsdp"]\nloss = ["chunked"')
    worth = say("plan", text=fsdp).split("Worth measuring")[1].split("Front")[0]
    lighter = say("explain", "--cp", "4").split("With less memory")[1].split("Megatron")[0]

    for block in (worth, lighter):
        lines = [line for line in block.splitlines() if line.strip()]
        assert lines
        assert all(BAND.search(line) for line in lines)
    assert all(word in worth for word in ("; fits: low", "; fit unknown: low"))


def test_what_is_too_much_for_every_layout_is_said_beside_the_device(say):
    out = say("plan", more="device_memory_bytes = 3000000000")

    said = (
        r"needs ([\d.]+ \w+) at its lowest, ([\d.]+ \w+) above the 2.79 GiB of a device \(2.57 GiB"
    )
    assert re.search(said, out)


def test_json_holds_the_bounds_beside_the_band(say):
    memory = json.loads(say("explain", "--cp", "8", "--format", "json"))["memory"]

    assert memory["inside_margin_bytes"] == round(0.92 * memory["capacity_bytes"])
    assert memory["peak_lo_bytes"] < memory["peak_bytes"] < memory["peak_hi_bytes"]


def test_a_plan_names_the_stack_that_each_kind_of_data_parallelism_is_taken_for(say):
    out, rows = say("plan", "--top", "0"), json.loads(say("plan", "--format", "json"))["rows"]

    line = next(one for one in out.splitlines() if one.startswith("  stack: "))
    assert {"fused under zero1", "eager under fsdp"} <= set(line[9:].split(", "))
    assert line.endswith("assumed; [stack] kind says which it is")
    kinds = {(row["layout"]["data_parallel"], row["stack"]["kind"]) for row in rows}
    assert kinds == {("zero1", "fused"), ("fsdp", "eager")}
    assert all(row["stack"]["assumed"] for row in rows)


def test_a_stack_that_is_given_is_named_and_not_called_assumed(say):
    text = SPEC + '[stack]\nkind = "eager"\n'
    for words in (["plan"], ["explain", "--cp", "4"]):
        out = say(*words, text=text)
        assert "  stack: eager\n" in out
        assert "assumed" not in out


def test_a_plan_for_cpu_processes_is_for_the_stack_of_the_trials(say):
    tiny = SPEC.replace("llama3-8b", "tiny").replace("H100-SXM-80GB", "cpu")
    tiny = tiny.replace("world_size = 64", "world_size = 4")

    rows = json.loads(say("plan", "--format", "json", text=tiny))["rows"]

    assert {row["layout"]["data_parallel"] for row in rows} == {"zero1", "fsdp"}
    assert all(row["stack"] == {"kind": "eager", "assumed": False} for row in rows)
    assert "  stack: eager\n" in say("plan", text=tiny)


def test_a_lighter_kind_of_data_parallelism_names_the_stack_that_comes_with_it(say):
    words = ("explain", "--tp", "2", "--cp", "8", "--data-parallel", "ddp")
    change = "data_parallel ddp -> zero1"

    assert f"{change}, stack eager -> fused (assumed under zero1): " in say(*words)
    assert "stack eager ->" not in say(*words, text=SPEC + '[stack]\nkind = "eager"\n')


def test_the_mesh_is_printed_rank_by_rank(say):
    lines = say("explain", "--tp", "2", "--cp", "8", "--mesh").split("Mesh\n")[1].splitlines()
    rows = json.loads(say("explain", "--tp", "2", "--cp", "8", "--mesh", "--format", "json"))

    cells = [line.split() for line in lines if line.strip()]
    assert cells[0] == ["rank", "tp", "cp", "dp", "pp"]
    assert [dict(zip(cells[0], map(int, row), strict=True)) for row in cells[1:]] == rows["mesh"]
    assert "Mesh" not in say("explain", "--tp", "2")


def test_experts_over_ranks_of_a_dense_model_are_refused_with_what_is_wanted(say):
    out = say("explain", "--cp", "4", "--ep", "4")

    assert "tp1 cp4 pp1 dp16 ep4 " in out
    assert "ep 4 spreads the experts of a layer over ranks, and this model has none: wanted " in out
    near = out.split("Nearest legal layouts\n")[1].split("Megatron")[0]
    assert near.startswith("  tp1 cp4 pp1 dp16 zigzag ring/3 mb1x1\n")


def test_the_ranks_of_experts_are_printed_and_the_nearest_legal_are_found(say):
    moe = '"llama3-8b"\nexperts = 8\nexperts_per_token = 2\nexpert_ffn = 1024'
    text = SPEC.replace('"llama3-8b"', moe)

    assert " ep8 " in say("plan", text=text)
    cost = say("explain", "--tp", "4", "--cp", "4", "--ep", "8", text=text)
    parts = re.search(r"seconds: (.+)", cost)[1].split(", ")
    named = {name: float(value) for name, value in (part.split() for part in parts)}
    assert named["ep_exposed"] > 0
    assert sum(named.values()) == pytest.approx(
        float(re.search(r"step (\S+) s", cost)[1]), rel=0.01
    )
    assert "mixture of experts: planned only" in cost
    answer = json.loads(say("explain", "--cp", "4", "--ep", "3", "--format", "json", text=text))
    assert answer["layout"]["ep"] == 3
    assert {one["ep"] for one in answer["nearest_legal"]} == {1, 2}


def test_cpu_processes_on_nodes_with_nvlink_whose_rate_nobody_told_are_planned(say, tmp_path):
    matrix = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
    (tmp_path / "topo.txt").write_text(matrix)
    run(["topology", str(tmp_path / "topo.txt"), "--out", str(tmp_path / "t.json")])
    text = SPEC.replace("world_size = 64", "world_size = 2").replace("H100-SXM-80GB", "cpu")
    text = text.replace("131072", "2048").replace('"llama3-8b"', '"tiny"')
    text = text.replace('"fsdp"', '"ddp"')
    out = say("plan", more='topology = "t.json"', text=text)
    assert "tp2" in out or "TP" in out, out
