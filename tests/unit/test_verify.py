"""What `cptune verify` refuses before a process is started, and what it prints of proofs."""

import json

import pytest
from fakes import candidate

from cptune.cli import run
from cptune.domain.proof import Check, Proof
from cptune.errors import SpecError
from cptune.printing import print_answer
from cptune.report.proof import proof_line, self_test_view, verify_view
from cptune.verify import Rejection, refuse_crowding, self_test_json
from topology.nouns import Node, Topology

GOOD = Check(name="causal: loss", max_error=1e-16, tolerance=1e-10)
BAD = Check(name="causal: gradients", max_error=0.03, tolerance=1e-10, where="blocks.0.k")
KEY = candidate(cp=4).key
SPEC = """
[model]
preset = "tiny"
[workload]
seq_len = 256
global_batch_seqs = 4
precision = "fp32"
[cluster]
world_size = {world}
"""


def proof(*checks, why=""):
    return Proof(candidate_key=KEY, fixture="f", checks=checks, why_missing=why)


def machine(cpus):
    return Topology(source="nvml", nodes=(Node(name="a", cpus=cpus),))


def test_more_ranks_than_the_machine_can_start_are_refused_with_the_way_out():
    refuse_crowding(16, machine(2))
    with pytest.raises(SpecError, match=r"17 ranks are too many .*wanted 16 or fewer"):
        refuse_crowding(17, machine(2))


@pytest.mark.parametrize(
    ("world", "flags", "said"),
    [
        (2, ["--candidate", "nope"], "'nope' is none of the"),
        (2, ["--most", "0"], "--most"),
        (2, ["--self-test"], "--self-test plants"),
        (4096, [], "cluster.world_size | 4096 "),
    ],
)
def test_wrong_input_ends_with_2_before_anything_is_started(world, flags, said, tmp_path, capsys):
    path = tmp_path / "s.toml"
    path.write_text(SPEC.format(world=world))
    assert run(["verify", str(path), *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_table_has_the_whole_key_the_verdict_and_every_check_that_failed(capsys):
    answer = {"proofs": [one.to_json() for one in (proof(GOOD), proof(GOOD, BAD), proof(why="x"))]}
    print_answer(json.loads(json.dumps(answer)), as_json=False, view=verify_view)
    out = capsys.readouterr().out
    assert out.count(KEY) == 4
    assert "REFUTED" in out
    assert "not proven" in out
    assert f"{KEY}: causal: gradients 0.03 at blocks.0.k (tolerance 1e-10)" in out


def test_a_line_says_how_near_a_proof_came(capsys):
    assert proof_line(proof(GOOD)).startswith("proven ")
    assert "1 of 2 checks fail, worst causal: gradients 0.03" in proof_line(proof(GOOD, BAD))
    assert proof_line(proof(why="rank 1 is gone")).endswith("rank 1 is gone")


def test_a_fault_that_is_accepted_stands_out(capsys):
    seen = [
        Rejection(name="a", fault="It is wrong.", rejected=True, by="causal: loss"),
        Rejection(name="b", fault="It is wrong too.", rejected=False, by=""),
    ]
    print_answer(self_test_json(seen), as_json=False, view=self_test_view)
    assert "ACCEPTED" in capsys.readouterr().out
    assert self_test_json(seen)["mutants"][0] == {
        "name": "a",
        "fault": "It is wrong.",
        "rejected": True,
        "by": "causal: loss",
    }
