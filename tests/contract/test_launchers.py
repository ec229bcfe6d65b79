"""What every launcher keeps to: a place for each rank, an outcome for each candidate, no raise."""

import pytest
from fakes import ScriptedLauncher, setting, sweep_spec

from cptune.domain.launcher import LauncherName
from cptune.domain.outcome import Failure, Measurement, OutcomeKind
from cptune.offline.landscape import Result, foresee, landscape_of
from cptune.offline.launchers import ReplayLauncher, RooflineLauncher, imagined_devices
from cptune.search.space import build_space
from topology.nouns import Topology

SPEC = sweep_spec('[cluster]\nworld_size = 4\ngpu = "cpu"\ndevice_memory_bytes = 2000000\n')
SPACE = build_space(SPEC.axes, setting(4))
FORESIGHT = foresee(SPEC)
DEVICES = imagined_devices(FORESIGHT.case.machine, owner="fake")


def roofline(**changes):
    return RooflineLauncher(FORESIGHT, devices=DEVICES, **{"noise": 0.02, "seed": 0, **changes})


def replayed(**changes):
    results = {
        one: Result(kind=OutcomeKind.OUT_OF_MEMORY, step_s=None, peak_bytes=2_100_000)
        if one.layout.cp == 1
        else Result(kind=OutcomeKind.MEASURED, step_s=1.0 / one.layout.cp, peak_bytes=500)
        for one in SPACE.candidates
    }
    landscape = landscape_of("fake", results, FORESIGHT)
    return ReplayLauncher(landscape, devices=DEVICES, **{"noise": 0.02, "seed": 0, **changes})


def outcomes(launcher):
    return [launcher.launch(one, launcher.place(one)) for one in SPACE.candidates]


LAUNCHERS = [roofline, replayed, ScriptedLauncher]


@pytest.mark.parametrize("make", LAUNCHERS)
def test_every_candidate_has_a_place_and_an_outcome(make):
    launcher = make()
    for one, outcome in zip(SPACE.candidates, outcomes(launcher), strict=True):
        placement = launcher.place(one)
        assert [place.rank for place in placement.ranks] == list(range(4))
        assert [place.at for place in placement.ranks] == [
            one.layout.coordinates(rank) for rank in range(4)
        ]
        assert isinstance(outcome, Measurement | Failure)
        if isinstance(outcome, Measurement):
            assert 0 < outcome.step_p10_s <= outcome.step_s <= outcome.step_p90_s
            assert outcome.tokens_per_s == pytest.approx(4 * outcome.tokens_per_s_per_gpu)


@pytest.mark.parametrize("make", LAUNCHERS)
def test_the_same_candidate_gives_the_same_answer(make):
    launcher = make()
    assert outcomes(launcher) == outcomes(launcher) == outcomes(make())


@pytest.mark.parametrize("make", [roofline, replayed])
def test_noise_is_of_the_seed_and_none_is_none(make):
    def steps(**changes):
        return [one.step_s for one in outcomes(make(**changes)) if isinstance(one, Measurement)]

    assert steps(seed=1) != steps(seed=2)
    assert steps(seed=1, noise=0.0) == steps(seed=2, noise=0.0)
    pairs = zip(steps(), steps(noise=0.0), strict=True)
    assert all(abs(noisy / plain - 1) < 0.1 for noisy, plain in pairs)


def test_a_prediction_beyond_the_device_is_out_of_memory_and_says_that_nothing_ran():
    found = outcomes(roofline())
    short = [one for one in found if isinstance(one, Failure)]
    assert 0 < len(short) < len(found)
    for one in short:
        assert (one.kind, "nothing ran" in one.message) == (OutcomeKind.OUT_OF_MEMORY, True)
        assert one.shortage.asked_bytes > one.shortage.free_bytes == 2_000_000


def test_what_only_ranks_can_see_is_unknown():
    (seen, *_) = [one for one in outcomes(roofline()) if isinstance(one, Measurement)]
    assert seen.ranks == ()
    assert {
        getattr(seen, name)
        for name in (
            *("slowest_rank", "kernel", "first_loss", "first_grad_norm", "imbalance"),
            *("peak_reserved_bytes", "forward_peak_bytes", "backward_peak_bytes"),
        )
    } == {None}


def test_a_table_answers_with_its_own_step_and_failure():
    cps = [one.layout.cp for one in SPACE.candidates]
    by_cp = dict(zip(cps, outcomes(replayed(noise=0.0)), strict=True))
    assert by_cp[1].shortage.short_bytes == 100_000
    assert "in the table, nothing ran" in by_cp[1].message
    assert (by_cp[2].step_s, by_cp[4].step_s) == (0.5, 0.25)
    assert by_cp[2].exposed_method == "not-told"


def test_each_launcher_has_an_outcome_of_its_own():
    assert [(one.value, one.success.value, one.is_simulated) for one in LauncherName] == [
        ("ray", "measured", False),
        ("roofline", "predicted", True),
        ("replay", "replayed", True),
    ]


def test_devices_are_named_after_who_answers():
    assert {one.node for one in DEVICES} == {"fake0"}
    assert Topology(source="planned", nodes=()).content_hash
