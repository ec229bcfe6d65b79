"""What every sampler keeps to: all legal candidates, each once, confined and resumed as asked."""

import random

import pytest
from fakes import ListSampler, measured, out_of_memory, predicted, setting, trial_of

from cptune.domain.study import Axes, SamplerName, SearchSettings
from cptune.search.sampler import OptunaSampler
from cptune.search.space import build_space

SPACE = build_space(Axes(pp=(1,), stages=(1, 3)), setting(4))
KEYS = [one.key for one in SPACE.candidates]


def ours(name, seed=0):
    def make():
        sampler = OptunaSampler(
            SPACE,
            settings=SearchSettings(sampler=name, seed=seed),
            study_name="s",
            storage=None,
            baseline=None,
        )
        sampler.lead(lambda one: predicted(1 + len(one.key) % 7), room_bytes=1 << 20)
        return sampler

    return make


class Repeats(ListSampler):
    """Mutant: once in a while it asks for what was tried."""

    def ask(self, *, among=None):
        return self.told[0].candidate if len(self.told) == 3 else super().ask(among=among)


class Wanders(ListSampler):
    """Mutant: takes no notice of what it is confined to."""

    def ask(self, *, among=None):
        return super().ask()


class Forgets(ListSampler):
    """Mutant: asks again for what an earlier driver finished."""

    def restore(self, trials):
        pass


class Leaves(ListSampler):
    """Mutant: ends before all were tried."""

    def ask(self, *, among=None):
        return None if len(self.told) == 5 else super().ask(among=among)


def trial(one, number):
    """A step that the key decides; one candidate in five does not fit."""
    draw = random.Random(one.key)
    outcome = out_of_memory() if draw.random() < 0.2 else measured(step_s=1 + draw.random())
    return trial_of(one, outcome, number=number)


def ask_all(sampler, *, among=None):
    asked = []
    while len(asked) <= len(KEYS) and (one := sampler.ask(among=among)) is not None:
        sampler.tell(trial(one, len(asked)))
        asked.append(one)
    return asked


def why_broken(make):
    """Which rule of the seam a sampler breaks; empty where it keeps to all."""
    asked = ask_all(make())
    keys = [one.key for one in asked]
    if len({*keys}) < len(keys):
        return "asks twice"
    if {*keys} != {*KEYS}:
        return "asks for something else than the legal set"
    some = {one.key for one in SPACE.candidates if one.layout.cp == 2}
    if {one.key for one in ask_all(make(), among=some)} != some:
        return "is not confined"
    resumed = make()
    resumed.restore([trial(one, number) for number, one in enumerate(asked[:4])])
    if sorted(one.key for one in ask_all(resumed)) != sorted(keys[4:]):
        return "does not resume"
    running = make()
    if len({running.ask().key for _ in KEYS}) < len(KEYS) or running.ask() is not None:
        return "asks for what is running"
    return ""


@pytest.mark.parametrize("name", SamplerName)
def test_a_sampler_keeps_to_its_seam(name):
    assert why_broken(ours(name)) == ""


def test_the_fake_keeps_to_it_too():
    assert why_broken(lambda: ListSampler(SPACE)) == ""


@pytest.mark.parametrize(
    ("mutant", "why"),
    [
        (Repeats, "asks twice"),
        (Wanders, "is not confined"),
        (Forgets, "does not resume"),
        (Leaves, "asks for something else than the legal set"),
    ],
)
def test_a_sampler_that_breaks_it_is_caught(mutant, why):
    assert why_broken(lambda: mutant(SPACE)) == why


@pytest.mark.parametrize("name", SamplerName)
def test_a_seed_decides_the_order(name):
    assert ask_all(ours(name, seed=3)()) == ask_all(ours(name, seed=3)())


@pytest.mark.parametrize("name", [SamplerName.RESIDUAL_GP, SamplerName.GP])
def test_a_resumed_process_goes_on_as_one_that_never_stopped(name):
    whole = ask_all(ours(name)())
    resumed = ours(name)()
    resumed.restore([trial(one, number) for number, one in enumerate(whole[:6])])
    assert ask_all(resumed) == whole[6:]
