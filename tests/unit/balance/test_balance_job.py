"""The entrypoint for Ray: the command's flags, and an --out that survives."""

import json

import pytest

from jobs.balance import main

FLAGS = ["--world", "4", "--tokens-per-gpu", "256", "--cp", "1,2", "--no-measured"]


def test_the_job_is_the_command(capsys, tmp_path):
    out = tmp_path / "rows.parquet"
    assert main([*FLAGS, "--format", "json", "--out", str(out)]) == 0
    assert out.exists()
    assert json.loads(capsys.readouterr().out)["rows"]


def test_an_out_inside_the_uploaded_copy_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in (["--out", "rows.parquet"], ["--out=rows.parquet"], ["--figure", "rows.parquet"]):
        assert main([*FLAGS, *out]) == 2
        assert f"{out[0][:5]}" in (err := capsys.readouterr().err)
        assert "is inside Ray's copy" in err
    assert main([*FLAGS, "--out"]) == 2
    assert "--out" in capsys.readouterr().err
    assert not (tmp_path / "rows.parquet").exists()


@pytest.mark.parametrize("given", [(), ("--address", "127.0.0.1:2")])
def test_kernels_are_measured_on_the_cluster_of_the_job(capsys, monkeypatch, given):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert main([*FLAGS[:-1], *given]) == 1
    assert f"cannot reach Ray at {(given or ('127.0.0.1:1',))[-1]}" in capsys.readouterr().err
    assert main([*FLAGS, *given]) == 0  # nothing is measured
