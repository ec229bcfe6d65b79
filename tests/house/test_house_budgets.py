"""Sizes and names that keep a module readable in one sitting."""

import ast
from collections.abc import Iterator

from house_sources import ROOT, Source, product_sources

MAX_MODULE_LINES = 300
MAX_JOB_LINES = 40
MAX_FUNCTION_LINES = 40
BANNED_WORDS = {"utils", "util", "common", "helpers", "helper", "manager", "base", "core", "misc"}


def too_long_modules(source: Source) -> Iterator[str]:
    budget = MAX_JOB_LINES if source.name.startswith("jobs.") else MAX_MODULE_LINES
    if len(source.lines) > budget:
        yield f"{source.path}: {len(source.lines)} lines, budget {budget}"


def too_long_functions(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = body_lines(node)
            if lines > MAX_FUNCTION_LINES:
                yield f"{source.path}:{node.lineno} {node.name}: {lines} lines in its body"


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From the first statement after the docstring to the last, blank lines and comments too."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def drawer_names(source: Source) -> Iterator[str]:
    for part in source.name.split("."):
        if words := BANNED_WORDS & set(part.strip("_").split("_")):
            yield f"{source.path}: {', '.join(sorted(words))} says nothing about what is inside"


def function_of(lines: int) -> str:
    return 'def act():\n    """Act.\n\n    At length.\n    """\n' + "    act()\n" * lines


def test_modules_stay_within_their_budget():
    assert [line for source in product_sources() for line in too_long_modules(source)] == []


def test_module_budget_sees_one_line_too_many():
    assert list(too_long_modules(Source("cptune.a", "x = 1\n" * 300))) == []
    assert list(too_long_modules(Source("cptune.a", "x = 1\n" * 301)))
    assert list(too_long_modules(Source("jobs.a", "x = 1\n" * 41)))


def test_functions_stay_within_their_budget():
    assert [line for source in product_sources() for line in too_long_functions(source)] == []


def test_function_budget_counts_the_body_without_its_docstring():
    assert list(too_long_functions(Source("cptune.a", function_of(40)))) == []
    assert list(too_long_functions(Source("cptune.a", function_of(41))))


def test_no_module_is_named_like_a_drawer():
    assert [line for source in product_sources() for line in drawer_names(source)] == []


def test_drawer_names_are_found_alone_in_a_compound_and_as_a_package():
    assert list(drawer_names(Source("cptune.database", ""))) == []
    for name in ("cptune.utils", "cptune.gang_manager", "cptune._common", "cptune.core.mesh"):
        assert list(drawer_names(Source(name, ""))), name


def test_the_product_is_there_to_be_measured():
    assert (ROOT / "cptune").is_dir()
    assert len(product_sources("cptune")) > 1
