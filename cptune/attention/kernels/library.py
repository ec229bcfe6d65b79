"""Loads a kernel's library when it is first run, and says why it cannot.

Nothing is imported before: `import cptune.attention` costs no CUDA library.
"""

from collections.abc import Callable
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
