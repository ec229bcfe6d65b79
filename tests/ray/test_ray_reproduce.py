"""A recipe is run again from its file: what it says comes out again, what was planted does not."""

import json
import sys
from dataclasses import replace

import pytest

from cptune.domain.seal import DIGESTS, sealed
from cptune.domain.standing import Likeness
from cptune.kept import read_recipe
from cptune.recipe.fingerprint import stamp_of
from cptune.recipe.reproduce import Again, compare
from cptune.reproduce import spec_again

ONE = {"tp": [1], "cp": [2], "sharding": ["zigzag"]}
BUDGET = {
    "steps": 6,
    "max_steps": 6,
    "ci_share": 0.9,
    "finalist_trace": "off",
}


def planted(path, **changes):
    """The recipe of a file of which parts were changed, and sealed again."""
    content = json.loads(path.read_text())
    del content[DIGESTS]
    for part, values in changes.items():
        content[part] |= values
    other = path.with_name("planted.json")
    other.write_text(json.dumps(sealed(content)))
    return read_recipe(other).recipe


def differing(recipe, again):
    rows = compare(recipe, again, same_execution=True)
    return {row.what for row in rows if row.verdict is Likeness.DIFFERS}


@pytest.mark.timeout(200)
def test_a_recipe_is_reproduced_and_one_with_other_figures_is_not(processes):
    done = processes.sweep(processes.write("one", axes=ONE, budget=BUDGET))
    assert done.returncode == 0, done.stderr
    path, runs = processes.runs / "one" / "recipe.json", processes.runs

    command = [sys.executable, "-m", "cptune", "recipe", "reproduce", path, "--runs", runs]
    process = processes.start([*command, "--format", "json"])
    out, err = process.communicate(timeout=140)

    assert process.returncode == 0, err
    told = json.loads(out)
    assert told["reproduced"], told
    assert told["run"] == str(runs / "one-again")
    verdicts = {row["what"]: row["verdict"] for row in told["rows"]}
    assert verdicts["step_s"] == verdicts["exposed_share"] == "within"
    assert set(verdicts.values()) <= {"same", "within"}
    first, second = (read_recipe(runs / name / "recipe.json") for name in ("one", "one-again"))
    assert second.recipe.candidate == first.recipe.candidate
    assert second.recipe.run_id != first.recipe.run_id
    assert second.recipe.fingerprints == first.recipe.fingerprints

    seen = second.recipe
    again = Again(
        convergence=seen.fingerprints["convergence"],
        ruling="chosen",
        reason="",
        measurement=seen.measurement,
        reported=seen.reported,
        proof=seen.proof,
    )
    assert differing(first.recipe, again) == set()
    loss = seen.measurement.first_loss * 1.001
    assert differing(planted(path, measurement={"first_loss": loss}), again) == {"first_loss"}
    longer = planted(path, workload={"seq_len": 130})
    stamp = stamp_of(spec_again(longer, runs=runs, name="other"), topology_hash="t")
    assert "convergence_fingerprint" in differing(
        longer, replace(again, convergence=stamp.convergence)
    )
