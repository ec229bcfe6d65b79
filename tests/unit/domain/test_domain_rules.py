"""Each rule broken alone gives its sentence; many broken at once come at once."""

import re
from dataclasses import replace

import pytest
from fakes import candidate, model, setting, workload

from cptune.domain.candidate import (
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
)
from cptune.domain.rules import (
    TORCH_TRIAL,
    Support,
    describe,
    why_infeasible,
    why_unsupported,
)
from cptune.domain.workload import AttentionMask, Mlp, Norm, Precision

#: A backend that can do everything, so that the rules of the mathematics stand alone.
ANYTHING = Support(
    backend="dream",
    sharding=frozenset(ShardingKind),
    strategy=frozenset(Strategy),
    recompute=frozenset(Recompute),
    loss=frozenset(LossKind),
    data_parallel=frozenset(DataParallelKind),
    precision=frozenset(Precision),
    mask=frozenset(AttentionMask),
    mlp=frozenset(Mlp),
    norm=frozenset(Norm),
    pipeline_needs_passes=False,
    tied_embeddings=True,
    kv_replication=True,
    optimizers=frozenset({"adamw-fp32"}),
    lengths=frozenset({"full"}),
)


def broken(one, world_size, **changes):
    fields = {"support": ANYTHING, **changes}
    return [
        (found.rule, found.message) for found in why_infeasible(one, setting(world_size, **fields))
    ]


def test_a_legal_candidate_breaks_nothing():
    assert why_infeasible(candidate(tp=2, cp=2), setting(4)) == ()


@pytest.mark.parametrize(
    ("one", "world_size", "changes", "rule", "message"),
    [
        (
            candidate(tp=2, cp=2, dp=1),
            8,
            {},
            "world-size",
            "tp2 * cp2 * pp1 * dp1 = 4 ranks, wanted exactly 8 (nearest legal dp: 2)",
        ),
        (
            candidate(cp=3),
            4,
            {},
            "world-size",
            "tp1 * cp3 * pp1 * dp1 = 3 ranks, wanted exactly 4 (tp*cp*pp = 3 must divide it)",
        ),
        (
            candidate(tp=4),
            4,
            {"island_size": 2},
            "tp-island",
            "tp 4 leaves the NVLink island of 2, wanted tp <= 2",
        ),
        (
            candidate(dp=3),
            3,
            {},
            "global-batch",
            "dp 3 * micro_batch 1 = 3 must divide the global batch of 4 sequences "
            "(nearest legal product: 2)",
        ),
        (
            candidate(dp=2, micro_batch=4),
            2,
            {},
            "global-batch",
            "dp 2 * micro_batch 4 = 8 must divide the global batch of 4 sequences "
            "(nearest legal product: 4)",
        ),
        (
            candidate(tp=4),
            4,
            {"model": model(heads=6, kv_heads=2)},
            "heads",
            "6 query heads do not divide by tp 4 (nearest legal tp: 3)",
        ),
        (
            candidate(tp=4),
            4,
            {"model": model(heads=12, kv_heads=6)},
            "kv-heads",
            "6 kv heads neither divide by tp 4 nor replicate evenly over it (nearest legal tp: 3)",
        ),
        (
            candidate(tp=4),
            4,
            {"model": model(ffn=130)},
            "ffn",
            "ffn 130 does not divide by tp 4 (nearest legal tp: 5)",
        ),
        (
            candidate(tp=4),
            4,
            {"model": model(vocab=258)},
            "vocab",
            "vocab 258 does not divide by tp 4 (nearest legal tp: 3)",
        ),
        (
            candidate(pp=4),
            4,
            {"model": model(layers=5)},
            "layers",
            "neither 5 layers nor 5 + 2 (embedding and head) divide by pp 4 * vpp 1 = 4 "
            "(nearest legal product: 5)",
        ),
        (
            candidate(pp=2, vpp=2),
            2,
            {"model": model(layers=2)},
            "empty-stage",
            "4 pipeline stages for 2 layers, wanted no empty stage",
        ),
        (
            candidate(cp=4),
            4,
            {"workload": workload(seq_len=7)},
            "empty-shard",
            "7 tokens cannot fill the 8 chunks of zigzag over cp 4, wanted a sequence of 8 or more",
        ),
        (
            candidate(cp=4, sharding=ShardingKind.CONTIGUOUS),
            4,
            {"workload": workload(seq_len=3)},
            "empty-shard",
            "3 tokens cannot fill the 4 chunks of contiguous over cp 4, "
            "wanted a sequence of 4 or more",
        ),
        (
            candidate(cp=4, stages=4),
            4,
            {},
            "stages",
            "4 stages for a ring of 4, wanted 1 (all-gather) to 3 (ring)",
        ),
        (
            candidate(cp=4, stages=0),
            4,
            {},
            "stages",
            "0 stages for a ring of 4, wanted 1 (all-gather) to 3 (ring)",
        ),
        (candidate(cp=1, stages=1), 1, {}, "stages", "1 stages for a ring of 1, wanted 0"),
        (
            candidate(cp=4, ulysses=3),
            4,
            {"model": model(heads=6, kv_heads=3)},
            "ulysses",
            "ulysses 3 does not divide cp 4 (nearest legal: 2)",
        ),
        (
            candidate(cp=4, ulysses=4, stages=0),
            4,
            {"model": model(heads=6, kv_heads=2)},
            "ulysses-heads",
            "ulysses 4 does not divide the 6 query heads of a tp rank (nearest legal: 3)",
        ),
        (
            candidate(cp=4, ulysses=4, stages=0),
            4,
            {"model": model(heads=12, kv_heads=6)},
            "ulysses-kv-heads",
            "ulysses 4 neither divides nor is a multiple of the 6 kv heads of a tp rank "
            "(nearest legal: 3)",
        ),
    ],
)
def test_a_rule_broken_alone_says_what_was_seen_and_wanted(one, world_size, changes, rule, message):
    assert broken(one, world_size, **changes) == [(rule, message)]


