"""The environment that counts is that of the ranks, on whatever node they run."""

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from cptune.recipe.caveats import read_distortions

DISTORTED = "TORCH_DISTRIBUTED_DEBUG=DETAIL, which distorts timing: "


@pytest.mark.timeout(300)
def test_nodes_that_differ_are_told_by_name_and_no_secret_is(processes):
    known = processes.environment.get("PYTHONPATH", "")
    processes.environment["PYTHONPATH"] = f"{known}:{Path(__file__).parent}".strip(":")
    process = processes.start([sys.executable, "-m", "environment_nodes"])
    out, err = process.communicate(timeout=140)
    assert process.returncode == 0, err
    found = json.loads(out)

    shared, differing = found["environment"]["shared"], found["environment"]["differing"]
    assert shared["NCCL_ALGO"] == "Ring"  # and not what the driver has
    assert shared["NCCL_PROTO"] == "Simple"  # of the job, which its driver does not have
    assert set(differing) == {"NCCL_IB_HCA", "TORCH_DISTRIBUTED_DEBUG"}
    first, second = sorted(differing["NCCL_IB_HCA"], key=str)
    assert {differing["NCCL_IB_HCA"][first], differing["NCCL_IB_HCA"][second]} == {"mlx5_0", None}
    assert found["versions"]["torch"] == metadata.version("torch")
    assert "hush" not in out
    said = found["caveats"]
    assert any(f"ran with {DISTORTED}" in one for one in said), said
    assert any(one.startswith("the ranks differ in NCCL_IB_HCA: ") for one in said)
    assert all("42!" in words for words in found["words"]), found["words"]


@pytest.mark.timeout(300)
def test_a_sweep_of_ranks_with_a_distorting_variable_warns_and_its_recipe_says_so(processes):
    processes.environment |= {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_PRIVATE_KEY": "hush"}
    spec = processes.write("slow", axes={"tp": [1], "cp": [2], "sharding": ["zigzag"]})
    done = processes.sweep(spec, timeout_s=140)

    assert done.returncode == 0, done.stderr
    effect = read_distortions()["TORCH_DISTRIBUTED_DEBUG"].effect
    warned = done.stderr.index(f"note: the ranks ran with {DISTORTED}{effect}")
    assert warned < done.stderr.index("trial   0")
    text = (processes.runs / "slow" / "recipe.json").read_text()
    recipe = json.loads(text)
    assert recipe["caveats"] == [f"the ranks ran with {DISTORTED}{effect}"]
    assert recipe["environment"]["shared"]["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    assert recipe["environment"]["differing"] == {}
    assert "hush" not in text
    assert f"caveat: the ranks ran with {DISTORTED}" in done.stdout

    del processes.environment["TORCH_DISTRIBUTED_DEBUG"]
    again = processes.sweep(spec, "--resume", timeout_s=140)

    assert again.returncode == 0, again.stderr
    (said,) = json.loads((processes.runs / "slow" / "recipe.json").read_text())["caveats"]
    assert said.startswith("1 of 1 trials ran under another execution fingerprint (")
    assert f"note: {said}" in again.stderr
