"""Loads a kernel's library when it is first run, and says why it cannot.

Nothing is imported before: `import cptune.attention` costs no CUDA library.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Load = Callable[[], Any]  # the module of a library, whose names carry no types


def why_not_loaded(load: Load, *, package: str) -> str | None:
    """Why `load` fails, in one line, or None."""
    try:
        load()
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == package.split(".")[0]:
            return f"{package} is not installed"
        return f"{package} misses {error.name}"
    except (ImportError, OSError, AttributeError) as error:
        return f"{package} does not load: {error}"
    return None


def why_unusable(load: Load, *, package: str, calls: Mapping[str, Sequence[str]]) -> str | None:
    """Why a library cannot be called as an adapter calls it, in one line, or None.

    Args:
        load: Imports it.
        package: Its name.
        calls: Names of the arguments that each of its functions is given.
    """
    if reason := why_not_loaded(load, package=package):
        return reason
    library = load()
    reasons = (_why_other(library, name, given=given) for name, given in calls.items())
    found = next((reason for reason in reasons if reason), None)
    return found and f"{package} is of another version: {found}"


def _why_other(library: Any, name: str, *, given: Sequence[str]) -> str | None:  # noqa: ANN401
    function = getattr(library, name, None)
    if function is None:
        return f"it has no {name}"
    # An operator keeps the function that it was made of, and shows a signature of its own.
    taken = inspect.signature(getattr(function, "_init_fn", function)).parameters
    if any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        return None  # it does not say
    lacking = [one for one in given if one not in taken]
    if lacking:
        return f"{name} has no {', '.join(lacking)}"
    unmet = [key for key, one in taken.items() if key not in given and one.default is one.empty]
    return f"{name} wants {', '.join(unmet)} too" if unmet else None
