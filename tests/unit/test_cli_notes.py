"""What a spec says that has no effect, or another than its word says, is told before the work."""

from dataclasses import replace

import pytest
from fakes import model, sweep_spec

from cptune.cli import run
from cptune.search.prepare import prepare
from cptune.spec import load_quickstart, write_toml


def notes(text: str) -> str:
    return "\n".join(sweep_spec(text).notes())


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ('strategy = ["ring"]\nstages = [1, 3]', True),
        ('strategy = ["ring"]\nstages = [1]\ncp = [1, 2]', False),  # of two ranks both are one
        ('strategy = ["ring"]\nstages = [3]', False),
        ('strategy = ["ring"]', False),
        ('strategy = ["ring", "all_gather"]\nstages = [1]', False),
        ('strategy = ["ulysses"]\nstages = [1]', False),
    ],
)
def test_a_ring_that_is_an_all_gather_is_told(axes, said):
    assert ("is an all_gather, and shown as one" in notes(f"[axes]\n{axes}\n")) is said


@pytest.mark.parametrize(("cp", "said"), [("cp = [2, 4]", True), ("", True), ("cp = [4]", False)])
def test_an_all_gather_that_is_a_ring_is_told(cp, said):
    text = f'[axes]\nstrategy = ["all_gather"]\n{cp}\n'
    assert ("is a ring in 1 stage, and shown as one" in notes(text)) is said


def test_the_notes_are_those_of_what_the_search_holds():
    """Without the note each strategy of the legal set is in the list, and with it one is not."""
    for name, spec in {"quickstart": load_quickstart(), "plain": sweep_spec()}.items():
        held = {one.strategy for one in prepare(spec, None).space.candidates if one.layout.cp > 1}
        assert bool(held - {*spec.axes.strategy}) is bool(spec.axes.renamed()), name


@pytest.mark.parametrize(("depths", "said"), [("[1, 2]", True), ("[2, 4]", True), ("[]", False)])
def test_depths_of_no_shallower_model_are_told(depths, said):
    text = f"[budget]\ndepths = {depths}\n"
    assert ("budget.depths" in notes(text)) is said
    assert not said or "wanted two counts below the 2 layers of the model" in notes(text)


def test_depths_below_the_layers_are_used():
    deep = replace(sweep_spec("[budget]\ndepths = [2, 4]\n"), model=model("llama3-8b"))
    assert deep.notes() == []


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_the_commands_say_them(tmp_path, capsys, command):
    path = tmp_path / "s.toml"
    cluster = '[cluster]\nworld_size = 4\ngpu = "cpu"\n'
    path.write_text(write_toml(sweep_spec(f"{cluster}[budget]\ndepths = [1, 2]\n")))

    run([command, str(path)])
    assert "note: budget.depths [1, 2] is not used" in capsys.readouterr().err

    run(["explain", str(path), "--cp", "4", "--strategy", "ring", "--stages", "1"])
    assert "note: a ring in 1 stage over more than two ranks" in capsys.readouterr().err
