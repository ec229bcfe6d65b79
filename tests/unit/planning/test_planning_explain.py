"""`explain` and `plan` as values: the contract's keys, every violation, nearest layouts."""

from dataclasses import replace

import pytest

from cptune.domain.asked import Asked
from cptune.domain.candidate import (
    Candidate,
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
)
from cptune.domain.layout import ParallelLayout
from cptune.errors import SpecError
from cptune.planning.explain import explain
from cptune.planning.plan import plan
from cptune.predict.found import cpu_machine
from cptune.predict.trials import TrialPredictor
from cptune.search.prepare import resolve
from cptune.spec import parse

TEXT = """
[model]
preset = "llama3-8b"
[workload]
seq_len = 131072
global_batch_seqs = 16
[cluster]
world_size = 64
gpu = "H100-SXM-80GB"
gpus_per_node = 8
[axes]
tp = [1, 2, 4, 8]
cp = [1, 2, 4, 8, 16]
pp = [1, 2, 4]
micro_batch = [1, 2]
recompute = ["none", "full"]
strategy = ["ring", "all_gather", "ulysses", "hybrid"]
loss = ["full", "chunked"]
data_parallel = ["zero1"]
"""
ROW = {
    "layout", "legal", "violations", "memory", "step_s", "tokens_per_s_per_gpu", "mfu", "time",
    "bound_by", "exports", "model_version",
}  # fmt: skip
MEMORY = {
    "states_bytes", "activation_bytes", "logits_bytes", "comm_bytes", "peak_lo_bytes",
    "peak_bytes", "peak_hi_bytes", "fits",
}  # fmt: skip
TIME = {"compute_s", "tp_exposed_s", "cp_exposed_s", "dp_exposed_s", "pp_bubble_s"}
GIB = 1 << 30


def spec(*changes):
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(text, source="test", default_name="test")


def test_a_legal_layout_has_every_key_of_the_contract():
    answer = explain(spec(), Asked(tp=2, cp=8, pp=2))
    assert set(answer) >= ROW
    assert set(answer["memory"]) >= MEMORY
    assert set(answer["time"]) == TIME
    assert answer["legal"] is True
    assert answer["violations"] == []
    layout = answer["layout"]
    assert (layout["tp"], layout["cp"], layout["pp"], layout["dp"]) == (2, 8, 2, 2)
    assert layout["accumulation"] == 8
    assert answer["exports"]["megatron"]["divisor"] == 16
    assert sum(answer["time"].values()) == pytest.approx(answer["step_s"])
    tokens = 131072 * 16 / answer["step_s"] / 64
    assert answer["tokens_per_s_per_gpu"] == pytest.approx(tokens)


def test_the_published_memory_comes_out_of_the_command():
    one = spec(
        ("world_size = 64", "world_size = 8"), ("global_batch_seqs = 16", "global_batch_seqs = 1")
    )
    memory = explain(one, Asked(cp=8, recompute=Recompute.FULL))["memory"]
    found = [memory[f"{name}_bytes"] / GIB for name in ("states", "activation", "logits")]
    assert found == pytest.approx([56.1, 6.1, 11.7], abs=0.1)


def test_every_broken_rule_comes_at_once_with_the_nearest_legal_layouts():
    answer = explain(spec(), Asked(tp=3, cp=5, pp=7))
    assert answer["legal"] is False
    assert answer["step_s"] is None
    text = "; ".join(answer["violations"])
    for words in ("wanted exactly 64", "32 query heads", "8 kv heads", "pp 7", "ffn 14336"):
        assert words in text
    near = answer["nearest_legal"]
    assert (near[0]["tp"], near[0]["cp"], near[0]["pp"]) == (2, 4, 8)
    assert len(near) == 3


def test_nearest_layouts_are_legal_and_cut_in_zigzag():
    answer = explain(spec(), Asked(tp=3))
    for near in answer["nearest_legal"]:
        sizes = {name: near[name] for name in ("tp", "cp", "pp")}
        assert explain(spec(), Asked(**sizes, micro_batch=near["micro_batch"]))["legal"]
        assert near["cp"] == 1 or near["sharding"] == "zigzag"


