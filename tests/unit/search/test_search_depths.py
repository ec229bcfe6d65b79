"""Two depths in a sweep: who is extrapolated, what a failure says, full depth for the choice."""

from dataclasses import replace

import pytest
from fakes import (
    STAMP,
    FakeClock,
    ListSampler,
    MemoryLedger,
    RecordingObserver,
    ScriptedLauncher,
    candidate,
    measured,
    out_of_memory,
    space_of,
    sweep_spec,
)

from cptune.domain.outcome import OutcomeKind
from cptune.domain.recipe import Evidence
from cptune.domain.study import Budget
from cptune.errors import SpecError
from cptune.search.choose import Limits
from cptune.search.depths import TwoDepthLauncher, with_depths
from cptune.search.loop import SearchLoop
from cptune.search.seams import Seams

LAYERS = 8


def spec_of(text="[budget]\ndepths = [2, 4]\n"):
    spec = sweep_spec(text)
    return replace(spec, model=replace(spec.model, layers=LAYERS))


class Depths:
    """Launchers of every layer count; `ran` holds (layers, candidate) in order."""

    def __init__(self, *, peak_of=lambda layers, tried: 100 * layers, step_of=None):
        self.ran = []
        self._peak_of = peak_of
        self._step_of = step_of or (lambda layers, tried: 0.1 * layers)

    def on(self, spec):
        layers = spec.model.layers

        def answer(tried):
            self.ran.append((layers, tried.key))
            peak = self._peak_of(layers, tried)
            if peak is None:
                return out_of_memory()
            return measured(
                ranks=tried.layout.world_size,
                peak_bytes=peak,
                step_s=self._step_of(layers, tried),
                first_loss=5.0 + layers,
            )

        return ScriptedLauncher(default=answer)


def launch(depths, tried):
    spec = spec_of()
    launcher = with_depths(depths.on(spec), launcher_of=depths.on, spec=spec)
    return launcher.launch(tried, launcher.place(tried))


def test_a_deep_model_is_measured_at_two_depths():
    depths = Depths()
    seen = launch(depths, candidate(dp=4))

    assert [layers for layers, _ in depths.ran] == [2, 4]
    assert seen.step_s == pytest.approx(0.8)
    assert seen.peak_allocated_bytes == 800
    assert seen.depth.layers_measured == (2, 4)


def test_a_pipeline_that_cannot_be_cut_like_the_model_runs_at_full_depth():
    depths = Depths()
    seen = launch(depths, candidate(pp=4))

    assert [layers for layers, _ in depths.ran] == [LAYERS]
    assert seen.depth is None


def test_a_shallow_model_that_does_not_fit_says_with_how_many_layers():
    depths = Depths(peak_of=lambda layers, tried: None)
    failure = launch(depths, candidate(dp=4))

    assert [layers for layers, _ in depths.ran] == [2]
    assert failure.kind is OutcomeKind.OUT_OF_MEMORY
    assert failure.message.startswith("with 2 of 8 layers: out of memory")


@pytest.mark.parametrize(
    "text", ["", "[budget]\ndepths = [2, 8]\n", "[budget]\ndepths = [4, 16]\n"]
)
def test_a_model_that_is_not_deeper_is_run_as_it_is(text):
    full = ScriptedLauncher()

    assert with_depths(full, launcher_of=lambda spec: full, spec=spec_of(text)) is full
    assert isinstance(
        with_depths(full, launcher_of=lambda spec: full, spec=spec_of()), TwoDepthLauncher
    )


@pytest.mark.parametrize("depths", ["[2]", "[4, 2]", "[0, 2]", "[2, 4, 8]"])
def test_depths_that_are_none_are_refused(depths):
    with pytest.raises(SpecError, match="wanted two ascending layer counts"):
        spec_of(f"[budget]\ndepths = {depths}\n")


def sweep(depths, *tried):
    space, spec, ledger = space_of(*tried), spec_of(), MemoryLedger()
    full = depths.on(spec)
    loop = SearchLoop(
        space,
        limits=Limits(capacity_bytes=10_000, memory_margin=0.0, objective=spec.objective),
        budget=Budget(trials=10, finalist_rounds=0),
        stamp=STAMP,
        seams=Seams(
            sampler=ListSampler(space),
            launcher=with_depths(full, launcher_of=depths.on, spec=spec),
            ledger=ledger,
            clock=FakeClock(),
            observer=RecordingObserver(),
            full=full,
        ),
    )
    return loop.run(), ledger


CP1, CP2 = candidate(dp=2), candidate(cp=2)


def test_what_is_chosen_was_run_at_full_depth():
    depths = Depths()
    choice, ledger = sweep(depths, CP1, CP2)

    assert choice.trial.candidate == CP1
    assert choice.trial.measurement.depth is None
    assert [(one.number, one.attempt) for one in ledger.read()] == [(0, 0), (0, 1), (1, 0)]
    assert depths.ran[-1] == (LAYERS, CP1.key)


@pytest.mark.parametrize("slope", [0.0, -0.02])
def test_a_step_that_takes_no_longer_with_more_layers_draws_no_line(slope):
    depths = Depths(step_of=lambda layers, tried: 0.2 + slope * min(layers, 4))
    seen = launch(depths, CP1)

    assert [layers for layers, _ in depths.ran] == [2, 4, LAYERS]
    assert seen.depth is None


def test_what_two_depths_took_says_how_long_full_depth_takes():
    _, ledger = sweep(Depths(), CP1)
    times = {"started_at": "2026-01-02T03:04:05+00:00", "finished_at": "2026-01-02T03:04:08+00:00"}
    shallow, whole = (replace(one, **times) for one in ledger.read())

    assert (shallow.depth.layers, whole.depth) == (LAYERS, None)
    assert shallow.again_s == pytest.approx(3.0 * LAYERS / (2 + 4))
    assert whole.again_s == 3.0


def test_a_choice_that_does_not_hold_at_full_depth_goes_to_the_next():
    def peak_of(layers, tried):
        return None if layers == LAYERS and tried == CP1 else 100 * layers

    depths = Depths(peak_of=peak_of)
    choice, _ = sweep(depths, CP1, CP2)

    assert choice.trial.candidate == CP2
    assert choice.trial.measurement.depth is None
    assert [entry.evidence for entry in choice.certificate] == [Evidence.MEASURED]


def test_a_smaller_cp_ruled_out_by_two_depths_is_predicted_not_measured():
    def step_of(layers, tried):
        return 0.1 * layers * (2 if tried == CP1 else 1)

    choice, _ = sweep(Depths(step_of=step_of), CP1, CP2)

    assert choice.trial.candidate == CP2
    assert [entry.evidence for entry in choice.certificate] == [Evidence.PREDICTED]
