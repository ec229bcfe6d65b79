"""How results reach people and scripts: tables or JSON on stdout, messages on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType

from cptune.errors import CptuneError
from cptune.report import summary, tables

if TYPE_CHECKING:
    from cptune.domain.recipe import Recipe
    from cptune.searching import Sweep

_ESCAPED = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}
_PIPE_WIDTH = 120  # columns, where no terminal says how wide it is


def console() -> Console:
    """Stdout, as wide as the terminal.

    Raises:
        CptuneError: when it is closed.
    """
    _check_open()
    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = _PIPE_WIDTH
    return out


def print_answer(
    answer: dict[str, object],
    *,
    as_json: bool,
    view: Callable[[dict[str, object]], RenderableType],
) -> None:
    """An answer as JSON, or as what `view` makes of it.

    A terminal too narrow for a table folds its lines; rich would leave columns out.
    """
    if as_json:
        print_json(answer)
        return
    out = console()
    out.width = max(out.width, _PIPE_WIDTH)
    out.print(view(answer), soft_wrap=True)


def print_json(answer: Mapping[str, object]) -> None:
    """JSON to stdout, alone.

    Raises:
        CptuneError: when it is closed.
    """
    print_text(json.dumps(answer, indent=2) + "\n")


def _check_open() -> None:
    if sys.stdout is None:  # the shell closed it, and rich would print nowhere
        raise CptuneError("cannot print: standard output is closed")


def sweep_json(done: Sweep) -> dict[str, object]:
    """What `cptune sweep --format json` prints."""
    return {
        "run": str(done.directory),
        "launcher": done.launcher.value,
        "recipe": None if done.recipe is None else done.recipe.to_json(),
        "trials": [
            {
                "number": verdict.trial.number,
                "candidate_key": verdict.trial.candidate.key,
                "outcome": verdict.trial.kind.value,
                "verdict": verdict.word,
                "reason": verdict.reason,
            }
            for verdict in done.choice.verdicts
        ],
        "legal": len(done.space.candidates),
        "excluded": dict(done.space.excluded),
    }


def print_sweep(done: Sweep) -> None:
    """The trials, why each of the others is not the recipe, the recipe and its certificate."""
    out = console()
    judged = [
        summary.Judged(
            trial=verdict.trial,
            word=verdict.word,
            reason=verdict.reason,
            is_nearest=verdict is done.choice.nearest,
        )
        for verdict in sorted(done.choice.verdicts, key=lambda one: one.trial.number)
    ]
    how = f" ({done.launcher.success.value}, nothing ran)" if done.launcher.is_simulated else ""
    out.print(tables.trials_table(judged, how=how))
    sections = [("Why not", summary.control_lines(judged))]
    if done.recipe is None:
        sections += [("No recipe", summary.nothing_fits_lines(judged))]
    else:
        sections += summary.recipe_sections(done.recipe)
    sections += [
        (
            "Next",
            [
                *summary.where_lines(
                    done.directory,
                    has_recipe=done.recipe is not None,
                    program=program,
                    storage=done.spec.storage,
                    has_page=(done.directory / "report.html").exists(),
                ),
                summary.again_line(done.directory, program=program, flags=done.flags),
            ],
        )
    ]
    _print_sections(sections)


def print_recipe(recipe: Recipe) -> None:
    """The recipe and its certificate, as the sweep that found it printed them."""
    _print_sections(summary.recipe_sections(recipe))


def _print_sections(sections: Iterable[tuple[str, Sequence[str]]]) -> None:
    out = console()
    for title, lines in sections:
        shown = [printable(line) for line in lines]
        out.print(tables.section(title, shown), soft_wrap=True)


def print_text(text: str) -> None:
    """A text as it is, to stdout alone.

    Raises:
        CptuneError: when it is closed.
    """
    _check_open()
    sys.stdout.write(text)
    sys.stdout.flush()


def program(name: str) -> str:
    """How to call a program of this environment: by name when PATH has it, else by its path."""
    ours = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).resolve() == ours.resolve():
        return name
    return os.path.relpath(ours) if ours.is_relative_to(Path.cwd()) else str(ours)


def printable(text: str) -> str:
    """A text that no terminal obeys: files and messages of others may hold escape codes."""
    return text.translate(_ESCAPED)


def say(message: str) -> None:
    """A message for people, on stderr."""
    if sys.stderr is not None:  # the shell closed it: the exit code is all that is left
        sys.stderr.write(printable(message) + "\n")
