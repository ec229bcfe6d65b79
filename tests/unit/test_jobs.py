"""The Ray job refuses what would be lost, before anything is started."""

import pytest

from jobs.sweep import DEFAULT_RUNS, main


def test_without_a_cluster_address_it_is_refused(monkeypatch, capsys):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    assert main(["--runs", str(DEFAULT_RUNS)]) == 2

    assert capsys.readouterr().err == (
        "error: RAY_ADDRESS is not set; wanted a run by `ray job submit`\n"
    )


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["--runs", "runs"], "runs"),
        (["--runs=runs"], "runs"),
        (["s.toml", "--runs", "./a/../b"], "./a/../b"),
        (["--runs="], ""),
        (["--runs"], ""),
    ],
)
def test_runs_inside_the_uploaded_copy_are_refused(tmp_path, monkeypatch, capsys, arguments, path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")

    assert main(arguments) == 2

    err = capsys.readouterr().err
    assert f"--runs {path} is inside Ray's copy" in err
    assert str(DEFAULT_RUNS) in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("runs", [[], ["--runs", "../elsewhere"]])
def test_a_bad_spec_exits_2_as_the_command_does(tmp_path, monkeypatch, capsys, runs):
    (tmp_path / "copy").mkdir()
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")

    assert main(["none.toml", *runs]) == 2

    assert "error: cannot read none.toml" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()
