"""What another trainer is told parses, has the same sizes, and is refused where it would lie."""

import ast
import itertools
import json
import re
import shlex
from dataclasses import replace
from math import prod

import pytest
import yaml
from fakes import candidate, measured, model, sweep_spec
from hypothesis import given
from hypothesis import strategies as st
from recipe_cases import content_of, recipe_of, written

from cptune.cli import run
from cptune.domain.candidate import (
    Candidate,
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
    ulysses_degrees,
)
from cptune.domain.layout import ParallelLayout
from cptune.domain.rules import Setting, why_infeasible
from cptune.domain.support import PLANNED
from cptune.domain.workload import AttentionMask, Precision
from cptune.errors import CptuneError
from cptune.recipe.export.accelerate import tables
from cptune.recipe.export.order import Order, order_of
from cptune.recipe.export.refusals import divisor_of, why_not
from cptune.recipe.export.text import export_text, exportable
from cptune.recipe.export.tools import ToolName, read_tools

MODEL = model(layers=8, heads=8, kv_heads=4)


def spec_of(**workload):
    spec = sweep_spec()
    fields = {"precision": Precision.BF16, "seq_len": 256, "global_batch_seqs": 8}
    return replace(spec, model=MODEL, workload=replace(spec.workload, **fields | workload))


def told(tried, name, **workload):
    recipe = recipe_of(tried, spec=spec_of(**workload), proof=None)
    return export_text(recipe, name)


def megatron_flags(text):
    words = shlex.split(text, comments=True)
    assert words[0] == "CPTUNE_RECIPE=("
    assert words[-1] == ")"
    found, name = {}, ""
    for word in words[1:-1]:
        if word.startswith("--"):
            name = word.removeprefix("--")
            assert name not in found, f"{name} twice"
            found[name] = []
        else:
            found[name].append(word)
    return found


def assignments(text, holder):
    """Each `holder.a.b = value` of the function, literals as values, calls as their text."""
    (function,) = (one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef))
    found = {}
    for one in function.body:
        if isinstance(one, ast.Assign):
            place = ast.unparse(one.targets[0]).removeprefix(f"{holder}.")
            try:
                found[place] = ast.literal_eval(one.value)
            except ValueError:
                found[place] = ast.unparse(one.value)
    return found


def sizes_of(text, name):
    """The sizes that a text says: tp, cp, pp and, where it says it, dp."""
    if name is ToolName.MEGATRON:
        flags = megatron_flags(text)
        kinds = ("tensor-model-parallel", "context-parallel", "pipeline-model-parallel")
        return tuple(int(flags[f"{kind}-size"][0]) for kind in kinds)
    if name is ToolName.MEGATRON_BRIDGE:
        said = assignments(text, "cfg")
        kinds = ("tensor_model_parallel", "context_parallel", "pipeline_model_parallel")
        return tuple(said[f"model.{kind}_size"] for kind in kinds)
    if name is ToolName.TORCHTITAN:
        said = assignments(text, "config")
        kinds = ("tensor", "context", "pipeline")
        dp = [said[f"parallelism.data_parallel_{one}_degree"] for one in ("replicate", "shard")]
        return (*(said[f"parallelism.{kind}_parallel_degree"] for kind in kinds), prod(dp))
    said = yaml.safe_load(text)
    if "parallelism_config" not in said:
        return 1, 1, 1, said["num_processes"]
    of = said["parallelism_config"]
    dp = of["parallelism_config_dp_replicate_size"] * of["parallelism_config_dp_shard_size"]
    assert said["num_processes"] == prod(
        of[f"parallelism_config_{one}_size"] for one in ("dp_replicate", "dp_shard", "tp", "cp")
    )
    return of["parallelism_config_tp_size"], of["parallelism_config_cp_size"], 1, dp


def batch_of(text, name):
    """(micro-batch, global batch, sequence) as a text says them; None: the script holds them."""
    if name is ToolName.MEGATRON:
        flags = megatron_flags(text)
        words = ("micro-batch-size", "global-batch-size", "seq-length")
        return tuple(int(flags[word][0]) for word in words)
    if name is ToolName.MEGATRON_BRIDGE:
        said = assignments(text, "cfg")
        assert said["model.seq_length"] == said["dataset.seq_length"]
        words = ("train.micro_batch_size", "train.global_batch_size", "model.seq_length")
        return tuple(said[word] for word in words)
    if name is ToolName.TORCHTITAN:
        said = assignments(text, "config")
        micro = said.get(
            "parallelism.pipeline_parallel_microbatch_size", said["training.local_batch_size"]
        )
        return micro, said["training.global_batch_size"], said["training.seq_len"]
    return None


