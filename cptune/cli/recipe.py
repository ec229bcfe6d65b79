"""`cptune recipe`: the life of a recipe after its sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from cptune.cli.app import Format, app, end_on_signals
from cptune.cli.outputs import check_outputs
from cptune.cli.runs import files_of_run
from cptune.printing import print_answer, print_json, print_recipe, print_text, say
from cptune.recipe.export.tools import ToolName

recipe = App(name="recipe", help="The life of a recipe after its sweep.")
app.command(recipe)


@recipe.command
def show(file: Path, /, *, format: Format = Format.TABLE) -> int:
    """Show a recipe and its certificate, as its sweep printed them, from its file alone.

    A file that is not as the sweep wrote it is refused, with the place.

    Args:
        file: A recipe.json, or its run directory.
        format: How to print it; json is the content of the file.
    """
    from cptune.kept import read_recipe

    kept = read_recipe(file)
    if format is Format.JSON:
        print_json(kept.content)
    else:
        print_recipe(kept.recipe)
    return 0


@recipe.command
def export(file: Path, /, *, to: ToolName, out: Path | None = None) -> int:
    """Say a recipe in the words of another trainer, ready to paste.

    Ends with 1 where the other cannot say it: every reason is named, with the nearest that it can.

    Args:
        file: A recipe.json, or its run directory.
        to: The other trainer: flags of Megatron-LM, a function over a configuration of
            Megatron-Bridge or torchtitan, a configuration file of Accelerate.
        out: A file to write it to; standard output if omitted.
    """
    from cptune.kept import read_recipe
    from cptune.recipe.export.text import export_text
    from cptune.store.files import write_durably

    kept = read_recipe(file)
    check_outputs({"--out": out}, inputs=files_of_run(kept.path.parent) or [kept.path])
    text = export_text(kept.recipe, to)
    if out is None:
        print_text(text)
    else:
        write_durably(out, text.encode())
        say(f"wrote {out}")
    return 0


@recipe.command
def reproduce(
    file: Path,
    /,
    *,
    runs: Path = Path("runs"),
    name: str | None = None,
    changed: Annotated[bool, Parameter(negative=())] = False,
    address: str = "local",
    format: Format = Format.TABLE,
) -> int:
    """Run a recipe again, alone and from its file, and compare every figure.

    It is requalified first, and its layout proven again. Ends with 1 when a condition has changed
    and --changed was not given, or when a figure differs.

    Args:
        file: A recipe.json, or its run directory.
        runs: Where the run directory is made.
        name: Name of the run; that of the recipe with -again if omitted.
        changed: Go on where topology, versions or environment have changed: what the mathematics
            gives is judged, time and memory are shown and not judged.
        address: "local" starts a Ray on this machine; else the address of a Ray cluster.
        format: How to print the result.
    """
    from cptune.report.observers import Terminal
    from cptune.report.reproduce import reproduce_answer, reproduce_view
    from cptune.reproduce import reproduce as run_again

    end_on_signals()
    terminal = Terminal()
    try:
        found = run_again(
            file, runs=runs, observer=terminal, address=address, name=name, changed=changed
        )
    finally:
        terminal.close()
    run = None if found.run is None else str(found.run)
    print_answer(
        reproduce_answer(found.conditions, found.rows, run=run, reproduced=found.reproduced),
        as_json=format is Format.JSON,
        view=lambda _: reproduce_view(found.conditions, found.rows),
    )
    say(found.summary)
    return 0 if found.reproduced else 1


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
        file: A recipe.json, or its run directory.
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
    unknown = [one.what for one in found if one.standing is Standing.UNKNOWN]
    if unknown:
        say(f"requalify: not known then or now, and so forces nothing: {', '.join(unknown)}")
    changed = [one.what for one in found if one.standing is Standing.CHANGED]
    if changed:
        say(f"requalify: {', '.join(changed)} changed; prove it again and measure it again")
    return 1 if changed else 0
