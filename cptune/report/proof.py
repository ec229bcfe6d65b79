"""Proofs for people: one line a candidate, and what each check of a failed one came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cptune.domain.proof import Proof, proof_from_json
from cptune.report.proof_words import check_words, proof_word, proof_words
from cptune.report.tables import section


def proof_line(proof: Proof) -> str:
    """One candidate while the others are still proven."""
    return f"{proof_word(proof):<10} {proof.candidate_key}: {proof_words(proof)}"


def verify_view(answer: Mapping[str, Any]) -> Group:
    """The answer of `cptune verify`: one line a candidate, then every check that failed."""
    proofs = [proof_from_json(one) for one in answer["proofs"]]
    table = _table("Proofs", ("candidate", "verdict", "checks", "nearest its tolerance"))
    for proof in proofs:
        worst = proof.why_missing if proof.worst is None else check_words(proof.worst)
        cells = (proof.candidate_key, proof_word(proof), str(len(proof.checks)), worst)
        table.add_row(*map(Text, cells))
    failed = [
        f"{proof.candidate_key}: {check_words(check)}" for proof in proofs for check in proof.failed
    ]
    return Group(table, *([section("Failed", failed)] if failed else []))


def self_test_view(answer: Mapping[str, Any]) -> Table:
    """The answer of `cptune verify --self-test`: one line a planted fault."""
    table = _table("Planted faults", ("fault", "verdict", "refused by", "what is wrong"))
    for one in answer["mutants"]:
        verdict = "refused" if one["rejected"] else "ACCEPTED"
        table.add_row(*map(Text, (one["name"], verdict, one["by"], one["fault"])))
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place == 0, overflow="fold")  # a key is to be pasted
    return table
