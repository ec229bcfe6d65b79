"""What every house test reads: the product's modules and the files that belong to the project."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("cptune", "topology", "jobs")


@dataclass(frozen=True)
class Source:
    """One module, from a file or from the text of a sample."""

    name: str  # dotted
    text: str
    path: str = "sample.py"

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def product_sources(*packages: str) -> list[Source]:
    """Every module of the product, or of the packages named."""
    paths = [p for package in packages or PRODUCT for p in sorted((ROOT / package).rglob("*.py"))]
    return [
        Source(module_name(path.relative_to(ROOT)), path.read_text(), str(path.relative_to(ROOT)))
        for path in paths
    ]


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every absolute import, inside functions and by name too."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module


def project_files() -> list[str]:
    """Paths that git knows, and new ones that it does not ignore; posix, relative to the root."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the project is unknown")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return sorted({p for p in listed.split("\0") if p and (ROOT / p).is_file()})


def written_files() -> list[str]:
    """The files whose text is ours: code, prose and settings, not data recorded by others."""
    suffixes = {".py", ".md", ".toml", ".txt", ".sh", ".yaml", ".yml", ".html", ""}
    return [
        path
        for path in project_files()
        if Path(path).suffix in suffixes and (path.endswith(".py") or not path.startswith("tests/"))
    ]
