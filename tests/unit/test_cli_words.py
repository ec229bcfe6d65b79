"""A word out of a closed set that is wrong: exit 2, the value, and the nearest legal one."""

import json

import pytest
from fakes import sweep_spec

from cptune.cli import run
from cptune.spec import write_toml

SPEC = write_toml(sweep_spec('[cluster]\nworld_size = 4\ngpu = "cpu"\n'))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a file of lengths."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.csv").write_text("length\n5\n")
    (tmp_path / "lengths.jsonl").write_text('{"size": 5}\n')
    return tmp_path


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["--lengths", "prolog"], "did you mean 'prolong'?"),
        (["--lengths", "log-normal(mean=3, sigma=1)"], "did you mean 'lognormal'?"),
        (["--lengths", "lenghts.csv"], "did you mean 'lengths.csv'?"),
        (["--lengths", "?"], "nearest legal: "),
        (["--lengths", "length.csv"], "did you mean 'lengths.csv'?"),
        (["--lengths", "lengths.csv", "--column", "lenght"], "did you mean 'length'?"),
        (["--lengths", "lengths.jsonl", "--column", "sise"], "did you mean 'size'?"),
        (["--layers", "ful=1,window=2"], "did you mean 'full'?"),
        (["--model", "llama3"], "did you mean 'llama3-8b'?"),
        (["--model", "?"], "nearest legal: "),
        (["--packing", "first_fitt"], "did you mean 'first-fit'?"),
        (["--packing", "best"], "nearest legal: "),
        (["--split", "zig"], "did you mean 'zigzag'?"),
        (["--format", "yaml"], "nearest legal: "),
    ],
)
def test_balance_names_the_nearest(folder, words, near, capsys):
    assert run(["balance", "--no-measured", *words]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert near in err


@pytest.mark.parametrize(
    ("old", "new", "near"),
    [
        ('mask = "causal"', 'mask = "caussal"', "did you mean 'causal'?"),
        ('mask = "causal"', 'mask = "?"', "nearest legal: full"),
        ('gpu = "cpu"', 'gpu = "H100"', "nearest legal: H100-SXM-80GB"),
        ('lengths = "full"', 'lengths = "ful"', "did you mean 'full'?"),
        ('kernel = "auto"', 'kernel = "flash"', "nearest legal: "),
        ('sampler = "residual-gp"', 'sampler = "tpee"', "did you mean 'tpe'?"),
    ],
)
@pytest.mark.parametrize("command", [["plan"], ["explain"]])
def test_a_spec_names_the_nearest(folder, command, old, new, near, capsys):
    assert old in SPEC
    (folder / "s.toml").write_text(SPEC.replace(old, new))

    assert run([*command, "s.toml"]) == 2

    assert near in capsys.readouterr().err


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ("sqlit", 'storage.study | \'sqlit\' is no URL; wanted "sqlite", "journal"'),
        ("jurnal", "did you mean 'journal'?"),
        ("nosuch://x", 'wanted "sqlite" or "journal"'),
    ],
)
def test_a_storage_that_is_none_exits_2(folder, study, said, capsys):
    (folder / "s.toml").write_text(SPEC.replace('study = "sqlite"', f'study = "{study}"'))

    assert run(["sweep", "s.toml", "--runs", "runs"]) == 2

    assert said in capsys.readouterr().err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [("empty.json", "it is empty"), ("none.json", "No such file or directory"), (".", "Is a dir")],
)
def test_an_inventory_that_cannot_be_read_says_why(folder, name, said, capsys):
    (folder / "empty.json").write_text(" \n")
    (folder / "s.toml").write_text(SPEC.replace("[cluster]", f'[cluster]\ntopology = "{name}"'))

    assert run(["plan", "s.toml"]) == 2

    said = f"cluster.topology | cannot read {folder / name}: {said}"
    assert said in capsys.readouterr().err


def test_a_kind_of_link_that_is_none_names_the_nearest(folder, capsys):
    links = [{"a": 0, "b": 1, "kind": "NVLNK", "lanes": None, "bytes_per_s": None, "p2p": None}]
    node = {"name": "n", "gpus": [], "nics": [], "gpu_links": links, "gpu_nics": []}
    node |= {"islands": [], "nearest_nics": {}, "notes": []}
    network = {"tiers": [], "edges": []}
    document = {"schema": 1, "content_hash": None, "source": "x", "nodes": [node]}
    (folder / "t.json").write_text(json.dumps(document | {"network": network}))

    assert run(["topology", "t.json"]) == 2

    assert "did you mean 'NVLINK'?" in capsys.readouterr().err
