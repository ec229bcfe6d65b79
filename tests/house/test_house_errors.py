"""Errors cross processes whole, and nothing swallows the ones it does not know."""

import ast
import importlib
import inspect
import pickle
from collections.abc import Iterator

import pytest
from house_sources import Source, product_sources

ERROR_MODULES = ("cptune.errors", "topology.errors")
BROAD = {"Exception", "BaseException"}
MAY_CATCH_ALL = "cptune.cluster.failures"  # makes a Failure of whatever a trial raised


class HintLostError(Exception):
    def __init__(self, message, *, hint=""):
        super().__init__(message)
        self.hint = hint

    def __reduce__(self):
        return type(self), self.args


class OneWayError(Exception):
    def __init__(self, message, *, hint):
        super().__init__(message)
        self.hint = hint


class GrowingMessageError(Exception):
    def __init__(self, message, *, hint=""):
        super().__init__(f"failed: {message}")
        self.hint = hint


def error_classes(module: str) -> list[type[BaseException]]:
    kinds = inspect.getmembers(importlib.import_module(module), inspect.isclass)
    return [k for _, k in kinds if issubclass(k, BaseException) and k.__module__ == module]


def what_pickle_loses(kind: type[BaseException]) -> str:
    error = kind("3 GPUs seen, 4 wanted", hint="lower cp to 2")
    try:
        copy = pickle.loads(pickle.dumps(error))
    except TypeError as exc:
        return f"does not come back: {exc}"
    for what, sent, came in (
        ("type", type(error), type(copy)),
        ("message", str(error), str(copy)),
        ("hint", "lower cp to 2", getattr(copy, "hint", None)),
        ("fields", vars(error), vars(copy)),
    ):
        if sent != came:
            return f"{what} was {sent!r}, came back as {came!r}"
    return "" if "3 GPUs seen, 4 wanted" in str(copy) else f"message became {copy}"


def is_broad(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Tuple):
        return any(map(is_broad, node.elts))
    return node is None or (isinstance(node, ast.Name) and node.id in BROAD)


def catch_alls(source: Source) -> Iterator[str]:
    """Handlers of everything, but for a `BaseException` that cleans up and raises again."""
    for node in ast.walk(source.tree):
        match node:
            case ast.ExceptHandler(
                type=ast.Name(id="BaseException"), body=[*_, ast.Raise(exc=None)]
            ):
                continue
            case ast.ExceptHandler(type=caught) if is_broad(caught):
                yield f"{source.path}:{node.lineno} catches everything"
            case ast.Call(
                func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=caught
            ) if any(map(is_broad, caught)):
                yield f"{source.path}:{node.lineno} suppresses everything"


@pytest.mark.parametrize("module", ERROR_MODULES)
def test_every_error_survives_pickle(module):
    kinds = error_classes(module)
    assert kinds
    assert {kind.__name__: lost for kind in kinds if (lost := what_pickle_loses(kind))} == {}


def test_an_error_that_pickle_breaks_is_found():
    assert "hint" in what_pickle_loses(HintLostError)
    assert "does not come back" in what_pickle_loses(OneWayError)
    assert "message" in what_pickle_loses(GrowingMessageError)


def test_only_the_maker_of_failures_catches_everything():
    sources = [s for s in product_sources() if s.name != MAY_CATCH_ALL]
    assert [line for source in sources for line in catch_alls(source)] == []


@pytest.mark.parametrize(
    "text",
    [
        "try: ...\nexcept Exception: ...",
        "try: ...\nexcept: ...",
        "try: ...\nexcept (ValueError, Exception) as exc: raise",
        "try: ...\nexcept BaseException: ...",
        "import contextlib\nwith contextlib.suppress(Exception): ...",
    ],
)
def test_a_catch_all_is_found(text):
    assert list(catch_alls(Source("cptune.a", text)))


def test_a_named_error_and_a_clean_up_are_not_catch_alls():
    text = "try: ...\nexcept OSError: ...\ntry: ...\nexcept BaseException:\n    act()\n    raise"
    assert list(catch_alls(Source("cptune.a", text))) == []
