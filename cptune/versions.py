"""Versions of the software in this process's environment."""

from __future__ import annotations

import platform
from importlib import metadata

_PACKAGES = ("cptune", "torch", "ray", "optuna", "numpy", "pyarrow", "flash-attn")


def installed_versions() -> dict[str, str]:
    """Versions of what a trial runs on; a package that is not installed is left out."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
