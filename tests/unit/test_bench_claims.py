"""A benchmark's claims: a known miss is said and breaks nothing, any other breaks the run."""

import sys
from dataclasses import replace

import pytest

from bench import __main__ as bench
from bench.record import Report, at_most

MET, UNMET = at_most("a", 1.0, 2.0), at_most("b", 3.0, 2.0)
KNOWN = replace(UNMET, known_miss="the source is noisy")


def test_each_kind_of_claim_has_its_word():
    assert str(MET) == "holds  a: seen 1, wanted at most 2"
    assert str(UNMET) == "BROKEN b: seen 3, wanted at most 2"
    assert str(KNOWN) == "MISSED b: seen 3, wanted at most 2 (the source is noisy)"
    assert str(replace(MET, known_miss="x")) == str(MET)


@pytest.mark.parametrize(
    ("claims", "code", "told"),
    [([MET], 0, ""), ([MET, KNOWN], 0, "MISSED"), ([UNMET], 1, "BROKEN")],
)
def test_only_an_unknown_miss_fails_the_run(monkeypatch, tmp_path, capsys, claims, code, told):
    report = Report(notes=(), tables=(), claims=claims)
    monkeypatch.setitem(bench.BENCHMARKS, "fake", lambda: report)
    monkeypatch.setattr(sys.modules["bench.record"], "RESULTS", tmp_path)

    assert bench.main(["fake"]) == code
    assert capsys.readouterr().err.startswith(told)
    assert (tmp_path / "fake.md").exists()
