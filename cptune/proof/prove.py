"""One rank's part of a proof, run as a `cptune.bench.calls.RankCall` on the ranks of a layout.

Always in fp64 over gloo, on the host, wherever the trials compute: the schedule that is proven is
the same, and there every sum can be told from a wrong one. Made without torch, which only ranks
need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cptune.domain.proof import Check
from cptune.proof.fixture import ProofCase, proof_case

if TYPE_CHECKING:
    from cptune.proof.model import MadeBy


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofJob:
    """What every rank is told; `mutant` names a fault to plant, and is empty for a proof."""

    case: ProofCase
    mutant: str = ""


def self_test_jobs() -> list[ProofJob]:
    """Every mutant, on the part of a case that shows it."""
    from cptune.proof.mutants import MUTANTS, SELF_TEST_MODEL, SELF_TEST_WORKLOAD

    jobs = list[ProofJob]()
    for one in MUTANTS:
        case = proof_case(one.candidate, model=SELF_TEST_MODEL, workload=SELF_TEST_WORKLOAD)
        shown = tuple(
            replace(fixture, updates=1)
            for fixture in case.fixtures
            if fixture.workload.mask is one.mask
        )
        jobs.append(ProofJob(case=replace(case, fixtures=shown), mutant=one.name))
    return jobs


def prove_rank(job: ProofJob) -> tuple[Check, ...]:
    """Every check of the case, as this rank sees it. Collective over the ranks of the layout."""
    from cptune.attention import ContextParallel
    from cptune.proof.mutants import find_mutant
    from cptune.proof.reference import train_whole

    if not job.mutant:
        return _check(job.case, ContextParallel)
    mutant = find_mutant(job.mutant)
    for fixture in job.case.fixtures:
        train_whole(fixture)  # the reference has no fault planted in it
    with mutant.plant():
        return _check(job.case, mutant.made_by)


def _check(case: ProofCase, made_by: MadeBy) -> tuple[Check, ...]:
    from cptune.bench.mesh import build_mesh
    from cptune.proof.attention import check_attention
    from cptune.proof.model import check_model

    mesh = build_mesh(case.candidate.layout)
    found: list[Check] = []
    for fixture in case.fixtures:
        found += check_model(case.candidate, fixture, mesh=mesh, made_by=made_by)
        if case.candidate.layout.cp > 1:
            found += check_attention(
                case.candidate, fixture, mesh=mesh, made_by=made_by, precision=case.precision
            )
    return tuple(found)
