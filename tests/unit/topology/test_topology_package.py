"""What the package exports, and what importing it costs."""

import subprocess
import sys
from pathlib import Path

import topology

ROOT = Path(__file__).parents[3]


def test_exported_names_are_the_nouns_and_the_error():
    assert sorted(topology.__all__) == [
        "Edge",
        "Gpu",
        "GpuNic",
        "Link",
        "LinkKind",
        "Network",
        "Nic",
        "Node",
        "Tier",
        "TierKind",
        "Topology",
        "TopologyError",
    ]
    assert all(hasattr(topology, name) for name in topology.__all__)


def test_importing_the_command_imports_neither_pynvml_nor_anything_foreign():
    script = (
        "import sys; before = set(sys.modules); import topology.cli;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "['topology']"
