"""One door per foreign library: only the module that translates its errors may import it."""

import sys
from collections.abc import Iterator

import pytest
from house_sources import PRODUCT, Source, imported_modules, product_sources

# library -> the modules (with what is inside them) that may import it
DOORS = {
    "cyclopts": ("cptune.cli",),
    "flash_attn": ("cptune.attention.kernels",),
    "flash_attn_interface": ("cptune.attention.kernels",),
    "jinja2": ("cptune.report",),
    "numpy": ("cptune",),
    "optuna": ("cptune.search.sampler",),
    "plotly": ("cptune.report.figures",),
    "pyarrow": ("cptune.store",),
    "pydantic": ("cptune.spec",),
    "pynvml": ("topology.nvml",),
    "ray": ("cptune.cluster",),
    "rich": ("cptune.printing", "cptune.report"),
    "sqlalchemy": ("cptune.search.sampler",),  # optuna's storage raises its errors
    "tomli_w": ("cptune.spec",),
    "torch": ("cptune.attention", "cptune.balance", "cptune.bench", "cptune.proof"),
}
# who may import whom among our own: the layers say the rest
OWN = {"cptune": ("cptune", "jobs"), "topology": ("topology", "cptune", "jobs"), "jobs": ("jobs",)}


def wrong_doors(source: Source) -> Iterator[str]:
    for line, module in imported_modules(source.tree):
        library = module.split(".")[0]
        if library in sys.stdlib_module_names:
            continue
        allowed = {**DOORS, **OWN}.get(library)
        if allowed is None:
            yield f"{source.path}:{line} {library} has no door: choose one in {__name__}"
        elif not any(f"{source.name}.".startswith(f"{door}.") for door in allowed):
            yield f"{source.path}:{line} {library} belongs to {' or '.join(allowed)}"


def test_each_library_is_imported_through_its_door():
    assert [line for source in product_sources() for line in wrong_doors(source)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("topology.sysfs", "import pynvml"),
        ("cptune.search.space", "from optuna.trial import Trial"),
        ("cptune.sweep", "def run():\n    import ray"),
        ("cptune.report.page", "import plotly.graph_objects as go"),
        ("cptune.attention.merge", "try:\n    from flash_attn import f\nexcept ImportError: ..."),
        ("cptune.predict", "import importlib\ntorch = importlib.import_module('torch')"),
        ("cptune.specimen", "import pydantic"),
        ("cptune.sweep", "import a_new_library"),
        ("topology.graph", "import numpy"),
        ("topology.cli", "from cptune.errors import CptuneError"),
    ],
)
def test_a_side_door_is_found(name, text):
    assert list(wrong_doors(Source(name, text)))


def test_the_door_itself_and_the_standard_library_are_open():
    text = "import json\nimport pydantic\nfrom cptune.domain import Workload\nfrom . import near"
    assert list(wrong_doors(Source("cptune.spec", text))) == []
    assert list(wrong_doors(Source("cptune.report.figures", "import plotly"))) == []
    assert set(PRODUCT) == set(OWN)
