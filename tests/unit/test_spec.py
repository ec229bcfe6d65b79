"""sweep.toml: every problem at once, each with its path and line, and the way back to TOML."""

from dataclasses import replace

import pytest
from fakes import model, sweep_spec, workload
from hypothesis import given
from hypothesis import strategies as st

from cptune.domain.candidate import LossKind, Recompute, ShardingKind, Strategy
from cptune.domain.stack import PipelineSplit, Stack, StackSpec, TensorInputs
from cptune.domain.study import (
    Axes,
    Baseline,
    Budget,
    ClusterSpec,
    Objective,
    SamplerName,
    SearchSettings,
    SweepSpec,
)
from cptune.domain.workload import AttentionMask, preset_names
from cptune.errors import SpecError
from cptune.spec import load, load_quickstart, parse, spec_changes, write_toml

GOOD = """\
name = "good"
[model]
preset = "tiny"
[workload]
seq_len = 64
global_batch_seqs = 4
"""

#: The example of the handbook.
HANDBOOK = """\
name = "llama3-8b-128k"
[model]                      # preset = "llama3-8b" fills the shape
preset = "llama3-8b"
[workload]
seq_len = 131072
global_batch_seqs = 16
mask = "causal"              # full | causal | document
lengths = "full"
precision = "bf16"
optimizer = "adamw-fp32"
[cluster]
world_size = 64
gpu = "H100-SXM-80GB"
gpus_per_node = 8
network_bytes_per_s = 50e9
topology = "topology.json"
memory_margin = 0.08
device_memory_bytes = 0
[axes]
tp = [1, 2, 4, 8]
cp = [1, 2, 4, 8, 16]
pp = [1, 2, 4]
vpp = [1]
micro_batch = [1, 2]
recompute = ["none", "full"]
sharding = ["zigzag"]
strategy = ["ring", "all_gather", "ulysses", "hybrid"]
loss = ["full", "chunked"]
data_parallel = ["zero1"]
[objective]
exposed_comm_share = 0.10
throughput_slack = 0.02
[search]
sampler = "residual-gp"
[budget]
trials = 20
wall_s = 3600
[storage]
study = "sqlite"
"""


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(text, source="s.toml", default_name="s")
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def test_the_handbooks_example_is_a_spec():
    spec = parse(HANDBOOK, source="s.toml", default_name="s")

    assert spec.model == model("llama3-8b")
    assert spec.cluster.network_bytes_per_s == 50e9
    assert spec.axes.strategy == tuple(Strategy)
    assert spec.axes.recompute == (Recompute.NONE, Recompute.FULL)
    assert spec.budget == Budget(trials=20, wall_s=3600.0)


def test_a_sampler_of_another_version_is_refused_with_the_known_ones():
    assert problems(HANDBOOK.replace('"residual-gp"', '"cma-es"')) == [
        "s.toml:34: search.sampler | input should be 'residual-gp', 'tpe', 'gp', 'random' or "
        "'brute-force', not 'cma-es'; nearest legal: residual-gp"
    ]


def test_defaults_fill_what_is_left_out():
    spec = parse(GOOD, source="s.toml", default_name="other")

    assert spec == SweepSpec(name="good", model=model(), workload=workload(precision="bf16"))
    assert spec.search == SearchSettings(sampler=SamplerName.RESIDUAL_GP, seed=0)


