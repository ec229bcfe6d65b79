"""What waits for a GPU runs here before: its tests, with the kernels of the CPU in their place."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rank_pool import RankPool

from cptune.attention.kernels import Block, CpuFlash

GPU_TESTS = Path(__file__).parents[1] / "gpu"
sys.path.append(str(GPU_TESTS))

from gpu_ranks import relative_errors  # noqa: E402 - where it lies is known from here on
from test_gpu_attention import CASES, MOST, SEQ_LEN, WORLD, errors, make_block  # noqa: E402

# A machine with a GPU may have torch, pytest and numpy, and none of these.
ABSENT = ("ray", "optuna", "pydantic", "plotly", "rich", "cyclopts", "hypothesis", "tomli_w")
WITHOUT = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(name + " is not there", name=name)
sys.meta_path.insert(0, Absent())
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def run_gpu_tests(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, "-p", "no:hypothesispytest", "-q"]
    command += [str(GPU_TESTS / "test_gpu_attention.py"), *arguments]
    return subprocess.run(command, cwd=GPU_TESTS.parents[1], capture_output=True, text=True)


def test_they_need_no_other_library_and_keep_what_they_found(tmp_path: Path) -> None:
    few = "scaled or auto or cannot_run or (oblong and flash)"
    done = run_gpu_tests("--device", "cpu", "-k", few, "--record", str(tmp_path))
    assert done.returncode == 0, done.stdout
    (file,) = tmp_path.iterdir()
    kept = json.loads(file.read_text())
    assert kept["outcomes"] == {"passed": len(kept["tests"])}
    assert len(kept["tests"]) > 8
    assert kept["device"] == {"name": "cpu", "there": True}
    assert kept["versions"]["torch"] == torch.__version__


def test_ranks_that_share_a_device_are_near_fp64(ranks: RankPool) -> None:
    cases = [CASES[at] | {"kernel": "cpu_flash"} for at in (0, 3, 5)]  # a ring, documents, heads
    run = {"cases": cases, "seq_len": SEQ_LEN, "device": "cpu"}
    for found in ranks.run(relative_errors, world=WORLD, **run):
        assert [kernel for kernel, _ in found] == ["cpu_flash"] * len(cases)
        assert max(worst for _, worst in found) <= MOST


class OfAnotherHead(CpuFlash):
    """Grouped heads tiled, not repeated."""

    def forward(self, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(replace(block, k=block.k.flip(2), v=block.v.flip(2)))


class CausalForgotten(CpuFlash):
    def backward(self, block: Block, **found: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return super().backward(replace(block, causal=False), **found)


@pytest.mark.parametrize(
    "wrong", [OfAnotherHead(), CausalForgotten()], ids=lambda one: type(one).__name__
)
def test_a_wrong_kernel_would_not_pass(wrong: CpuFlash) -> None:
    block = make_block(torch.device("cpu"), kv_heads=2, rows=128, keys=128, causal=True)
    assert max(errors(CpuFlash(), block).values()) <= MOST < max(errors(wrong, block).values())
