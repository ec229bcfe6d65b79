"""What the environment of the ranks says against the figures; each fact with who says so."""

import re
from dataclasses import replace

import pytest
from fakes import STAMP, candidate, measured, trial_of

from cptune.domain.environment import RankEnvironment, join_environments
from cptune.recipe.caveats import caveats_of, read_distortions, why_other_execution


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail"),
        ("CUDA_LAUNCH_BLOCKING", "1"),
        ("NCCL_DEBUG", "TRACE"),
        ("TORCH_NCCL_BLOCKING_WAIT", "1"),
        ("NCCL_CHECK_POINTERS", "1"),
        ("NCCL_CHECK_MODE", "DEBUG_GLOBAL"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
    ],
)
def test_a_variable_that_distorts_timing_is_named_with_its_value_and_effect(name, value):
    (said,) = caveats_of(RankEnvironment(shared={name: value}), versions=RankEnvironment())

    assert said.startswith(f"the ranks ran with {name}={value}, which distorts timing: ")
    assert read_distortions()[name].effect in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "OFF"),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO"),
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_DEBUG", "INFO"),
        ("TORCH_NCCL_BLOCKING_WAIT", "0"),
        ("NCCL_CHECK_POINTERS", "0"),
        ("NCCL_CHECK_MODE", "DEFAULT"),
        ("OMP_NUM_THREADS", "1"),
    ],
)
def test_a_value_that_nobody_says_it_of_is_none(name, value):
    assert caveats_of(RankEnvironment(shared={name: value}), versions=RankEnvironment()) == ()


def test_a_node_of_its_own_is_named_and_that_it_differs_too():
    found = join_environments([("a", {}), ("b", {"CUDA_LAUNCH_BLOCKING": "1"})])

    distorted, differing = caveats_of(found, versions=RankEnvironment())

    assert distorted.startswith("b ran with CUDA_LAUNCH_BLOCKING=1, which distorts timing: ")
    assert differing == "the ranks differ in CUDA_LAUNCH_BLOCKING: unset on a; '1' on b"


def test_every_fact_names_its_source():
    for name, row in read_distortions().items():
        assert re.search(r"[a-z]+\.(org|com)/|Programming Guide", row.source), name
        assert row.values, name
        assert row.effect, name


def test_trials_of_another_execution_are_counted_and_those_of_this_one_are_none():
    here = trial_of(candidate(), measured())
    there = replace(here, execution_fingerprint="a" * 64)

    assert here.execution_fingerprint == STAMP.execution
    assert why_other_execution([here, here], STAMP.execution) == ()
    (said,) = why_other_execution([here, there, there], STAMP.execution)
    assert said.startswith("2 of 3 trials ran under another execution fingerprint (aaaaaaaaaaaa, ")
    assert "now eeeeeeeeeeee" in said


def test_nodes_with_other_software_speak_against_the_figures():
    versions = join_environments([("a", {"torch": "2.13.0"}), ("b", {"torch": "2.12.1"})])

    (said,) = caveats_of(RankEnvironment(), versions=versions)

    assert said == "the ranks differ in torch: '2.13.0' on a; '2.12.1' on b"
    assert versions.texts() == {"torch": "'2.13.0' on a; '2.12.1' on b"}
