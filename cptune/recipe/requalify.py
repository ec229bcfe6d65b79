"""What would force a requalification: everything that a recipe was found under, then and now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from cptune.domain.candidate import candidate_from_axes
from cptune.domain.environment import RankEnvironment
from cptune.domain.recipe import RECIPE_SCHEMA
from cptune.domain.standing import Condition
from cptune.domain.workload import AttentionMask, ModelShape, Precision, Workload
from cptune.proof.fixture import proof_case

_NOT_SET = "not set"


def conditions_of(
    recipe: Mapping[str, Any],
    *,
    topology_hash: str,
    versions: Mapping[str, str],
    environment: RankEnvironment | None = None,
    model: ModelShape | None = None,
    workload: Workload | None = None,
) -> list[Condition]:
    """Everything that the recipe was found under, beside what there is now.

    Args:
        recipe: The content of recipe.json.
        topology_hash: Of the hardware as it is now.
        versions: Of the software, by name, likewise.
        environment: Of ranks as they are now; None: not known.
        model: That is to be trained now; None: the recipe's own.
        workload: Likewise.

    Raises:
        KeyError: when it lacks something.
        TypeError: when something of it is of another kind.
        ValueError: when something of it is no legal value.
    """
    return [
        *_training(recipe, model=model, workload=workload),
        Condition(
            what="topology",
            then=recipe["fingerprints"]["topology"],
            now=topology_hash,
        ),
        *_versions(recipe["versions"], versions),
        *_environment(recipe.get("environment"), environment),
        _fixture(recipe),
    ]


def check_schema(recipe: Mapping[str, Any]) -> None:
    """Refuse what is no recipe of this schema.

    Raises:
        ValueError: naming the schema that it has.
    """
    has_mesh = isinstance(recipe.get("mesh"), list)
    if recipe.get("schema") != RECIPE_SCHEMA or not has_mesh:
        seen = f"{recipe.get('schema')!r}" + ("" if has_mesh else " and mesh is missing")
        raise ValueError(f"schema is {seen}; wanted a recipe.json of schema {RECIPE_SCHEMA}")


def _training(
    recipe: Mapping[str, Any], *, model: ModelShape | None, workload: Workload | None
) -> Iterator[Condition]:
    then = dict(recipe["workload"])
    shape = then.pop("model")
    for prefix, old, new in (("model", shape, model), ("workload", then, workload)):
        if new is None:
            continue
        now = asdict(new)
        for name in sorted({*old, *now} - {"preset"}):
            yield Condition(
                what=f"{prefix}.{name}", then=_text(old.get(name)), now=_text(now.get(name))
            )


def _versions(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Condition]:
    for name in [*then, *(name for name in now if name not in then)]:
        yield Condition(
            what=name, then=then.get(name, "not installed"), now=now.get(name, "not installed")
        )


def _environment(
    then: Mapping[str, Any] | None, now: RankEnvironment | None
) -> Iterator[Condition]:
    if then is None or now is None:
        seen = None if then is None else _text(then["shared"])
        yield Condition(what="environment of the ranks", then=seen, now=None)
        return
    differing = {**then["differing"], **now.differing}
    for name in sorted({*then["shared"], *now.shared} - {*differing}):
        old, new = then["shared"].get(name, _NOT_SET), now.shared.get(name, _NOT_SET)
        yield Condition(what=name, then=old, now=new)
    for name in sorted(differing):  # where ranks differ, places have other names on other days
        old = then["differing"].get(name, then["shared"].get(name, _NOT_SET))
        yield Condition(what=f"{name}, by rank", then=_text(old), now=None)


def _fixture(recipe: Mapping[str, Any]) -> Condition:
    """What the layout was proven on, and what it would be proven on now."""
    proof = recipe.get("equivalence")
    content: dict[str, Any] = dict(recipe["workload"])
    shape = ModelShape(**content.pop("model"))
    content["mask"] = AttentionMask(content["mask"])
    content["precision"] = Precision(content["precision"])
    batch = Workload(**content)
    axes = {name: value for name, value in recipe["layout"].items() if name != "accumulation"}
    case = proof_case(candidate_from_axes(axes), model=shape, workload=batch)
    then = None if proof is None or not proof["passed"] else proof["fixture"]
    return Condition(what="equivalence fixture", then=then, now=case.digest)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
