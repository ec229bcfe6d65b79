"""Files that are whole or absent, run directories with one holder, recipes that are of now."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes import STAMP, candidate, measured, sweep_spec, trial_of

from cptune.domain.recipe import CertificateEntry, Control, Evidence, Recipe
from cptune.domain.trial import Predicted
from cptune.errors import LedgerError, SpecError
from cptune.store import schema
from cptune.store.files import remove_temporaries, write_durably
from cptune.store.ledger import decode
from cptune.store.recipes import remove_recipe, write_recipe
from cptune.store.run_directory import RunDirectory, free_name

TRIAL = trial_of(candidate(cp=2, dp=2), measured(step_s=0.5, exposed_share=0.25))
RECIPE = Recipe(
    spec=sweep_spec(),
    candidate=TRIAL.candidate,
    placement=TRIAL.placement,
    measurement=TRIAL.measurement,
    predicted=Predicted(
        step_s=0.5, peak_lo_bytes=1, peak_bytes=2, peak_hi_bytes=3, model_version="1"
    ),
    capacity_bytes=1000,
    certificate=(CertificateEntry(cp=1, reason="did not fit", evidence=Evidence.MEASURED),),
    controls=(Control(candidate_key="k", cp=1, verdict="out_of_memory", reason="too much"),),
    versions={"cptune": "0.1"},
    fingerprints=STAMP.fingerprints,
    commands=("cptune sweep runs/fake/spec.toml --name fake-again",),
)


def test_a_written_file_replaces_the_old_one_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a much longer old content")

    write_durably(path, b"new")

    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (("none", "file"), "No such file or directory"),
        (("taken", "file"), "Not a directory"),
        (("folder",), "it is there and is no regular file"),
        (("n" * 256,), "File name too long"),
    ],
)
def test_a_write_that_fails_is_an_error_of_ours_and_leaves_nothing(tmp_path, parts, reason):
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(LedgerError, match=f"^cannot write {tmp_path.joinpath(*parts)}: {reason}"):
        write_durably(tmp_path.joinpath(*parts), b"data")

    assert sorted(tmp_path.rglob("*")) == before


WRITER_OF_TOO_MUCH = """
import resource, signal, sys
from pathlib import Path
from cptune.errors import LedgerError
from cptune.store.files import write_durably
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_durably(Path(sys.argv[1]), b"x" * 5000)
except LedgerError as exc:
    print(exc)
"""


def test_a_file_that_does_not_fit_keeps_the_old_one_and_leaves_nothing_half_written(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    done = subprocess.run(
        [sys.executable, "-c", WRITER_OF_TOO_MUCH, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == f"cannot write {path}: {os.strerror(errno.EFBIG)}\n"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_temporaries_are_removed(tmp_path):
    for name in (".tmp-a", ".tmp-b.parquet", "tmp-c", ".d"):
        (tmp_path / name).write_text("x")

    remove_temporaries(tmp_path)

    assert sorted(one.name for one in tmp_path.iterdir()) == [".d", "tmp-c"]


def test_a_run_directory_is_made_and_named(tmp_path):
    with RunDirectory(tmp_path / "runs" / "a") as run:
        assert run.path.is_dir()
        assert run.spec_path == run.path / "spec.toml"
        assert run.study_path == run.path / "study.db"
        assert run.topology_path == run.path / "topology.json"


def test_a_second_holder_is_refused_with_the_first_ones_pid(tmp_path):
    with RunDirectory(tmp_path / "a"), pytest.raises(SpecError) as caught:
        RunDirectory(tmp_path / "a")

    assert str(caught.value) == (
        f"run directory {tmp_path / 'a'} is held by pid {os.getpid()} on {os.uname().nodename}"
    )
    assert "another --runs DIR" in caught.value.hint


def test_a_closed_run_is_open_to_the_next(tmp_path):
    for _ in range(2):
        with RunDirectory(tmp_path / "a"):
            pass

    assert (tmp_path / "a" / "lock").read_text() == (
        f"pid {os.getpid()} on {os.uname().nodename}\n"
    )


def test_a_run_directory_is_freed_of_what_an_ended_driver_left(tmp_path):
    (tmp_path / ".tmp-spec.toml-1-ab").write_text("half")

    RunDirectory(tmp_path).close()

    assert [one.name for one in tmp_path.iterdir()] == ["lock"]


@pytest.mark.parametrize("below", ["", "x"])
def test_a_file_is_no_run_directory(tmp_path, below):
    (tmp_path / "a").write_text("a file")

    with pytest.raises(SpecError, match=r"cannot be written: (File exists|Not a directory)"):
        RunDirectory(tmp_path / "a" / below)


def test_the_first_free_name_is_taken(tmp_path):
    assert free_name(tmp_path, "quickstart") == "quickstart"
    (tmp_path / "quickstart").mkdir()
    assert free_name(tmp_path, "quickstart") == "quickstart-2"
    (tmp_path / "quickstart-2").write_text("even a file")
    (tmp_path / "quickstart-4").mkdir()
    assert free_name(tmp_path, "quickstart") == "quickstart-3"
    assert free_name(tmp_path / "none", "a") == "a"


def test_a_recipe_is_written_for_people_and_for_tables(tmp_path):
    path = write_recipe(tmp_path, RECIPE)

    assert path == tmp_path / "recipe.json"
    assert json.loads(path.read_text()) == json.loads(json.dumps(RECIPE.to_json()))
    (row,) = decode(tmp_path / "recipes.parquet", schema.RECIPES)
    assert row["recipe_json"] == path.read_text()
    assert (row["cp"], row["dp"], row["certified"], row["exposed_share"]) == (2, 2, True, 0.25)
    assert pq.read_schema(tmp_path / "recipes.parquet").names == schema.RECIPES.names


def test_recipe_json_has_every_promised_part():
    document = RECIPE.to_json()

    assert document["schema"] == 1
    assert {
        "workload",
        "layout",
        "mesh",
        "certificate",
        "controls",
        "measurement",
        "prediction",
        "versions",
        "fingerprints",
        "commands",
    } <= set(document)
    assert document["layout"]["accumulation"] == 2
    assert document["mesh"][3] == {
        "rank": 3,
        "node": "node0",
        "gpu_uuid": None,
        "tp": 0,
        "cp": 1,
        "dp": 1,
        "pp": 0,
    }
    assert document["certificate"] == [{"cp": 1, "reason": "did not fit", "evidence": "measured"}]
    assert document["certified"] is True
    assert document["measurement"]["capacity_bytes"] == 1000
    assert "ranks" not in document["measurement"]


def test_the_recipe_of_an_earlier_end_is_removed(tmp_path):
    write_recipe(tmp_path, RECIPE)
    (tmp_path / "spec.toml").write_text("")

    remove_recipe(tmp_path)
    remove_recipe(tmp_path)

    assert [one.name for one in tmp_path.iterdir()] == ["spec.toml"]


def test_the_writer_of_too_much_uses_this_checkout():
    assert Path(schema.__file__).is_relative_to(Path(__file__).parents[3])
