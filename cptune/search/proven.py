"""What of a search was proven: each candidate once, and its failure where the proof refutes it."""

from __future__ import annotations

from cptune.domain.candidate import Candidate
from cptune.domain.outcome import Failure
from cptune.domain.proof import Proof, why_wrong
from cptune.seams import Observer
from cptune.search.seams import Prove


class Proofs:
    """Asks for proofs and remembers them.

    Args:
        prove: Proves one candidate; None: nothing is proven.
        observer: Told of a proof that could not be run.
    """

    def __init__(self, prove: Prove | None, observer: Observer) -> None:
        self._prove, self._observer = prove, observer
        self._known: dict[str, Proof] = {}

    def of(self, candidate: Candidate) -> Proof | None:
        """The proof of a candidate, made now if it was not before."""
        if self._prove is None:
            return None
        if candidate.key not in self._known:
            self._observer.note(f"{candidate.describe()} is proven against the unsharded model")
            proof = self._known[candidate.key] = self._prove(candidate)
            if proof.why_missing:
                self._observer.note(f"not proven, {candidate.describe()}: {proof.why_missing}")
        return self._known[candidate.key]

    def why_wrong(self, candidate: Candidate) -> Failure | None:
        """The failure of a candidate that its proof refutes."""
        proof = self.of(candidate)
        return None if proof is None else why_wrong(proof)

    def id_of(self, candidate: Candidate) -> str | None:
        """The id of the proof of a candidate; None where nothing is proven or it could not be."""
        proof = self.of(candidate)
        return None if proof is None or proof.why_missing else proof.id
