"""A recipe read from its file: strictly, so that what was cut, mixed or edited is refused by place.

`cptune recipe show`, `export`, `requalify` and `reproduce` all read it here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cptune.domain.launcher import LauncherName
from cptune.domain.recipe import Recipe
from cptune.domain.seal import DIGESTS, why_broken
from cptune.domain.study import SweepSpec
from cptune.domain.trial import Predicted
from cptune.errors import SpecError
from cptune.recipe.nouns import (
    read_candidate,
    read_measurement,
    read_noun,
    read_placement,
    read_reported,
    read_table,
)
from cptune.recipe.parts import differing, told_parts
from cptune.recipe.requalify import check_schema
from cptune.spec import from_tables
from cptune.store.recipes import RECIPE_FILE
from topology.errors import TopologyError
from topology.inputs import cannot_read

_HINT = "wanted the recipe.json of a run directory, as a sweep wrote it"
#: Parts of every recipe.json, and those that came later: a file without one is an older one.
_PARTS = (
    "name",
    "workload",
    "candidate_key",
    "layout",
    "mesh",
    "certificate",
    "certified",
    "controls",
    "measurement",
    "prediction",
    "objective",
    "versions",
    "fingerprints",
    "commands",
)
_LATER = (
    "ring_edges",
    "expectation",
    "equivalence",
    "environment",
    "caveats",
    "run",
    "launcher",
    "simulation",
    DIGESTS,
)
_MARGIN = "memory_margin"
#: Of a prediction, what follows from it and the measurement.
_ERRORS = ("step_error", "peak_error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A recipe and the content of its file."""

    path: Path
    recipe: Recipe
    content: Mapping[str, Any]


def read_recipe(path: Path) -> Kept:
    """Read a recipe.json, by its own path or that of its run directory.

    Raises:
        SpecError: when it cannot be read, is none, or is not as it was written, with the places.
    """
    path = path / RECIPE_FILE if path.is_dir() else path
    content = _read(path)
    problems = [*_why_other_parts(content), *why_broken(content)]
    if not problems:
        try:
            recipe = _recipe(content)
        except SpecError as exc:  # of the tables of its spec, a line each
            problems = str(exc).splitlines()
        except KeyError as exc:
            problems = [f"{exc.args[0]} | missing"]
        except (TopologyError, AttributeError, TypeError, ValueError, ZeroDivisionError) as exc:
            problems = [str(exc)]
        else:
            problems = list(_why_contradicting(content, recipe))
            if not problems:
                return Kept(path=path, recipe=recipe, content=content)
    raise SpecError("\n".join(f"{path}: {one}" for one in problems), hint=_HINT)


def refuse_simulated(kept: Kept) -> None:
    """Refuse a recipe that nothing ran for: it was found under no hardware.

    Raises:
        SpecError: naming the launcher that answered.
    """
    name = kept.recipe.launcher
    if name.is_simulated:
        raise SpecError(
            f"{kept.path} | of --launcher {name.value}: nothing ran; wanted one of real trials",
            hint="run the sweep with --launcher ray where it is to train",
        )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        check_schema(content if isinstance(content, dict) else {})
    except OSError as exc:
        raise SpecError(cannot_read(path, exc.strerror or str(exc))) from exc
    except (ValueError, RecursionError) as exc:
        raise SpecError(f"{path} is no recipe: {exc}", hint=_HINT) from exc
    return content


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"it holds {word}, which is no number of JSON")


def _why_other_parts(content: Mapping[str, Any]) -> list[str]:
    found = [f"{name} | missing" for name in _PARTS if name not in content]
    if DIGESTS in content:  # a part that has a digest and is not known here is of a later version
        return found
    known = {"schema", *_PARTS, *_LATER}
    return found + [f"{name} | unknown" for name in content if name not in known]


def _recipe(content: Mapping[str, Any]) -> Recipe:
    candidate = read_candidate(content["layout"])
    launcher = LauncherName(content.get("launcher", LauncherName.RAY))
    measurement = content["simulation" if launcher.is_simulated else "measurement"]
    return Recipe(
        spec=_spec(content),
        candidate=candidate,
        placement=read_placement(content["mesh"], candidate),
        measurement=read_measurement(measurement),
        told=read_reported(measurement, content.get("ring_edges")),
        predicted=_predicted(content["prediction"]),
        capacity_bytes=_whole(measurement["capacity_bytes"], "measurement.capacity_bytes"),
        launcher=launcher,
        **told_parts(content),
    )


def _spec(content: Mapping[str, Any]) -> SweepSpec:
    """What of the spec is kept: all of it in newer files, else what `show` needs."""
    workload = dict(read_table(content["workload"], path="workload"))
    objective = dict(read_table(content["objective"], path="objective"))
    run = read_table(content.get("run", {}), path="run")
    margin = objective.pop(_MARGIN)
    return from_tables(
        {
            "name": content["name"],
            "model": workload.pop("model"),
            "workload": workload,
            "cluster": run.get("cluster", {_MARGIN: margin}),
            "objective": objective,
            "budget": run.get("budget", {}),
            "search": {"seed": run["seed"]} if "seed" in run else {},
        }
    )


def _predicted(value: object) -> Predicted | None:
    if not value:
        return None
    return read_noun(Predicted, value, path="prediction", beside=_ERRORS)


def _whole(value: object, path: str) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{path} | {value!r}; wanted a whole number")
    return value


def _why_contradicting(content: Mapping[str, Any], recipe: Recipe) -> Iterator[str]:
    """Where the file says something else than follows from the rest of it."""
    made = json.loads(json.dumps(recipe.to_json()))
    del made[DIGESTS]
    for place, seen, wanted in differing(content, made):
        yield f"{place} | {seen!r}; wanted {wanted!r}, as follows from the rest of the file"
    proof, key = recipe.proof, recipe.candidate.key
    if proof is not None and proof.candidate_key != key:
        yield f"equivalence.candidate | {proof.candidate_key}; wanted {key}, as the layout"
