"""Proofs for a sweep: run on its ranks, kept in its run directory, and not run twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cptune.bench.calls import RunOnRanks
from cptune.domain.candidate import Candidate
from cptune.domain.proof import Check, Proof, join_checks
from cptune.domain.study import SweepSpec
from cptune.errors import ClusterError
from cptune.proof.fixture import ProofCase, proof_case
from cptune.proof.prove import ProofJob, prove_rank
from cptune.store.proofs import read_proof, tidy_proofs, write_proof


class Prover:
    """Proves candidates of one spec.

    Args:
        spec: The resolved spec.
        run: Runs a function on the ranks of its world.
        directory: The run directory.
        execution: Fingerprint of what executes: a proof by another one is none.
    """

    def __init__(
        self, spec: SweepSpec, *, run: RunOnRanks, directory: Path, execution: str
    ) -> None:
        self._spec, self._run = spec, run
        self._directory, self._execution = directory, execution
        tidy_proofs(directory)

    def __call__(self, candidate: Candidate) -> Proof:
        """The proof of one candidate, the kept one where there is one.

        Raises:
            LedgerError: when it cannot be kept.
        """
        case = case_of(candidate, self._spec)
        kept = read_proof(self._directory, candidate.key, execution=self._execution)
        if kept is not None and kept.fixture == case.digest:
            return kept
        proof = prove(candidate, case, run=self._run)
        if not proof.why_missing:
            write_proof(self._directory, proof, execution=self._execution)
        return proof


def case_of(candidate: Candidate, spec: SweepSpec) -> ProofCase:
    """What a candidate of a spec is proven on."""
    return proof_case(candidate, model=spec.model, workload=spec.workload)


def prove(candidate: Candidate, case: ProofCase, *, run: RunOnRanks) -> Proof:
    """Run every check on all ranks; a proof that cannot be run says why."""
    checks: Sequence[Sequence[Check]] = ()
    why = "" if case.fixtures else "no small model of its kind can be trained under any mask"
    if case.fixtures:
        try:
            checks = run(prove_rank, ProofJob(case=case), ranks=candidate.layout.world_size)
        except ClusterError as exc:
            why = str(exc)
    return Proof(
        candidate_key=candidate.key,
        fixture=case.digest,
        checks=join_checks(checks),
        why_missing=why,
    )
