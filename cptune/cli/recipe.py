"""`cptune recipe`: the life of a recipe after its sweep."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from cptune.cli.app import Format, app, end_on_signals
from cptune.printing import print_answer, say

recipe = App(name="recipe", help="The life of a recipe after its sweep.")
app.command(recipe)


@recipe.command
def requalify(
    file: Path,
    /,
    *,
    spec: Path | None = None,
    address: str = "local",
    format: Format = Format.TABLE,
) -> int:
    """Say what has changed since a recipe was found: each change forces a requalification.

    Compared are topology, versions, variables of the environment and the equivalence fixture, with
    SPEC also every field of model and workload. Ends with 1 when something has changed.

    Args:
        file: A recipe.json.
        spec: A sweep.toml of what is to be trained now; the recipe's own model if omitted.
        address: "local" looks at this machine; else at the nodes of a Ray cluster.
        format: How to print the result.
    """
    from cptune.domain.standing import Standing
    from cptune.report.requalify import requalify_answer, requalify_view
    from cptune.requalify import requalify as look_again
    from cptune.spec import load

    end_on_signals()
    found = look_again(file, spec=load(spec) if spec else None, address=address)
    print_answer(
        requalify_answer(found), as_json=format is Format.JSON, view=lambda _: requalify_view(found)
    )
    changed = [one.what for one in found if one.standing is Standing.CHANGED]
    if changed:
        say(f"requalify: {', '.join(changed)} changed; prove it again and measure it again")
    return 1 if changed else 0
