"""Two fingerprints: each changes with what it must, and with nothing else."""

from dataclasses import replace

import pytest
from fakes import sweep_spec

from cptune.domain.environment import RankEnvironment
from cptune.domain.workload import AttentionMask, Mlp, Norm, Precision
from cptune.recipe.fingerprint import stamp_of

SPEC = sweep_spec()
STAMP = stamp_of(SPEC, topology_hash="t")


def with_part(part, **changes):
    return replace(SPEC, **{part: replace(getattr(SPEC, part), **changes)})


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("model", {"layers": 3}),
        ("model", {"hidden": 128}),
        ("model", {"heads": 16}),
        ("model", {"kv_heads": 8}),
        ("model", {"head_dim": 16}),
        ("model", {"ffn": 256}),
        ("model", {"vocab": 512}),
        ("model", {"tied_embeddings": True}),
        ("model", {"mlp": Mlp.GELU}),
        ("model", {"norm": Norm.LAYER}),
        ("workload", {"seq_len": 128}),
        ("workload", {"global_batch_seqs": 8}),
        ("workload", {"mask": AttentionMask.FULL}),
        ("workload", {"precision": Precision.BF16}),
        ("workload", {"optimizer": "sgd"}),
        ("workload", {"lengths": "lengths.txt"}),
        ("search", {"seed": 1}),
    ],
)
def test_what_changes_the_mathematics_changes_convergence_alone(part, changes):
    other = stamp_of(with_part(part, **changes), topology_hash="t")

    assert other.convergence != STAMP.convergence
    assert other.execution == STAMP.execution


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("cluster", {"world_size": 8}),
        ("cluster", {"device_memory_bytes": 1 << 30}),
        ("axes", {"tp": (1,)}),
        ("budget", {"trials": 1}),
        ("objective", {"throughput_slack": 0.5}),
        ("storage", {"study": "sqlite://"}),
    ],
)
def test_how_it_is_searched_changes_neither(part, changes):
    assert stamp_of(with_part(part, **changes), topology_hash="t") == STAMP
    assert stamp_of(replace(SPEC, name="other"), topology_hash="t") == STAMP


def test_another_topology_changes_execution_alone():
    other = stamp_of(SPEC, topology_hash="u")

    assert other.convergence == STAMP.convergence
    assert other.execution != STAMP.execution
    assert other.topology == "u"


@pytest.mark.parametrize("name", ["NCCL_ALGO", "OMP_NUM_THREADS", "CUDA_MODULE_LOADING"])
def test_the_environment_of_the_libraries_changes_execution(monkeypatch, name):
    monkeypatch.setenv(name, "a value of this test")

    other = stamp_of(SPEC, topology_hash="t")

    assert other.convergence == STAMP.convergence
    assert other.execution != STAMP.execution


def test_the_rest_of_the_environment_changes_nothing(monkeypatch):
    monkeypatch.setenv("HOME", "elsewhere")
    monkeypatch.setenv("EDITOR", "ed")

    assert stamp_of(SPEC, topology_hash="t") == STAMP


def test_versions_name_what_a_trial_runs_on():
    assert {"python", "platform", "cptune", "torch", "ray", "optuna", "numpy", "pyarrow"} <= set(
        STAMP.versions.shared
    )
    assert STAMP.fingerprints == {
        "convergence": STAMP.convergence,
        "execution": STAMP.execution,
        "topology": "t",
    }
    assert len(STAMP.convergence) == 64


def test_what_a_file_of_lengths_held_is_part_of_the_mathematics():
    plain, packed, other = (
        stamp_of(sweep_spec(), topology_hash="t", lengths=lengths).convergence
        for lengths in ((), (3, 5), (3, 6))
    )

    assert len({plain, packed, other}) == 3


def test_the_path_of_a_file_of_lengths_is_no_part_of_it_and_its_content_is():
    here, there = (
        with_part("workload", mask=AttentionMask.DOCUMENT, lengths=path)
        for path in ("/a/lengths.csv", "/b/copy.csv")
    )

    one, same, other = (
        stamp_of(spec, topology_hash="t", lengths=lengths)
        for spec, lengths in ((here, (3, 5)), (there, (3, 5)), (here, (3, 6)))
    )

    assert one == same
    assert one.convergence != other.convergence


def test_the_environment_of_the_ranks_counts_and_not_that_of_the_driver(monkeypatch):
    own, same, other, split = (
        RankEnvironment(**given)
        for given in (
            {"shared": {"NCCL_ALGO": "Ring"}},
            {"shared": {"NCCL_ALGO": "Ring"}},
            {"shared": {"NCCL_ALGO": "Tree"}},
            {"differing": {"NCCL_ALGO": {"a": "Ring", "b": "Tree"}}},
        )
    )
    first = stamp_of(SPEC, topology_hash="t", environment=own)
    monkeypatch.setenv("NCCL_ALGO", "a value of the driver")

    again, tree, mixed = (
        stamp_of(SPEC, topology_hash="t", environment=one) for one in (same, other, split)
    )

    assert again == first
    assert again.environment == own
    assert len({first.execution, tree.execution, mixed.execution}) == 3
    assert {one.convergence for one in (tree, mixed)} == {first.convergence}