CP4 = candidate(tp=2, cp=4, dp=2, data_parallel=DataParallelKind.FSDP)
GATHERED = replace(CP4, strategy=Strategy.ALL_GATHER, stages=1)


@pytest.mark.parametrize(
    ("name", "tried", "said"),
    [
        (ToolName.MEGATRON, CP4, "--cp-comm-type p2p"),
        (ToolName.MEGATRON, GATHERED, "--cp-comm-type all_gather"),
        (ToolName.MEGATRON, CP4, "--data-parallel-sharding-strategy optim_grads_params"),
        (
            ToolName.MEGATRON,
            candidate(cp=4, ulysses=2, strategy=Strategy.HYBRID, stages=1),
            "--hierarchical-context-parallel-sizes 2 2",
        ),
        (
            ToolName.MEGATRON,
            candidate(cp=2, ulysses=2, strategy=Strategy.ULYSSES, stages=0).canonical(),
            "--cp-comm-type a2a",
        ),
        (ToolName.MEGATRON, candidate(pp=2, vpp=2), "--num-virtual-stages-per-pipeline-rank 2"),
        (ToolName.MEGATRON, candidate(pp=5), "--account-for-loss-in-pipeline-split"),
        (
            ToolName.MEGATRON,
            candidate(recompute=Recompute.SELECTIVE),
            "--recompute-granularity selective\n  --recompute-modules mlp",
        ),
        (
            ToolName.MEGATRON,
            candidate(dp=2, data_parallel=DataParallelKind.ZERO1),
            "--use-distributed-optimizer",
        ),
        (ToolName.MEGATRON_BRIDGE, GATHERED, "cfg.model.cp_comm_type = 'all_gather'"),
        (ToolName.MEGATRON_BRIDGE, CP4, "cfg.mixed_precision = 'bf16_mixed'"),
        (ToolName.TORCHTITAN, GATHERED, "context_parallel_load_balancer = 'headtail'"),
        (
            ToolName.TORCHTITAN,
            replace(GATHERED, sharding=ShardingKind.CONTIGUOUS),
            "context_parallel_load_balancer = None",
        ),
        (
            ToolName.TORCHTITAN,
            candidate(pp=2, vpp=2, dp=2),
            "pipeline_parallel_layers_per_stage = 2",
        ),
        (ToolName.TORCHTITAN, candidate(pp=2, dp=1), "local_batch_size = 8"),
        (
            ToolName.TORCHTITAN,
            candidate(dp=2, loss=LossKind.CHUNKED),
            "config.loss = ChunkedLossWrapper.Config(loss_fn=config.loss)",
        ),
        (ToolName.ACCELERATE, CP4, "parallelism_config_cp_comm_strategy: 'alltoall'"),
        (ToolName.ACCELERATE, GATHERED, "parallelism_config_cp_comm_strategy: 'allgather'"),
        (ToolName.ACCELERATE, candidate(dp=4), "distributed_type: 'MULTI_GPU'"),
        (ToolName.ACCELERATE, candidate(), "distributed_type: 'NO'"),
    ],
)
def test_a_word_of_the_recipe_is_the_word_of_the_trainer(name, tried, said):
    assert said in told(tried, name)