MOE = model(experts=6, experts_per_token=2, expert_ffn=64)


@pytest.mark.parametrize(
    ("one", "shape", "rule", "message"),
    [
        (
            candidate(cp=4, ep=4),
            MOE,
            "experts",
            "6 experts do not divide by ep 4 (nearest legal: 3)",
        ),
        (
            candidate(cp=4, ep=2),
            model(),
            "experts",
            "ep 2 spreads the experts of a layer over ranks, and this model has none: wanted ep 1, "
            "or model.experts, experts_per_token and expert_ffn",
        ),
        (
            candidate(dp=2, cp=2, ep=3),
            MOE,
            "expert-ranks",
            "ep 3 does not divide dp 2 * cp 2 = 4 (nearest legal: 2)",
        ),
    ],
)
def test_experts_lie_inside_dp_and_cp(one, shape, rule, message):
    assert broken(one, 4, model=shape) == [(rule, message)]
    assert broken(candidate(cp=4, ep=2), 4, model=MOE) == []


@pytest.mark.parametrize(
    ("one", "changes"),
    [
        (candidate(tp=4), {"model": model(heads=8, kv_heads=2)}),  # each kv head on two ranks
        (candidate(pp=4), {"model": model(layers=4)}),
        (candidate(pp=4), {"model": model(layers=6)}),  # embedding and head count as layers
        (candidate(cp=4), {"workload": workload(seq_len=8)}),
        (candidate(cp=4, ulysses=2, stages=1), {}),
        (candidate(cp=4, ulysses=4, stages=0), {"model": model(heads=8, kv_heads=2)}),
        (candidate(tp=4), {"island_size": 4}),
    ],
)
def test_the_edge_of_a_rule_is_legal(one, changes):
    assert broken(one, 4, **changes) == []


def test_llama_405b_goes_over_sixteen_stages():
    one = candidate(tp=8, pp=16)
    wide = workload(global_batch_seqs=16, seq_len=8192)

    assert broken(one, 128, model=model("llama3-405b"), workload=wide) == []
    assert [
        rule for rule, _ in broken(candidate(tp=8, pp=15), 120, model=model("llama3-405b"))
    ] == ["layers"]


@pytest.mark.parametrize(
    ("changes", "rule", "message"),
    [
        (
            {"sharding": ShardingKind.BALANCED},
            "torch trial: sharding",
            "sharding balanced cannot be tried by the torch trial, wanted contiguous, zigzag",
        ),
        (
            {"strategy": Strategy.HYBRID},
            "torch trial: strategy",
            "strategy hybrid cannot be tried by the torch trial, wanted all_gather, ring",
        ),
        (
            {"data_parallel": DataParallelKind.ZERO2},
            "torch trial: data_parallel",
            "data_parallel zero2 cannot be tried by the torch trial, wanted ddp, fsdp, zero1",
        ),
        (
            {"ulysses": 2, "stages": 1},
            "torch trial: ulysses",
            "ulysses 2 cannot be tried by the torch trial, wanted ulysses 1",
        ),
    ],
)
def test_what_the_backend_cannot_run_is_refused_by_its_name(changes, rule, message):
    modest = replace(
        TORCH_TRIAL,
        sharding=frozenset({ShardingKind.CONTIGUOUS, ShardingKind.ZIGZAG}),
        strategy=frozenset({Strategy.RING, Strategy.ALL_GATHER}),
    )
    found = why_infeasible(candidate(cp=4, **changes), setting(4, support=modest))

    assert [(one.rule, one.message) for one in found] == [(rule, message)]
    assert not found[0].intrinsic


