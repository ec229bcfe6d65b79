"""The names that other people may import: a change here is a change of the public surface."""

import ast
import importlib

import pytest
from house_sources import ROOT

# package -> its __all__; a new name is added here on purpose, a lost one breaks somebody
EXPORTED = {
    "cptune.attention": [
        "ContextParallel",
        "Mask",
        "Partition",
        "PassTraffic",
        "Pattern",
        "PeerTraffic",
        "Plan",
        "PlanBytes",
        "PlanFlop",
        "PlanPeak",
        "Sharding",
        "Strategy",
        "Traffic",
    ],
    "topology": [
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
    ],
}


def exported_names(text: str) -> list[str] | None:
    """The literal `__all__` of a module, or None where it has none."""
    for node in ast.parse(text).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=value)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value)
            ):
                return list(ast.literal_eval(value))
    return None


@pytest.mark.parametrize("package", EXPORTED)
def test_exported_names_are_pinned(package):
    init = ROOT / package.replace(".", "/") / "__init__.py"
    names = exported_names(init.read_text())
    assert names is not None, f"{package} has no literal __all__"
    assert sorted(names) == EXPORTED[package]
    module = importlib.import_module(package)
    assert [name for name in names if not hasattr(module, name)] == []


def test_exported_names_are_read_from_the_text():
    assert exported_names("x = 1\n__all__ = ['b', 'a']\n") == ["b", "a"]
    assert exported_names("__all__: list[str] = ['a']\n") == ["a"]
    assert exported_names("a = 1\n") is None