@pytest.mark.parametrize("name", ToolName)
def test_the_text_carries_the_identity_and_what_is_left(name):
    recipe = recipe_of(GATHERED, spec=spec_of(), proof=None)
    text = export_text(recipe, name)

    said = re.sub(r"\n#\s*", " ", text)
    for word in (
        GATHERED.key,
        f"convergence {recipe.fingerprints['convergence']}",
        f"execution {recipe.fingerprints['execution']}",
        recipe.run_id,
        f"{read_tools()[name].title} {read_tools()[name].version}",
        "16 ranks = tp 2 x cp 4 x dp 2 x pp 1",
        "chooses its own",
        "not of the recipe: data, tokenizer",
        "caveat: the ranks ran with X=1",
    ):
        assert word in said, word
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("name", "tried", "workload", "reasons"),
    [
        (
            ToolName.MEGATRON,
            replace(CP4, sharding=ShardingKind.BALANCED, stages=2, loss=LossKind.CHUNKED),
            {"seq_len": 250, "mask": AttentionMask.DOCUMENT},
            [
                "sharding balanced: .*; nearest: zigzag",
                "stages 2: ring .* has 3; nearest: 3, or all_gather in 1",
                "loss chunked: .*; nearest: full",
                "mask document: .*; nearest: causal",
                "seq_len 250: .*multiple of 8 .*; nearest: 248 or 256",
            ],
        ),
        (ToolName.MEGATRON, CP4, {"precision": Precision.FP32}, ["precision fp32: .*: bf16"]),
        (
            ToolName.MEGATRON,
            candidate(cp=8, ulysses=8, strategy=Strategy.ULYSSES, stages=0),
            {},
            ["ulysses 8: .* kv heads.*; nearest: ulysses 4"],
        ),
        (
            ToolName.MEGATRON_BRIDGE,
            candidate(pp=2, vpp=2),
            {"global_batch_seqs": 3},
            ["3 micro-batches: .* multiple of pp 2; nearest: 2 or 4"],
        ),
        (
            ToolName.TORCHTITAN,
            replace(CP4, recompute=Recompute.SELECTIVE, data_parallel=DataParallelKind.ZERO1),
            {"seq_len": 248},
            [
                "strategy ring: .*; nearest: all_gather in 1 stage",
                "recompute selective: .*; nearest: full",
                "data_parallel zero1: .*; nearest: fsdp",
                "seq_len 248: .*multiple of 16 .*; nearest: 240 or 256",
            ],
        ),
        (
            ToolName.TORCHTITAN,
            candidate(cp=2, tp=8),
            {},
            ["tp 8: .*4 kv heads; nearest: tp 4", "data_parallel ddp: .*; nearest: fsdp"],
        ),
        (
            ToolName.TORCHTITAN,
            candidate(pp=4, dp=4),
            {},
            ["2 micro-batches: 1F1B wants pp 4 or more; nearest: 4"],
        ),
        (
            ToolName.ACCELERATE,
            candidate(pp=2, cp=4, ulysses=2, strategy=Strategy.HYBRID, stages=1),
            {"mask": AttentionMask.FULL},
            [
                "strategy hybrid: .*; nearest: ring or all_gather",
                "mask full: .*; nearest: causal",
                "pp 2: .*; nearest: pp 1",
                "data_parallel ddp: .*; nearest: fsdp",
            ],
        ),
        (
            ToolName.ACCELERATE,
            candidate(tp=2, data_parallel=DataParallelKind.FSDP),
            {},
            ["data_parallel fsdp: dp 1 x cp 1 .*; nearest: dp 2 or cp 2"],
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused_all_at_once(name, tried, workload, reasons):
    with pytest.raises(CptuneError) as caught:
        told(tried, name, **workload)

    head, *lines = str(caught.value).splitlines()
    assert tried.key in head
    assert read_tools()[name].version in head
    assert len(lines) == len(reasons), lines
    for reason in reasons:
        assert any(re.search(reason, line) for line in lines), (reason, lines)


def test_of_two_ranks_one_exchange_has_both_names():
    both = candidate(cp=2, dp=2, data_parallel=DataParallelKind.FSDP)

    assert both.strategy is Strategy.RING
    assert "context_parallel_degree = 2" in told(both, ToolName.TORCHTITAN)
    assert "--cp-comm-type p2p" in told(both, ToolName.MEGATRON)


@pytest.mark.parametrize("name", ToolName)
def test_every_value_has_a_word_or_a_refusal(name):
    tool = read_tools()[name]
    kinds = {
        "strategy": Strategy,
        "sharding": ShardingKind,
        "mask": AttentionMask,
        "precision": Precision,
        "recompute": Recompute,
        "loss": LossKind,
        "data_parallel": DataParallelKind,
    }
    assert set(tool.words) == set(kinds)
    for axis, kind in kinds.items():
        absent = {one.value for one in kind} - set(tool.words[axis])
        assert set(tool.words[axis]) <= {one.value for one in kind}
        assert not absent or axis in tool.refused, (axis, absent)
    assert tool.version in tool.source


SIZES = st.sampled_from([1, 2, 4, 8])


@st.composite
def legal_candidates(draw):
    """A legal candidate of sixteen ranks or fewer, under every axis, and its workload."""
    tp, cp, pp, dp = draw(SIZES), draw(SIZES), draw(st.sampled_from([1, 2, 5])), draw(SIZES)
    strategy = draw(st.sampled_from(Strategy)) if cp > 1 else Strategy.RING
    ulysses = draw(st.sampled_from(ulysses_degrees(strategy, cp) or [1]))
    ring = cp // ulysses
    tried = Candidate(
        layout=ParallelLayout(
            tp=tp, cp=cp, pp=pp, dp=dp, vpp=draw(st.sampled_from([1, 2])), ulysses=ulysses
        ),
        sharding=draw(st.sampled_from(ShardingKind)),
        strategy=strategy,
        stages=draw(st.integers(min(1, ring - 1), ring - 1)),
        micro_batch=draw(st.sampled_from([1, 2])),
        recompute=draw(st.sampled_from(Recompute)),
        loss=draw(st.sampled_from(LossKind)),
        data_parallel=draw(st.sampled_from(DataParallelKind)),
    ).canonical()
    workload = spec_of(
        seq_len=draw(st.sampled_from([250, 256, 1024])),
        global_batch_seqs=draw(st.sampled_from([8, 16, 24])),
        mask=draw(st.sampled_from(AttentionMask)),
        precision=draw(st.sampled_from(Precision)),
    ).workload
    world = tried.layout.world_size
    setting = Setting(model=MODEL, workload=workload, world_size=world, support=PLANNED)
    if why_infeasible(tried, setting):
        return None
    return tried, workload


@given(legal_candidates().filter(lambda one: one is not None), st.sampled_from(ToolName))
def test_a_legal_candidate_is_exported_whole_or_refused_with_a_reason(case, name):
    tried, workload = case
    order = Order(candidate=tried, model=MODEL, workload=workload, name=name)
    reasons = why_not(order)
    spec = replace(spec_of(), workload=workload)
    recipe = recipe_of(
        tried, spec=spec, proof=None, measurement=measured(ranks=tried.layout.world_size)
    )
    if reasons:
        assert all("nearest: " in one for one in reasons)
        assert len(set(reasons)) == len(reasons)
        with pytest.raises(CptuneError):
            export_text(recipe, name)
        return
    text, lay = export_text(recipe, name), tried.layout
    sizes = sizes_of(text, name)
    assert sizes[:3] == (lay.tp, lay.cp, lay.pp)
    if len(sizes) == 4:
        assert prod(sizes) == lay.world_size
    assert workload.seq_len % divisor_of(order) == 0
    said = batch_of(text, name)
    assert said in (None, (tried.micro_batch, workload.global_batch_seqs, workload.seq_len))


def test_some_of_every_kind_is_exported():
    """The law above would hold of an export that refuses everything."""
    made = [CP4, GATHERED, candidate(dp=4), candidate(tp=2, pp=2, dp=2)]
    for tried, name in itertools.product(made, ToolName):
        if name is ToolName.ACCELERATE and tried.layout.pp > 1:
            continue
        if name is ToolName.TORCHTITAN and tried is CP4:
            continue
        assert told(tried, name)


def test_the_tables_of_accelerate_are_its_yaml():
    recipe = recipe_of(CP4, spec=spec_of(), proof=None)
    order = order_of(recipe, ToolName.ACCELERATE)

    assert yaml.safe_load(export_text(recipe, ToolName.ACCELERATE)) == tables(recipe, order)


def test_the_command_writes_prints_or_says_why_not(tmp_path, capsys):
    recipe = recipe_of(GATHERED, spec=spec_of(), proof=None)
    path, out = written(tmp_path, content_of(recipe)), tmp_path / "args.sh"

    assert run(["recipe", "export", str(path), "--to", "megatron"]) == 0
    printed = capsys.readouterr().out
    assert run(["recipe", "export", str(path), "--to", "megatron", "--out", str(out)]) == 0
    assert out.read_text() == printed
    assert capsys.readouterr().out == ""
    assert run(["recipe", "export", str(path), "--to", "megatron", "--out", str(path)]) == 2
    assert json.loads(path.read_text()) == content_of(recipe)
    assert run(["recipe", "export", str(path), "--to", "nemo"]) == 2
    capsys.readouterr()

    ring = written(tmp_path, content_of(recipe_of(CP4, spec=spec_of(), proof=None)))
    assert run(["recipe", "export", str(ring), "--to", "torchtitan"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "strategy ring: its context parallelism gathers all keys and values" in said.err
    assert "hint: --to megatron or megatron-bridge or accelerate can express it" in said.err
    assert exportable(recipe) == list(ToolName)
