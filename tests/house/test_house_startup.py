"""Importing is cheap: help is instant, and a heavy library loads only for the work it does."""

import json
import pkgutil
import resource
import subprocess
import sys

import pytest
from house_sources import ROOT

HELP_BUDGET_S = 0.4
HEAVY = ("torch", "ray")
LIGHT = ("topology", "cptune.cli", "cptune.domain", "cptune.predict", "cptune.report")
LIGHT += ("cptune.search", "cptune.store")
FLASH = ("flash_attn", "flash_attn_interface")

# records which of the names were asked for, installed or not, then runs the rest
WATCH = """
import sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            asked.add(name.split(".")[0])
asked = set()
sys.meta_path.insert(0, Watch())
try:
{code}
finally:
    import json
    print(json.dumps(sorted(asked)), file=sys.stderr)
"""


def imports_asked(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of the names a fresh Python tried to import while it ran the code."""
    indented = "\n".join(f"    {line}" for line in code.splitlines())
    ran = subprocess.run(
        [sys.executable, "-c", WATCH.format(names=names, code=indented)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stderr.splitlines()[-1])


def least_cpu_s(command: list[str], *, tries: int) -> float:
    """CPU seconds, which what else runs on the machine does not lengthen much."""
    return min(cpu_s(command) for _ in range(tries))


def cpu_s(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def modules_of(package: str) -> list[str]:
    """The package and every module in it; nothing where it does not exist."""
    path = ROOT / package.replace(".", "/")
    if path.with_suffix(".py").exists():
        return [package]
    if not (path / "__init__.py").exists():
        return []
    inside = pkgutil.walk_packages([str(path)], f"{package}.", onerror=lambda _: None)
    return [package, *(m.name for m in inside if not m.name.endswith("__main__"))]


def test_help_is_instant():
    run_help = "import sys; from cptune.cli import main; sys.argv = ['cptune', '--help']; main()"
    assert least_cpu_s([sys.executable, "-c", run_help], tries=3) < HELP_BUDGET_S


def test_the_stopwatch_sees_a_slow_start():
    busy = f"import time\nwhile time.process_time() < {HELP_BUDGET_S}: pass"
    assert least_cpu_s([sys.executable, "-c", busy], tries=1) > HELP_BUDGET_S


def test_help_asks_for_no_heavy_library():
    code = (
        "sys.argv = ['cptune', '--help']\n"
        "from cptune.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as exit:\n    assert not exit.code, exit.code"
    )
    assert imports_asked(code, HEAVY) == []


@pytest.mark.parametrize("package", LIGHT)
def test_a_light_package_asks_for_no_heavy_library(package):
    modules = modules_of(package)
    assert modules, f"{package} is not there"
    assert imports_asked("\n".join(f"import {m}" for m in modules), HEAVY) == []


def test_attention_asks_for_no_flash_attn_until_it_is_chosen():
    assert imports_asked("import cptune.attention", FLASH) == []


def test_an_import_is_seen_even_where_its_library_is_missing():
    code = "try:\n    import flash_attn.layers\nexcept ImportError:\n    pass"
    assert imports_asked(code, FLASH) == ["flash_attn"]
    assert imports_asked("import json", FLASH) == []
