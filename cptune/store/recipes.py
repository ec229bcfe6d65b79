"""The recipe in its run directory: recipe.json for people, recipes.parquet for tables."""

from __future__ import annotations

import json
from pathlib import Path

from cptune.domain.recipe import Recipe
from cptune.store import schema
from cptune.store.files import write_durably
from cptune.store.ledger import decode, encode

RECIPE_FILE = "recipe.json"


def write_recipe(directory: Path, recipe: Recipe) -> Path:
    """Write recipe.json and recipes.parquet; returns the path of the former.

    Raises:
        LedgerError: when a file cannot be written.
    """
    text = json.dumps(recipe.to_json(), indent=2) + "\n"
    row = {
        "name": recipe.spec.name,
        "launcher": recipe.launcher.value,
        "candidate_key": recipe.candidate.key,
        **recipe.candidate.axes(),
        "certified": recipe.is_certified,
        "step_s": recipe.measurement.step_s,
        "tokens_per_s": recipe.measurement.tokens_per_s,
        "peak_allocated_bytes": recipe.measurement.peak_allocated_bytes,
        "exposed_share": recipe.measurement.exposed_share,
        "recipe_json": text,
    }
    write_durably(directory / "recipes.parquet", encode([row], schema.RECIPES))
    write_durably(directory / RECIPE_FILE, text.encode())
    return directory / RECIPE_FILE


def recipe_text_in_table(directory: Path) -> str | None:
    """What recipe.json was as recipes.parquet tells; None where there is no such table to ask.

    Raises:
        LedgerError: when it is there and cannot be read.
    """
    path = directory / "recipes.parquet"
    if not path.exists():
        return None
    rows = decode(path, schema.RECIPES)
    return rows[0]["recipe_json"] if rows else None


def remove_recipe(directory: Path) -> None:
    """Remove the recipe of an earlier end of the same run: what is there is always of now."""
    for name in (RECIPE_FILE, "recipes.parquet"):
        (directory / name).unlink(missing_ok=True)