def test_tensor_parallelism_stays_inside_an_island_unless_the_rack_is_one():
    wide = explain(spec(), Asked(tp=16))
    assert any("leaves the NVLink island of 8" in one for one in wide["violations"])
    rack = spec(('"H100-SXM-80GB"', '"GB200-186GB"'), ("gpus_per_node = 8", "gpus_per_node = 4"))
    assert explain(rack, Asked(tp=16, micro_batch=1))["legal"]


@pytest.mark.parametrize("name", ["tp", "cp", "pp", "vpp", "ulysses", "micro_batch"])
def test_a_size_below_one_is_refused(name):
    with pytest.raises(SpecError, match=f"{name} is 0; wanted 1 or more"):
        explain(spec(), Asked(**{name: 0}))


def test_what_is_illegal_to_try_is_legal_to_plan():
    answer = explain(spec(), Asked(cp=8, pp=2, ulysses=4, recompute=Recompute.SELECTIVE))
    assert answer["legal"], answer["violations"]
    assert answer["layout"]["strategy"] == "hybrid"
    assert answer["layout"]["stages"] == 1
    balanced = explain(spec(), Asked(cp=4, sharding=ShardingKind.BALANCED))
    assert balanced["legal"]
    assert balanced["exports"]["megatron"]["legal"] is False


def test_a_ulysses_degree_that_does_not_divide_is_explained():
    answer = explain(spec(), Asked(cp=8, ulysses=3))
    assert any("ulysses 3 does not divide cp 8" in one for one in answer["violations"])


def test_what_is_too_big_says_by_how_much_and_the_two_nearest_changes():
    answer = explain(spec(), Asked(cp=4, recompute=Recompute.NONE))
    assert answer["memory"]["fits"] == "no"
    assert answer["short_bytes"] > 50 * GIB
    assert answer["lighter"][0]["change"] == "tp 1 -> 4, dp 16 -> 4"
    assert len(answer["lighter"]) == 2


@pytest.mark.parametrize("cp", [4, 8])
def test_changes_that_likely_fit_come_first_and_others_say_what_they_miss(cp):
    room = 85_520_809_984 * 0.92
    found = explain(spec(), Asked(cp=cp))["lighter"]
    assert [one["beyond_bytes"] for one in found] == sorted(one["beyond_bytes"] for one in found)
    assert found[0]["beyond_bytes"] == 0
    for one in found:
        layout = one["layout"]
        sizes = {name: layout[name] for name in ("tp", "cp", "pp", "micro_batch")}
        words = {
            "recompute": Recompute(layout["recompute"]),
            "loss": LossKind(layout["loss"]),
            "data_parallel": DataParallelKind(layout["data_parallel"]),
        }
        again = explain(spec(), Asked(**sizes, **words))
        memory = again["memory"]
        assert memory["peak_bytes"] == one["peak_bytes"]
        over = memory["peak_bytes"] + memory["reserve_bytes"] - room
        assert max(0, over) == pytest.approx(one["beyond_bytes"], abs=2)


def test_two_changes_at_once_only_where_one_does_not_do():
    single = explain(spec(), Asked(tp=2, cp=8, data_parallel=DataParallelKind.DDP))["lighter"]
    assert single[0]["change"] == (
        "data_parallel ddp -> zero1, stack eager -> fused (assumed under zero1)"
    )
    assert single[0]["beyond_bytes"] == 0
    double = explain(spec(), Asked(cp=4, data_parallel=DataParallelKind.DDP))["lighter"]
    assert double[0]["change"] == "recompute none -> full, data_parallel ddp -> fsdp"


def test_the_mesh_lists_every_rank_tp_fastest():
    mesh = explain(spec(), Asked(tp=2, cp=8, pp=2), mesh=True)["mesh"]
    assert len(mesh) == 64
    assert mesh[1] == {"rank": 1, "tp": 1, "cp": 0, "dp": 0, "pp": 0}
    assert mesh[2]["cp"] == 1
    assert mesh[63] == {"rank": 63, "tp": 1, "cp": 7, "dp": 1, "pp": 1}


def test_both_conventions_are_printed_when_asked():
    answer = explain(spec(), Asked(tp=2, cp=8), flops=True)
    named = answer["conventions"]
    assert named["mfu_causal_half"] == pytest.approx(answer["mfu"])
    assert named["mfu_full_square"] > 1.6 * named["mfu_causal_half"]


