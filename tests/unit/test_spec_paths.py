"""Every path in a spec is relative to the spec, wherever the command is called."""

import json
from itertools import combinations

import pytest
from fakes import sweep_spec

from cptune.cli import run
from cptune.opening import open_run
from cptune.search.prepare import prepare
from cptune.spec import load, write_toml
from topology.nouns import Gpu, Link, LinkKind, Network, Node, Tier, TierKind, Topology

TEXT = """
[model]
preset = "llama3-8b"
[workload]
seq_len = 8192
global_batch_seqs = 16
mask = "document"
lengths = "data/lengths.txt"
[cluster]
topology = "data/cluster.json"
[storage]
study = "sqlite:///data/study.db"
"""


def node(name, gpus):
    named = tuple(Gpu(index=at, name="NVIDIA H100 80GB HBM3") for at in range(gpus))
    links = tuple(Link(a=a, b=b, kind=LinkKind.SYS) for a, b in combinations(range(gpus), 2))
    return Node(name=name, gpus=named, nics=(), gpu_links=links)


def inventory(*nodes, hosts=()):
    tiers = (Tier(name="s", kind=TierKind.SWITCH, parent=None, nodes=hosts),) if hosts else ()
    found = Topology(source="test", nodes=nodes, network=Network(tiers=tiers))
    return json.dumps(found.to_json())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A spec and what it names, and a working directory somewhere else."""
    (tmp_path / "specs" / "data").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "specs" / "data" / "lengths.txt").write_text("100\n4000\n")
    (tmp_path / "specs" / "data" / "cluster.json").write_text(inventory(node("a", 8)))
    (tmp_path / "specs" / "s.toml").write_text(TEXT)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "specs"


def test_all_of_them_are_kept_whole(folder):
    found = load(folder / "s.toml")

    assert found.workload.lengths == str(folder / "data" / "lengths.txt")
    assert found.cluster.topology == str(folder / "data" / "cluster.json")
    assert found.storage.study == f"sqlite:///{folder}/data/study.db"
    (folder.parent / "again.toml").write_text(write_toml(found))
    assert load(folder.parent / "again.toml") == found


@pytest.mark.parametrize(
    "study",
    [
        "sqlite",
        "journal",
        "sqlite:///:memory:",
        "sqlite:////x/y.db",
        "postgresql://h/d",
        "sqlite://",
    ],
)
def test_a_study_that_is_no_relative_file_stays_as_it_is(folder, study):
    (folder / "s.toml").write_text(TEXT.replace("sqlite:///data/study.db", study))
    assert load(folder / "s.toml").storage.study == study


def test_a_plan_reads_them_from_there(folder, capsys):
    assert run(["plan", "../specs/s.toml", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["straggler"]["factor"] >= 1


def test_an_inventory_that_is_not_there_names_where_it_was_looked_for(folder, capsys):
    (folder / "s.toml").write_text(TEXT.replace("cluster.json", "clustr.json"))

    assert run(["plan", "../specs/s.toml"]) == 2

    err = capsys.readouterr().err
    assert f"cluster.topology | cannot read {folder}/data/clustr.json: No such file" in err
    assert f"did you mean '{folder}/data/cluster.json'?" in err
    assert "relative to the folder of the spec" in err


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_more_ranks_than_the_inventory_has_gpus_are_refused_with_both(folder, command, capsys):
    (folder / "s.toml").write_text(TEXT.replace("[cluster]", "[cluster]\nworld_size = 64"))

    assert run([command, str(folder / "s.toml")]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    said = f"64 ranks, and {folder}/data/cluster.json lists 8 GPUs; nearest legal: 8"
    assert f"cluster.world_size | {said}" in err


@pytest.mark.parametrize(
    ("found", "gpu"),
    [
        (inventory(node("a", 8), hosts=("a", "b")), '"H100-SXM-80GB"'),  # nobody counted those of b
        (inventory(node("a", 0)), '"H100-SXM-80GB"'),
        (inventory(node("a", 2)), '"cpu"'),
    ],
)
def test_what_an_inventory_does_not_count_bounds_nothing(folder, found, gpu):
    (folder / "data" / "cluster.json").write_text(found)
    cluster = f"[cluster]\nworld_size = 16\ngpu = {gpu}"
    (folder / "s.toml").write_text(TEXT.replace("[cluster]", cluster))

    assert run(["plan", str(folder / "s.toml"), "--format", "json"]) in (0, 1)


def test_a_node_without_gpus_lends_none_to_the_others(folder):
    (folder / "data" / "cluster.json").write_text(inventory(node("head", 0), node("a", 8)))
    (folder / "s.toml").write_text(TEXT.replace("[cluster]", "[cluster]\nworld_size = 16"))

    assert run(["plan", str(folder / "s.toml")]) == 2


def test_a_resume_follows_an_inventory_that_moved(tmp_path):
    """Trials do not read it."""
    cluster = '[cluster]\nworld_size = 4\ngpu = "cpu"\ntopology = "t.json"\n'
    kept = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "s.toml").write_text(write_toml(sweep_spec(cluster)))
        kept.append(prepare(load(tmp_path / name / "s.toml"), None).spec)
    assert kept[0] != kept[1]

    for spec, resume in zip(kept, (False, True), strict=True):
        open_run(spec, tmp_path / "runs" / "fake", resume=resume).close()