def test_a_field_overrides_the_preset():
    spec = parse(GOOD.replace('"tiny"', '"tiny"\nlayers = 7'), source="s", default_name="s")

    assert spec.model == replace(model(), layers=7)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            GOOD + "[budget]\nwal_s = 3\n",
            "s.toml:8: budget.wal_s | unknown key, did you mean 'wall_s'?",
        ),
        (GOOD + "[axs]\ntp = [1]\n", "s.toml:7: axs | unknown key, did you mean 'axes'?"),
        (
            GOOD + "[storage]\nqqq = 1\n",
            "s.toml:8: storage.qqq | unknown key; known: study",
        ),
        (
            GOOD.replace("64", '"8"'),
            "s.toml:5: workload.seq_len | input should be a valid integer, not '8'",
        ),
        (
            GOOD.replace("64", "true"),
            "s.toml:5: workload.seq_len | input should be a valid integer, not True",
        ),
        (
            GOOD.replace("64", "1.5"),
            "s.toml:5: workload.seq_len | input should be a valid integer, not 1.5",
        ),
        (
            GOOD.replace("64", "64.0"),
            "s.toml:5: workload.seq_len | input should be a valid integer, not 64.0",
        ),
        (
            GOOD.replace("64", "2026-01-02"),
            "s.toml:5: workload.seq_len | input should be a valid integer, not '2026-01-02'",
        ),
        (
            GOOD.replace("64", "[64]"),
            "s.toml:5: workload.seq_len | input should be a valid integer, not [64]",
        ),
        (GOOD.replace("64", "0"), "s.toml:4: workload | seq_len is 0; wanted 1 or more"),
        (GOOD.replace("64", "-3"), "s.toml:4: workload | seq_len is -3; wanted 1 or more"),
        (
            GOOD.replace("64", str(10**30)),
            f"s.toml:4: workload | seq_len is {10**30}; wanted 1 to 1,073,741,824",
        ),
        (
            GOOD + "[budget]\nwall_s = true\n",
            "s.toml:8: budget.wall_s | input should be a valid number, not True",
        ),
        (
            GOOD + "[budget]\nwall_s = nan\n",
            "s.toml:7: budget | wall_s is nan; wanted 0.001 or more",
        ),
        (
            GOOD + '[axes]\ntp = [\n  1,\n  "2",\n]\n',
            "s.toml:8: axes.tp.1 | input should be a valid integer, not '2'",
        ),
        (
            GOOD + "[axes]\ncp = 2\n",
            "s.toml:8: axes.cp | input should be a valid array, not 2",
        ),
        (GOOD + "[axes]\ncp = [1, 0]\n", "s.toml:7: axes | cp is 0; wanted 1 or more"),
        (
            GOOD + '[axes]\nsharding = ["zig"]\n',
            "s.toml:8: axes.sharding.0 | input should be 'contiguous', 'zigzag' or 'balanced', "
            "not 'zig', did you mean 'zigzag'?",
        ),
        (
            GOOD + '[stack]\nkind = "fusd"\n',
            "s.toml:8: stack.kind | input should be 'fused' or 'eager', not 'fusd', "
            "did you mean 'fused'?",
        ),
        (
            GOOD + '[stack]\npipeline = "x"\n',
            "s.toml:8: stack.pipeline | input should be 'even' or 'balanced', not 'x'; "
            "nearest legal: even",
        ),
        (
            GOOD + "[stack]\ncheck_s = 400\n",
            "s.toml:7: stack | check_s is 400.0; wanted 0.0 to 1.0",
        ),
        (
            GOOD + "[cluster]\ngather_hops = [[64, 1e-5], [32, 1e-5]]\n",
            "s.toml:7: cluster | gather_hops has [32, 1e-05]; wanted [ranks, seconds], ranks "
            "ascending from 65, seconds from 0 to below 1",
        ),
        (
            GOOD.replace('"tiny"', '"tiny"\nheads = 30\nkv_heads = 8'),
            "s.toml:2: model | heads (30) must be a multiple of kv_heads (8); "
            "nearest legal kv_heads: 6",
        ),
        (
            GOOD.replace("[model]\npreset", "[model]\nheads = 4\n[workloads]\npreset"),
            "s.toml:2: model.layers | missing, wanted a value",
        ),
        (
            'model = "tiny"\n[workload]\nseq_len = 8\nglobal_batch_seqs = 1\n',
            "s.toml:1: model | input should be an object, not 'tiny'",
        ),
        (
            GOOD.replace('"good"', '"a b"'),
            "s.toml:1: name | name is 'a b'; wanted letters, digits, '-', '_' and '.', "
            "since it names the run directory",
        ),
        (GOOD.replace('"good"', "5"), "s.toml:1: name | input should be a valid string, not 5"),
        ("", "s.toml: model | missing, wanted a value"),
        ("", "s.toml: workload | missing, wanted a value"),
    ],
)
def test_a_problem_names_file_line_path_value_and_wish(text, wanted):
    assert wanted in problems(text)


def test_an_unknown_preset_lists_the_known_ones():
    known = ", ".join(preset_names())

    assert problems(GOOD.replace("tiny", "llama9")) == [
        "s.toml:3: model.preset | preset 'llama9' is not known, did you mean 'llama3-8b'? "
        f"known: {known}"
    ]


def test_an_unknown_preset_is_refused_beside_a_whole_shape_too():
    shape = write_toml(sweep_spec()).replace('"tiny"', '"llama9"')

    (line,) = problems(shape)

    assert "model.preset | preset 'llama9' is not known" in line


def test_all_problems_come_at_once_beside_an_unknown_preset_too():
    text = """\
[model]
preset = "llama9"
layer = 2
[workload]
seq_len = "8"
global_batch_seqs = 1
[axs]
[budget]
wal_s = 3
trials = 1.5
"""

    assert [line.split(" | ")[0] for line in problems(text)] == [
        "s.toml:2: model.preset",
        "s.toml:3: model.layer",
        "s.toml:5: workload.seq_len",
        "s.toml:10: budget.trials",
        "s.toml:9: budget.wal_s",
        "s.toml:7: axs",
    ]


@pytest.mark.parametrize("text", ["a = ", "[model", "x = 1\nx = 2", "\ufeff" + GOOD, "a\0"])
def test_what_is_no_toml_is_said(text):
    (line,) = problems(text)

    assert line.startswith("s.toml is not TOML: ")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_bad_input(tmp_path, content):
    path = tmp_path / "s.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SpecError, match=rf"^cannot read {path}: ") as caught:
        load(path)

    assert caught.value.hint == "wanted a sweep.toml"


