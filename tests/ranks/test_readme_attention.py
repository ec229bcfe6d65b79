"""The training loop of the attention's README on gloo ranks and in one process."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_pool import RankPool
from torch import Tensor

README = Path(__file__).parents[2] / "cptune" / "attention" / "README.md"


def training_loop() -> str:
    """Its code, without what torchrun's processes need and these have."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    started = 'dist.init_process_group("nccl" if gpu else "gloo")\n'
    ended = "dist.destroy_process_group()"
    assert started in code
    assert ended in code
    return code.replace(started, "").replace(ended, "")


def weights_after(code: str, *, steps: int) -> Tensor:
    """All weights of the model in one row."""
    assert "range(2)" in code
    names: dict[str, Any] = {"__name__": "train"}
    exec(code.replace("range(2)", f"range({steps})"), names)
    return torch.cat([weight.detach().flatten() for weight in names["model"].parameters()])


def distance(ranks: RankPool, code: str) -> float:
    """Of the weights of three ranks to those of one, by how far training moved these."""
    before, after = (
        ranks.run(weights_after, world=1, code=training_loop(), steps=steps)[0] for steps in (0, 2)
    )
    found = ranks.run(weights_after, world=3, code=code, steps=2)
    return max(((mine - after).norm() / (after - before).norm()).item() for mine in found)


def test_the_loop_of_the_readme_trains_as_one_process_does(ranks: RankPool) -> None:
    assert distance(ranks, training_loop()) <= 1e-4


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("        dist.all_reduce(weight.grad)\n", "        pass\n"),
        ("positions[:, None]", "torch.arange(len(positions))[:, None]"),
        (".masked_fill(~valid, -100)", ""),
    ],
)
def test_a_loop_that_forgets_a_rule_is_seen(ranks: RankPool, right: str, wrong: str) -> None:
    code = training_loop()
    assert right in code
    assert distance(ranks, code.replace(right, wrong)) > 1e-3
