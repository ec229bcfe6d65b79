"""The proofs of a run: one JSON file a candidate, whole or absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cptune.domain.proof import Proof, proof_from_json
from cptune.errors import LedgerError
from cptune.store.files import remove_temporaries, sha256_of, write_durably

PROOFS = "proofs"


def tidy_proofs(directory: Path) -> None:
    """Remove what a driver that was killed while it wrote one left under a temporary name."""
    remove_temporaries(directory / PROOFS)


def write_proof(directory: Path, proof: Proof, *, execution: str) -> None:
    """Keep a proof, with the fingerprint of what executed it.

    Raises:
        LedgerError: when the file cannot be written.
    """
    path = _path(directory, proof.candidate_key)
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as exc:
        raise LedgerError(f"cannot make {path.parent}: {exc.strerror}") from exc
    content: dict[str, object] = {"execution_fingerprint": execution, **proof.to_json()}
    content["sha256"] = _digest(content)
    write_durably(path, (json.dumps(content, indent=1) + "\n").encode())


def read_proof(directory: Path, candidate_key: str, *, execution: str) -> Proof | None:
    """The kept proof of a candidate; None where there is none, or other software executed it.

    A file that is cut or altered is no proof.
    """
    try:
        content = json.loads(_path(directory, candidate_key).read_text(encoding="utf-8"))
        if content.pop("sha256") != _digest(content):
            return None
        if content["execution_fingerprint"] != execution:
            return None
        proof = proof_from_json(content)
    except (OSError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None
    return proof if proof.candidate_key == candidate_key else None


def _digest(content: Mapping[str, object]) -> str:
    """Of everything that a file says, so that no figure of it can be another one unseen."""
    return sha256_of(json.dumps(content, sort_keys=True).encode())


def _path(directory: Path, candidate_key: str) -> Path:
    return directory / PROOFS / f"{candidate_key}.json"
