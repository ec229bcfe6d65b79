"""What a sweep says of the models of its predictions: one line on stderr, every one in the log."""

import json

from cptune.logs import EventLog
from cptune.report.observers import Logged, Terminal


def test_the_last_model_is_told_once_at_the_end(capsys):
    terminal = Terminal()
    for trials in range(1, 4):
        terminal.model_changed(f"predictions are now of model x+{trials}trials")
    terminal.note("a note")
    assert capsys.readouterr().err == "note: a note\n"

    terminal.close()
    terminal.close()

    assert capsys.readouterr().err == "note: predictions are now of model x+3trials\n"


def test_a_sweep_that_learnt_nothing_says_nothing_of_a_model(capsys):
    Terminal().close()
    assert capsys.readouterr().err == ""


def test_the_log_keeps_every_model(tmp_path):
    log = EventLog(tmp_path / "log.jsonl")
    watched = Logged(Terminal(), log)
    for version in ("a", "b"):
        watched.model_changed(version)
    log.close()

    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["event"], line["message"]) for line in lines] == [
        ("model_changed", "a"),
        ("model_changed", "b"),
    ]
