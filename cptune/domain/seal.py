"""A digest of each part of a kept document, so that an edit is found and its place is named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

DIGESTS = "digests"
_CHARACTERS = 16  # of SHA-256: against slips and edits, not against a forger


def sealed(content: Mapping[str, object]) -> dict[str, object]:
    """The document with `digests`, one for each of its parts."""
    return {**content, DIGESTS: {name: _digest(part) for name, part in content.items()}}


def why_broken(document: Mapping[str, object]) -> list[str]:
    """Every part that is not as it was sealed; none of a document that has no digests."""
    if DIGESTS not in document:
        return []
    told = document[DIGESTS]
    if not isinstance(told, Mapping):
        return [f"{DIGESTS} | no table"]
    parts = {name: part for name, part in document.items() if name != DIGESTS}
    return [
        *(f"{name} | missing" for name in told if name not in parts),
        *(f"{name} | added after it was written" for name in parts if name not in told),
        *(
            f"{name} | edited after it was written: its digest is {_digest(part)}, not {told[name]}"
            for name, part in parts.items()
            if name in told and told[name] != _digest(part)
        ),
    ]


def _digest(part: object) -> str:
    text = json.dumps(part, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_CHARACTERS]