def test_the_presets_vocabulary_may_be_padded():
    one = spec(("llama3-8b", "gpt3-175b"), ("seq_len = 131072", "seq_len = 2048"))
    assert explain(one, Asked(tp=4, pp=8))["legal"]


def test_experts_are_planned_and_said_to_be_only_that():
    text = '"llama3-8b"\nexperts = 8\nexperts_per_token = 2\nexpert_ffn = 14336'
    one = spec(('"llama3-8b"', text))
    answer = explain(one, Asked(tp=2, cp=4, ep=8))
    assert answer["planned_only"] == "mixture of experts"
    assert answer["layout"]["ep"] == 8
    assert answer["ep_exposed_s"] > 0
    broken = explain(one, Asked(tp=2, cp=4, ep=3))
    assert any("8 experts do not divide by ep 3" in said for said in broken["violations"])


def test_a_plan_ranks_what_likely_fits_by_its_speed():
    answer = plan(spec())
    rows, counts = answer["rows"], answer["counts"]
    assert counts["legal"] == len(rows) > 100
    assert counts["excluded"]["memory"] > 0
    room = 85_520_809_984 * 0.92
    tight = [row["memory"]["peak_bytes"] + row["memory"]["reserve_bytes"] > room for row in rows]
    assert tight == sorted(tight)
    steps = [row["step_s"] for row, full in zip(rows, tight, strict=True) if not full]
    assert steps == sorted(steps)
    assert all(set(row) >= ROW and row["memory"]["fits"] != "no" for row in rows)
    assert len({str(row["layout"]) for row in rows}) == len(rows)


def test_the_front_trades_throughput_for_cp():
    answer = plan(spec())
    cps = [int(key.split("-cp")[1].split("-")[0]) for key in answer["pareto"]]
    assert cps == sorted(set(cps))
    assert 2 <= len(answer["measure"]) <= 6
    assert set(answer["measure_why"]) == set(answer["measure"])


def _planned(answer):
    """Rows by layout and choices, as far as a key names them."""
    room = 85_520_809_984 * 0.92
    for row in answer["rows"]:
        lay, memory = row["layout"], row["memory"]
        over = memory["peak_bytes"] + memory["reserve_bytes"] - room
        start = f"tp{lay['tp']}-cp{lay['cp']}-pp{lay['pp']}-dp{lay['dp']}-mb{lay['micro_batch']}-"
        end = f"-{lay['recompute']}-{lay['loss']}-{lay['data_parallel']}-auto"
        yield start, end, lay["cp"], over


def test_what_is_worth_measuring_could_win_or_decides_the_smallest_cp():
    narrow = (
        ('recompute = ["none", "full"]', 'recompute = ["none"]'),
        ("tp = [1, 2, 4, 8]", "tp = [1, 2, 4]"),
        ("pp = [1, 2, 4]", "pp = [1]"),
    )
    answer = plan(spec(*narrow, ('loss = ["full", "chunked"]', 'loss = ["full"]')))
    smallest = min(cp for _, _, cp, over in _planned(answer) if over <= 0)
    assert smallest > 1
    deciding = 0
    for key in answer["measure"]:
        over, cp = min(
            (over, cp)
            for start, end, cp, over in _planned(answer)
            if key.startswith(start) and key.endswith(end)
        )
        if over > 0:
            deciding += 1
            assert cp < smallest
            assert "decides the smallest" in answer["measure_why"][key]
            assert "beyond the margin" in answer["measure_why"][key]
    assert deciding <= 1
    assert any(f"cp {smallest}: the smallest" in why for why in answer["measure_why"].values())
    assert all(int(key.split("-cp")[1].split("-")[0]) >= smallest for key in answer["pareto"])


def test_where_nothing_likely_fits_the_nearest_are_worth_measuring():
    """A budget between the lowest and the likely peak of everything."""
    one = spec(("gpus_per_node = 8", "gpus_per_node = 8\ndevice_memory_bytes = 70000000000"))
    axes = replace(one.axes, recompute=(Recompute.NONE,), tp=(1,), pp=(1,))
    answer = plan(replace(one, axes=axes))
    assert answer["rows"]
    assert 1 <= len(answer["measure"]) <= 3
    assert all("misses least" in why for why in answer["measure_why"].values())


