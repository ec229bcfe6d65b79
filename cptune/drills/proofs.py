"""Equivalence: faults that the loss hardly shows and the proof must refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cptune.domain.candidate import Candidate
from cptune.domain.layout import ParallelLayout
from cptune.domain.proof import Check, Proof, join_checks
from cptune.domain.workload import AttentionMask
from cptune.drills.finding import Figure, Finding
from cptune.drills.ranks import RANKS, SPEC, Ranks
from cptune.drills.reports import measured
from cptune.drills.searching import Searched, search
from cptune.proof.fixture import ProofCase, proof_case
from cptune.proof.prove import ProofJob, prove_rank

PROVEN = Candidate(layout=ParallelLayout(cp=4), stages=3)
#: Mutants of `cptune.proof`.
SEAM_LATE, PADDING_ATTENDED, TOP_LEFT = "seam-late", "padding-attended", "top-left"
#: A loss that differs by less looks like another seed.
_ALIKE_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What the unsharded model comes to: its loss, and the largest element of any gradient."""

    loss: float
    gradient: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs:
    """The candidate proven as it is, and with each fault under the causal mask."""

    whole: Whole
    honest: Proof
    wrong: Mapping[str, Proof]

    def figures(self, mutant: str) -> dict[str, Figure]:
        """How far the loss is off beside what else is."""
        return {
            "loss_error_share": self.loss_error_share(mutant),
            "gradient_error_share": self._error(mutant, "gradients") / self.whole.gradient,
            "failed_checks": ", ".join(check.name for check in self.wrong[mutant].failed),
        }

    def loss_error_share(self, mutant: str) -> float:
        """How far the loss is off, of itself."""
        return self._error(mutant, "loss") / self.whole.loss

    def _error(self, mutant: str, name: str) -> float:
        checks = self.wrong[mutant].checks
        return next(one.max_error for one in checks if one.name == f"causal: {name}")

    def failed(self, mutant: str) -> set[str]:
        """The checks that a fault fails, without their mask."""
        return {check.name.partition(": ")[2] for check in self.wrong[mutant].failed}


def provoke(ranks: Ranks) -> Proofs:
    """Prove the candidate as it is, and with every fault."""
    case = proof_case(PROVEN, model=SPEC.model, workload=SPEC.workload)
    causal = _causal(case)
    honest = _proof(case, ranks.run(prove_rank, ProofJob(case=case), ranks=RANKS))
    wrong = {
        mutant: _proof(
            causal, ranks.run(prove_rank, ProofJob(case=causal, mutant=mutant), ranks=RANKS)
        )
        for mutant in (SEAM_LATE, PADDING_ATTENDED, TOP_LEFT)
    }
    [whole, *_] = ranks.run(train_whole, causal, ranks=RANKS)
    return Proofs(whole=whole, honest=honest, wrong=wrong)


def judge_seam(seen: Proofs) -> Finding:
    """The proof must refuse what the loss does not show."""
    alike = seen.loss_error_share(SEAM_LATE) <= _ALIKE_SHARE
    finding = judge(seen, SEAM_LATE, fails={"positions", "gradients"})
    return replace(finding, controls={**finding.controls, "the loss looks similar": alike})


def judge_padding(seen: Proofs) -> Finding:
    """Rows of padding hold no numbers in the proof, so that who sees one is found out."""
    return judge(seen, PADDING_ATTENDED, fails={"outputs"})


def judge(seen: Proofs, mutant: str, *, fails: set[str]) -> Finding:
    """The loop must not choose a candidate that its proof refutes, by these checks among others."""
    wrong, honest = _searched(seen.wrong[mutant]), _searched(seen.honest)
    return Finding(
        refused=wrong.chosen is None and fails <= seen.failed(mutant),
        said=wrong.reason(PROVEN),
        controls={
            "without the fault every check passes": seen.honest.passed,
            "without the fault it is chosen": honest.chosen == PROVEN,
        },
        figures=seen.figures(mutant),
    )


def _searched(proof: Proof) -> Searched:
    return search([(PROVEN, measured(PROVEN, step_s=0.1))], prove=lambda _: proof)


def train_whole(case: ProofCase) -> Whole:
    """The unsharded model of a case on this rank."""
    from cptune.proof import reference

    trained = reference.train_whole(case.fixtures[0])
    gradient = max(float(one.abs().max()) for one in trained.gradients.values())
    return Whole(loss=trained.loss, gradient=gradient)


def _causal(case: ProofCase) -> ProofCase:
    """What shows a fault: the causal mask, one update."""
    causal = [one for one in case.fixtures if one.workload.mask is AttentionMask.CAUSAL]
    return replace(case, fixtures=tuple(replace(one, updates=1) for one in causal))


def _proof(case: ProofCase, checks: Sequence[Sequence[Check]]) -> Proof:
    return Proof(candidate_key=PROVEN.key, fixture=case.digest, checks=join_checks(checks))
