"""Drills that need ranks, provoked once on the gang of the run; judged with and without guard.

That of a killed rank is in tests/chaos: it takes as long as all others.
"""

import pytest

from cptune.domain import guards
from cptune.domain.outcome import Measurement
from cptune.domain.probe import Probe
from cptune.drills import versions
from cptune.drills.registry import DRILLS
from cptune.drills.run import ranks_of
from cptune.search import proven

ON_RANKS = {one.name: one for one in DRILLS if one.provoke and one.name != "killed-rank"}


def nothing(*_, **__):
    """A guard that sees nothing."""


#: (drill, where its guard is asked, its name, what sees nothing)
BLIND = [
    ("silent-recompute", guards, "why_other_recompute", nothing),
    ("silent-batch", guards, "why_unlike_batch", nothing),
    ("slow-edge", Probe, "below", ()),
    ("exposed-cp", Measurement, "exposed_share", 0.0),
    ("wrong-seam", proven, "why_wrong", nothing),
    ("padding-attended", proven, "why_wrong", nothing),
    ("changed-mask", proven, "why_wrong", nothing),
    ("changed-mask", versions, "conditions_of", lambda *_, **__: []),
]


@pytest.fixture(scope="module")
def seen(trials):
    """What each drill provokes, on ranks that were the same for all."""
    ranks = ranks_of(trials.gang)
    ordered = sorted(ON_RANKS.values(), key=lambda one: one.comes_last)
    provokes = dict.fromkeys(one.provoke for one in ordered)
    provoked = {provoke: provoke(ranks) for provoke in provokes}
    return {name: provoked[one.provoke] for name, one in ON_RANKS.items()}


@pytest.mark.parametrize("name", ON_RANKS)
def test_a_provoked_failure_is_caught_and_its_controls_hold(seen, name):
    found = ON_RANKS[name].judge(seen[name])

    assert found.refused, found.said
    assert all(found.controls.values()), found.controls


@pytest.mark.parametrize(("name", "owner", "guard", "blind"), BLIND)
def test_without_its_guard_it_is_missed(seen, monkeypatch, name, owner, guard, blind):
    monkeypatch.setattr(owner, guard, blind)

    assert not ON_RANKS[name].judge(seen[name]).caught
