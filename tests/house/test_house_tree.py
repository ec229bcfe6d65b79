"""The tree in README.md is the real tree: nothing missing, nothing gone, each with its phrase."""

import re
from pathlib import PurePosixPath

from house_sources import ROOT, project_files

UNLISTED = {".gitignore", "__init__.py", "__main__.py", "py.typed"}
HEADING = "## The tree"


def listed_tree(readme: str) -> dict[str, str]:
    """The lines `path  phrase` of the first fenced block after the heading; folders end in /."""
    block = re.search(rf"^{HEADING}$.*?^```\w*\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert block, f"README.md has no fenced block after '{HEADING}'"
    lines = [line.strip() for line in block[1].splitlines() if line.strip()]
    return {path: phrase.strip() for path, _, phrase in (line.partition("  ") for line in lines)}


def real_tree(files: list[str]) -> set[str]:
    """Every file and folder at most two levels deep; what lies deeper is told by its folder."""
    tree = set()
    for path in map(PurePosixPath, files):
        tree |= {f"{folder}/" for folder in path.parents if 1 <= len(folder.parts) <= 2}
        if len(path.parts) <= 2 and path.name not in UNLISTED:
            tree.add(str(path))
    return tree


def differences(readme: str, files: list[str]) -> list[str]:
    listed = listed_tree(readme)
    folders = {f"{folder}/" for path in files for folder in PurePosixPath(path).parents}
    return [
        *(f"not in README.md: {path}" for path in sorted(real_tree(files) - set(listed))),
        *(f"only in README.md: {path}" for path in sorted(set(listed) - set(files) - folders)),
        *(f"no phrase: {path}" for path, phrase in listed.items() if not phrase),
    ]


def test_the_tree_in_the_readme_is_the_real_one():
    assert differences((ROOT / "README.md").read_text(), project_files()) == []


def test_a_stale_tree_is_found():
    readme = f"# a\n\n{HEADING}\n\n```\na/        x\na/old.py  y\na/b/c.py\n```\n"
    files = ["a/__init__.py", "a/new.py", "a/b/c.py", "a/b/d.py"]
    assert differences(readme, files) == [
        "not in README.md: a/b/",
        "not in README.md: a/new.py",
        "only in README.md: a/old.py",
        "no phrase: a/b/c.py",
    ]


def test_a_true_tree_passes_and_deeper_files_may_be_listed():
    readme = f"{HEADING}\n```text\na/        x\na/b/      y\na/b/c.py  the heart of it\n```\n"
    assert differences(readme, ["a/__init__.py", "a/b/c.py", ".gitignore"]) == []
