"""The parts of a recipe.json that follow from nothing else in it, and where two contents differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cptune.domain.proof import Proof, proof_from_json
from cptune.domain.recipe import CertificateEntry, Control
from cptune.recipe.nouns import read_environment, read_list, read_table

_FINGERPRINTS = ("convergence", "execution", "topology")


def told_parts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `Recipe` by name; what came later is empty in an older file.

    Raises:
        KeyError: when something is missing.
        TypeError: when something is of another kind.
        ValueError: when something is no legal value, or the proof says other than its checks.
        TopologyError: likewise, with the place.
    """
    return {
        "certificate": read_list(CertificateEntry, content["certificate"], path="certificate"),
        "controls": read_list(Control, content["controls"], path="controls"),
        "versions": read_table(content["versions"], path="versions"),
        "fingerprints": _fingerprints(content["fingerprints"]),
        "commands": tuple(content["commands"]),
        "expectation": read_table(content.get("expectation") or {}, path="expectation"),
        "proof": _proof(content.get("equivalence")),
        "environment": read_environment(content.get("environment")),
        "caveats": tuple(content.get("caveats") or ()),
        "run_id": read_table(content.get("run") or {}, path="run").get("id"),
    }


def differing(seen: object, wanted: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    """The places that both have and that differ, with both values; by name, then in order."""
    if isinstance(seen, dict) and isinstance(wanted, dict):
        for name in sorted(seen.keys() & wanted.keys()):
            yield from differing(seen[name], wanted[name], f"{path}.{name}".removeprefix("."))
    elif isinstance(seen, list) and isinstance(wanted, list) and len(seen) == len(wanted):
        for place, (one, other) in enumerate(zip(seen, wanted, strict=True)):
            yield from differing(one, other, f"{path}[{place}]")
    elif seen != wanted:
        yield path, seen, wanted


def _fingerprints(value: object) -> Mapping[str, str]:
    table = read_table(value, path="fingerprints")
    for name in _FINGERPRINTS:
        if not isinstance(table.get(name), str):
            raise TypeError(f"fingerprints.{name} | {table.get(name)!r}; wanted a hash")
    return table


def _proof(value: object) -> Proof | None:
    if value is None:
        return None
    try:
        return proof_from_json(read_table(value, path="equivalence"))
    except ValueError as exc:
        raise ValueError(f"equivalence | {exc}; its own checks say otherwise") from exc