def test_counts_are_of_all_rows_whatever_is_printed():
    short = plan(spec(), top=3)
    assert len(short["rows"]) == 3
    assert short["counts"] == plan(spec())["counts"]


def test_nothing_fits_says_by_how_much_and_what_to_change():
    one = spec(("gpus_per_node = 8", "gpus_per_node = 8\ndevice_memory_bytes = 4000000000"))
    answer = plan(replace(one, axes=replace(one.axes, recompute=(Recompute.NONE,))))
    assert answer["rows"] == []
    assert answer["nothing_fits"]["short_bytes"] > 0
    closest = answer["nothing_fits"]["closest"]
    assert closest["tp"] * closest["cp"] * closest["pp"] * closest["dp"] == 64
    assert closest["dp"] == 1
    assert len(answer["lighter"]) == 2


def test_a_world_without_size_or_an_unknown_gpu_is_refused():
    with pytest.raises(SpecError, match="world_size"):
        explain(spec(("world_size = 64\n", "")), Asked())
    with pytest.raises(SpecError, match="'H101' is not known"):
        plan(spec(("H100-SXM-80GB", "H101")))


def test_405b_splits_126_layers_over_16_stages():
    one = spec(
        ("llama3-8b", "llama3-405b"), ("world_size = 64", "world_size = 16384"),
        ("global_batch_seqs = 16", "global_batch_seqs = 2048"),
    )  # fmt: skip
    answer = explain(one, Asked(tp=8, cp=16, pp=16))
    assert answer["legal"], answer["violations"]
    assert answer["layout"]["dp"] == 8
    assert not explain(one, Asked(tp=8, cp=16, pp=32, vpp=3))["legal"]


def test_a_card_without_nvlink_is_no_island_but_a_node():
    one = spec(("H100-SXM-80GB", "H100-PCIe-80GB"))
    answer = explain(one, Asked(tp=8, cp=2))
    assert answer["legal"], answer["violations"]
    fast = explain(spec(), Asked(tp=8, cp=2))
    assert answer["time"]["tp_exposed_s"] > 5 * fast["time"]["tp_exposed_s"]


def test_a_cpu_without_a_budget_has_no_known_capacity():
    one = spec(("H100-SXM-80GB", "cpu"), ('"llama3-8b"', '"tiny"'), ("131072", "256"))
    answer = explain(one, Asked(cp=4))
    assert answer["memory"]["fits"] == "unknown"
    assert answer["memory"]["reserve_bytes"] == 0
    assert "lighter" not in answer  # than what, nobody knows


def test_a_plan_for_cpu_processes_says_what_a_sweep_expects_of_them():
    one = spec(
        ("H100-SXM-80GB", "cpu"), ('"llama3-8b"', '"tiny"'), ("131072", "2048"),
        ("world_size = 64", "world_size = 4"),
        ("gpus_per_node = 8", "device_memory_bytes = 16500000"),
        ("[cluster]", 'precision = "fp32"\n[cluster]'),
    )  # fmt: skip
    memory = explain(one, Asked(cp=2, data_parallel=DataParallelKind.DDP))["memory"]
    candidate = Candidate(layout=ParallelLayout(cp=2, dp=2), sharding=ShardingKind.ZIGZAG, stages=1)
    resolved = resolve(one, None)
    machine = cpu_machine(resolved.cluster, nodes=1, capacity_bytes=16_500_000)
    said = TrialPredictor(resolved, machine=machine).predict(candidate)
    for name in ("peak_lo_bytes", "peak_bytes", "peak_hi_bytes"):
        assert memory[name] == getattr(said, name)


@pytest.mark.parametrize(
    ("strategy", "ulysses", "said"),
    [("ulysses", 1, "--ulysses 8; seen 1"), ("hybrid", 8, "--ulysses 2, 4; seen 8")],
)
def test_a_strategy_of_another_ulysses_degree_is_refused(strategy, ulysses, said):
    with pytest.raises(SpecError, match=said):
        explain(spec(), Asked(cp=8, strategy=Strategy(strategy), ulysses=ulysses))