def test_pipelines_are_limits_of_the_backend():
    deep = why_infeasible(candidate(pp=2, dp=4), setting(8))
    uneven = why_infeasible(
        candidate(pp=2, vpp=2),
        setting(2, model=model(layers=4), workload=workload(global_batch_seqs=3)),
    )

    assert [one.message for one in deep] == [
        "1 micro-batches a step cannot fill the torch trial's pipeline of pp 2 x vpp 1, "
        "wanted 2 or more"
    ]
    assert [one.message for one in uneven] == [
        "3 micro-batches a step cannot fill the torch trial's pipeline of pp 2 x vpp 2, "
        "wanted a multiple of 2"
    ]
    assert not any(one.intrinsic for one in deep)


def test_kv_heads_that_several_tensor_ranks_share_are_tried_unless_the_backend_cannot():
    shy = replace(TORCH_TRIAL, kv_replication=False)

    assert why_infeasible(candidate(tp=8), setting(8)) == ()
    narrow = why_infeasible(candidate(tp=8), setting(8, support=shy))
    assert [one.message for one in narrow] == [
        "4 kv heads do not divide by tp 8, and the torch trial does not replicate kv heads "
        "(nearest legal tp: 4)"
    ]
    assert not narrow[0].intrinsic


def test_rows_that_vary_from_pack_to_pack_do_not_go_through_a_pipeline():
    packed = workload(mask=AttentionMask.DOCUMENT, lengths="lengths.txt")
    balanced = candidate(cp=2, pp=2, sharding=ShardingKind.BALANCED)

    found = why_infeasible(balanced, setting(4, workload=packed))

    assert [(one.rule, one.intrinsic) for one in found] == [("torch trial: balanced packs", False)]
    assert found[0].message.endswith("wanted zigzag or contiguous, or pp 1")
    for fine in (replace(balanced, sharding=ShardingKind.ZIGZAG), candidate(cp=4, micro_batch=2)):
        assert why_infeasible(fine, setting(4, workload=packed)) == ()
    assert why_infeasible(balanced, setting(4)) == ()


def test_context_words_do_not_matter_without_context_parallelism():
    one = candidate(cp=1, sharding=ShardingKind.BALANCED, strategy=Strategy.ULYSSES)

    assert why_infeasible(one, setting(1)) == ()


def test_all_violations_come_at_once_and_as_one_message():
    wrong = candidate(
        tp=3,
        cp=4,
        dp=3,
        pp=5,
        ulysses=3,
        data_parallel=DataParallelKind.ZERO2,
    )
    given = setting(16, island_size=2, workload=workload(seq_len=4))

    found = why_infeasible(wrong, given)

    assert [one.rule for one in found] == [
        "world-size",
        "tp-island",
        "global-batch",
        "heads",
        "kv-heads",
        "ffn",
        "vocab",
        "layers",
        "empty-stage",
        "empty-shard",
        "ulysses",
        "ulysses-heads",
        "torch trial: data_parallel",
        "torch trial: micro-batches",
    ]
    text = describe(wrong, found)
    assert text.startswith("tp3 cp4 dp3 pp5 zigzag ring/3 zero2: tp3 * cp4")
    assert text.count(";") == len(found) - 1


def test_the_backend_refuses_a_study_that_it_cannot_train():
    given = setting(
        model=model("gpt3-6.7b"),
        workload=workload(
            precision=Precision.FP8,
            optimizer="sgd",
            lengths="lengths.txt",
        ),
    )

    assert [one.message for one in why_unsupported(given)] == [
        "precision fp8 cannot be tried by the torch trial, wanted bf16, fp32",
        "optimizer sgd cannot be tried by the torch trial, wanted adamw-fp32",
        "mlp gelu cannot be tried by the torch trial, wanted swiglu",
        "norm layer cannot be tried by the torch trial, wanted rms",
        "tied_embeddings true cannot be tried by the torch trial, wanted false",
        "lengths lengths.txt cannot be tried by the torch trial, wanted full, or mask "
        '"document", which alone knows documents',
    ]
    packed = replace(given.workload, mask=AttentionMask.DOCUMENT)
    assert len(why_unsupported(replace(given, workload=packed))) == 5
    assert why_unsupported(setting()) == ()
    assert why_unsupported(replace(given, support=ANYTHING))[0].rule == "dream: optimizer"


def test_messages_hold_numbers_and_no_python():
    for rule in why_infeasible(candidate(tp=3, cp=5, dp=7, stages=9), setting(4)):
        assert re.search(r"\d", rule.message)
        assert "<" not in rule.message.replace("<=", "")
