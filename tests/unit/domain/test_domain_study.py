"""What the nouns of a spec refuse by themselves."""

import math

import pytest
from fakes import model, workload

from cptune.domain.study import Axes, Budget, ClusterSpec, Objective, SweepSpec


@pytest.mark.parametrize(
    ("noun", "fields", "message"),
    [
        (ClusterSpec, {"memory_margin": 1.0}, "memory_margin is 1.0; wanted a share"),
        (ClusterSpec, {"memory_margin": math.nan}, "memory_margin is nan"),
        (ClusterSpec, {"world_size": 0}, "world_size is 0; wanted 1 or more"),
        (ClusterSpec, {"network_bytes_per_s": math.nan}, "network_bytes_per_s is nan"),
        (ClusterSpec, {"gpus_per_node": -1}, "gpus_per_node is -1"),
        (ClusterSpec, {"device_memory_bytes": -1}, "device_memory_bytes is -1; wanted 0"),
        (Axes, {"cp": (2, 0, -4)}, "cp is 0, cp is -4; wanted 1 or more"),
        (Objective, {"exposed_comm_share": -0.1}, "exposed_comm_share is -0.1"),
        (Objective, {"throughput_slack": 1}, "throughput_slack is 1; wanted a share"),
        (Budget, {"trials": 0, "steps": -2}, "trials is 0, steps is -2; wanted 1 or more"),
        (Budget, {"wall_s": 0.0}, "wall_s is 0.0; wanted 0.001 or more"),
        (Budget, {"trial_s": math.nan}, "trial_s is nan; wanted 0.001 or more"),
    ],
)
def test_a_field_out_of_range_is_named_with_its_value(noun, fields, message):
    with pytest.raises(ValueError, match=message):
        noun(**fields)


@pytest.mark.parametrize("name", ["a", "llama3.1-8b_128k", "7"])
def test_a_name_of_letters_digits_and_marks_passes(name):
    assert SweepSpec(name=name, model=model(), workload=workload()).name == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "-a", "a/b", "a b", "a\n", "a\0", "a:b", "a*"]
)
def test_a_name_that_is_no_plain_directory_is_refused(name):
    with pytest.raises(ValueError, match="names the run directory"):
        SweepSpec(name=name, model=model(), workload=workload())
