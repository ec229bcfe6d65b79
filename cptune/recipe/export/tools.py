"""The other trainers and what they call things; from tools.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources


class ToolName(StrEnum):
    """Where a recipe may go."""

    MEGATRON = "megatron"
    MEGATRON_BRIDGE = "megatron-bridge"
    TORCHTITAN = "torchtitan"
    ACCELERATE = "accelerate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a value cannot be said, and the nearest that can."""

    nearest: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One trainer as it was in one version.

    Args:
        title: Its own spelling of its name.
        version: That was read.
        source: What of it was read.
        words: By axis and value of a recipe, the value there; a value that is absent has none.
        refused: By axis, for the values that are absent.
        most: Largest sizes, by axis.
    """

    title: str
    version: str
    source: str
    words: Mapping[str, Mapping[str, str]]
    refused: Mapping[str, Refusal]
    most: Mapping[str, int] = field(default_factory=dict)


@cache
def read_tools() -> Mapping[ToolName, Tool]:
    """Every trainer by its name; from tools.toml."""
    text = resources.files("cptune.recipe.export").joinpath("tools.toml").read_text("utf-8")
    return {
        ToolName(name): Tool(
            **row | {"refused": {axis: Refusal(**one) for axis, one in row["refused"].items()}}
        )
        for name, row in tomllib.loads(text).items()
    }