def test_a_directory_is_no_sweep_toml(tmp_path):
    with pytest.raises(SpecError, match="Is a directory"):
        load(tmp_path)


def test_a_file_names_the_run(tmp_path):
    path = tmp_path / "llama3.1-8b.toml"
    path.write_text(GOOD.partition("\n")[2])

    assert load(path).name == "llama3.1-8b"


def test_a_file_whose_name_cannot_name_a_run_needs_one(tmp_path):
    path = tmp_path / "my spec.toml"
    path.write_text(GOOD.partition("\n")[2])

    with pytest.raises(SpecError, match=r"my spec\.toml: name \| name is 'my spec'"):
        load(path)


def test_the_quickstart_is_a_spec_under_any_name():
    spec = load_quickstart("quickstart-2")

    assert spec.name == "quickstart-2"
    assert replace(spec, name="quickstart") == load_quickstart()
    assert spec.cluster.world_size == 4


@pytest.mark.parametrize("name", ['a"b', "a\\b", 'x"\n[budget]\ntrials = 1\n#'])
def test_a_bad_quickstart_name_is_refused(name):
    with pytest.raises(SpecError):
        load_quickstart(name)


some = st.lists(st.integers(1, 64), max_size=3).map(tuple)
share = st.floats(0, 0.99)
specs = st.builds(
    SweepSpec,
    name=st.sampled_from(["a", "b-1", "c_d.e"]),
    model=st.sampled_from([model(name) for name in preset_names()] + [model(preset=None)]),
    workload=st.builds(
        workload,
        seq_len=st.integers(1, 1 << 20),
        global_batch_seqs=st.integers(1, 4096),
        mask=st.sampled_from(AttentionMask),
        lengths=st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=9),
    ),
    cluster=st.builds(
        ClusterSpec,
        world_size=st.none() | st.integers(1, 4096),
        gpu=st.none() | st.just("cpu"),
        network_bytes_per_s=st.none() | st.floats(1, 1e12),
        memory_margin=share,
        device_memory_bytes=st.integers(0, 1 << 40),
        gather_hops=st.lists(st.floats(0, 0.5), max_size=3).map(
            lambda seconds: tuple((2 << place, one) for place, one in enumerate(seconds))
        ),
    ),
    stack=st.builds(
        StackSpec,
        kind=st.none() | st.sampled_from(Stack),
        kernel=st.sampled_from(["auto", "fa3"]),
        pipeline=st.sampled_from(PipelineSplit),
        tp_inputs=st.none() | st.sampled_from(TensorInputs),
        check_s=st.floats(0, 1),
    ),
    axes=st.builds(
        Axes,
        tp=some,
        cp=some,
        stages=some,
        sharding=st.lists(st.sampled_from(ShardingKind), max_size=2).map(tuple),
        loss=st.lists(st.sampled_from(LossKind), max_size=2).map(tuple),
    ),
    baseline=st.builds(Baseline, tp=st.none() | st.integers(1, 8)),
    objective=st.builds(Objective, exposed_comm_share=share, throughput_slack=share),
    budget=st.builds(Budget, wall_s=st.floats(1e-3, 1e7)),
)


@given(specs)
def test_a_written_spec_reads_back_equal(spec):
    assert parse(write_toml(spec), source="s.toml", default_name="other") == spec


def test_a_written_spec_holds_every_default():
    text = write_toml(sweep_spec())

    sampler = 'sampler = "residual-gp"'
    for line in ("memory_margin = 0.08", "warmup_steps = 2", sampler, "layers = 2"):
        assert line in text


def test_changes_are_named_with_both_values():
    before = sweep_spec()
    after = replace(
        before,
        workload=replace(before.workload, seq_len=128),
        cluster=replace(before.cluster, gpu="cpu"),
    )

    assert spec_changes(before, before) == []
    assert spec_changes(before, after) == [
        'cluster.gpu: left out -> "cpu"',
        "workload.seq_len: 64 -> 128",
    ]


def test_a_file_of_lengths_is_beside_the_spec_and_has_its_whole_path(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lengths.txt").write_text("5\n")
    path = tmp_path / "s.toml"
    path.write_text(HANDBOOK.replace('lengths = "full"', 'lengths = "data/lengths.txt"'))
    found = load(path)
    assert found.workload.lengths == str(tmp_path / "data" / "lengths.txt")
    again = tmp_path / "runs" / "spec.toml"
    again.parent.mkdir()
    again.write_text(write_toml(found))
    assert load(again) == found
    (tmp_path / "data" / "lengths.txt").unlink()
    assert load(again) == found  # a kept run stays readable


def test_a_distribution_of_lengths_is_kept_as_it_is(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(HANDBOOK.replace('lengths = "full"', 'lengths = "prolong(max=8192)"'))
    assert load(path).workload.lengths == "prolong(max=8192)"
    path.write_text(HANDBOOK.replace('lengths = "full"', 'lengths = "prolonged"'))
    with pytest.raises(SpecError, match=r"workload\.lengths \| 'prolonged' is no file"):
        load(path)
