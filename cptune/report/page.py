"""A run as one page that needs nothing beside it: no network, and no scripts for its numbers.

Everything that comes from a run is text to the template, which escapes it. The policy of the page
lets no address be loaded, and no script run whose digest it does not name.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from importlib import resources
from math import isfinite
from typing import Any

import jinja2

from cptune.report.doubts import doubts_of
from cptune.report.page_measured import memory_section, prediction_section, speed_section
from cptune.report.page_parts import Section
from cptune.report.page_recipe import (
    badges,
    certificate_section,
    controls_section,
    headline,
    proof_section,
    recipe_section,
)
from cptune.report.page_record import again_section, origin_section, trials_section
from cptune.report.page_transfers import exposed_section, rings_section
from cptune.report.run import ReportedRun

#: In the order of the question: what to ship, why to believe it, what it costs, how to get it.
SECTIONS: tuple[Callable[[ReportedRun], Section], ...] = (
    recipe_section,
    certificate_section,
    controls_section,
    proof_section,
    memory_section,
    speed_section,
    exposed_section,
    rings_section,
    prediction_section,
    trials_section,
    origin_section,
    again_section,
)


def run_page(run: ReportedRun, *, script: str, at: str) -> str:
    """The page.

    Args:
        run: Read whole.
        script: The source of plotly.js; empty leaves the figures out and their tables in.
        at: When it was made, UTC, ISO 8601.
    """
    style, draw = _own("page.css"), _own("page.js")
    scripts = [_as_parsed(one) for one in (script, draw) if script]
    return _template().render(
        title=f"cptune: {run.directory.name}",
        run=run,
        at=at,
        headline=headline(run),
        badges=badges(run),
        doubts=doubts_of(run),
        sections=[section(run) for section in SECTIONS],
        style=style,
        scripts=scripts,
        policy=_policy(scripts),
    )


def _policy(scripts: list[str]) -> str:
    """What the page may load: nothing; and run: exactly these scripts."""
    digests = " ".join(f"'sha256-{_digest(one)}'" for one in scripts) or "'none'"
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _as_parsed(script: str) -> str:
    """A script as a browser reads it from a page, whose digest it compares."""
    assert "</script" not in script.lower(), "it would end its own element"
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _own(name: str) -> str:
    return resources.files("cptune.report").joinpath(name).read_text(encoding="utf-8")


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plot_json"] = _plot_json
    return environment.from_string(_own("page.html"))


def _plot_json(plot: dict[str, Any]) -> str:
    """Data that no text inside can end the element of."""
    return json.dumps(_finite(plot), allow_nan=False).replace("<", "\\u003c")


def _finite(value: object) -> object:
    """The same without what JSON has no word for: it draws no mark."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value
