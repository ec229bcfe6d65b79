"""The layers contract in pyproject.toml names everything there is, and a broken one is seen."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from house_sources import PRODUCT, ROOT

PYPROJECT = (ROOT / "pyproject.toml").read_text()
LINTER = tomllib.loads(PYPROJECT)["tool"]["importlinter"]


def layer_of() -> dict[str, int]:
    """The module named in the contract -> its height, the bottom being the largest number."""
    [contract] = [c for c in LINTER["contracts"] if c["type"] == "layers"]
    return {
        name.strip(" ()"): height
        for height, layer in enumerate(contract["layers"])
        for name in re.split(r"[|:]", layer)
    }


def children(package: Path) -> set[str]:
    """Modules and packages right below a package; a folder without Python does not count."""
    names = {p.stem for p in package.glob("*.py") if p.name != "__init__.py"}
    names |= {p.name for p in package.iterdir() if p.is_dir() and any(p.rglob("*.py"))}
    return {f"{package.name}.{name}" for name in names}


def lint_in(folder: Path, *, upward: bool) -> subprocess.CompletedProcess[str]:
    """Run the project's own contract over a sample of two modules, the lower of which may cheat."""
    for package in ("cptune", "topology"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    (folder / "cptune" / "sweep.py").write_text("import cptune.domain\n")
    (folder / "cptune" / "domain.py").write_text("import cptune.sweep\n" if upward else "")
    (folder / "pyproject.toml").write_text(PYPROJECT.replace('"topology", "jobs"]', '"topology"]'))
    linter = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [linter, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_import_linter_reads_every_product_package():
    there = {package for package in PRODUCT if any((ROOT / package).glob("*.py"))}
    assert set(LINTER["root_packages"]) == there, "make root_packages in pyproject.toml say so"


def test_every_module_of_cptune_has_a_layer():
    assert children(ROOT / "cptune") - set(layer_of()) == set()


def test_a_module_without_a_layer_is_seen(tmp_path):
    package = tmp_path / "cptune"
    (package / "attic" / "deep").mkdir(parents=True)
    (package / "empty").mkdir()
    (package / "attic" / "deep" / "old.py").touch()
    (package / "__init__.py").touch()
    (package / "stray.py").touch()
    assert children(package) == {"cptune.attic", "cptune.stray"}


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("jobs", "cptune.cli"),
        ("cptune.cli", "cptune.sweep"),
        ("cptune.sweep", "cptune.cluster"),
        ("cptune.spec", "cptune.balance"),
        ("cptune.proof", "cptune.bench"),
        ("cptune.bench", "cptune.attention"),
        ("cptune.attention", "cptune.predict"),
        ("cptune.predict", "cptune.seams"),
        ("cptune.seams", "cptune.domain"),
        ("cptune.domain", "cptune.errors"),
        ("cptune.logs", "topology"),
    ],
)
def test_the_order_of_layers_is_the_designs(above, below):
    assert layer_of()[above] < layer_of()[below]


def test_an_upward_import_breaks_the_contract(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "broken").mkdir()
    kept = lint_in(tmp_path / "kept", upward=False)
    broken = lint_in(tmp_path / "broken", upward=True)
    assert (kept.returncode, broken.returncode) == (0, 1), kept.stdout + broken.stdout
    assert "cptune.domain is not allowed to import cptune.sweep" in broken.stdout
