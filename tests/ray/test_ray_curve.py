"""The curve on real actors: bytes grow with the tokens, of a planted attention with the square."""

from dataclasses import replace

import pytest
from sweep_process import tiny_spec

from cptune.cluster.ray_launcher import RayLauncher
from cptune.curve import CurvePlan, CurveStudy
from cptune.domain.asked import CurveAsked
from cptune.domain.outcome import OutcomeKind
from cptune.search.prepare import resolve

AMPLE_BYTES = 1 << 30


class Unfused:
    """A launcher whose candidates write out all scores."""

    def __init__(self, inner):
        self._inner, self.place = inner, inner.place

    def launch(self, candidate, placement):
        return self._inner.launch(replace(candidate, kernel="math"), placement)


class AskedAlone(CurvePlan):
    """Tries no length that was not asked for."""

    def search(self, capacity_bytes):
        return replace(super().search(capacity_bytes), most=self.seq_lens[-1])


def curve_of(trials, *, cps, launcher=lambda inner: inner):
    spec = tiny_spec(
        cluster={"world_size": 4},
        workload={"global_batch_seqs": 4},
        axes={"tp": [1], "cp": [1, 2, 4], "pp": [1]},
    )
    ample = RayLauncher(trials.gang, devices=trials.devices, spec=spec, capacity_bytes=AMPLE_BYTES)
    study = CurveStudy(
        AskedAlone(resolve(spec, None), CurveAsked(seq_lens="512,1024", cp=cps)),
        launcher_of=lambda at: launcher(ample.on(at)),
        capacity_bytes=AMPLE_BYTES,
        cores=[None],
        keep=lambda row, rows: None,
    )
    return study.run()


def test_a_fused_attention_grows_with_the_tokens_and_cp_halves_it(trials):
    curve = curve_of(trials, cps="1,2")

    assert {row.kind for row in curve.rows} == {OutcomeKind.MEASURED}, curve.warnings()
    assert len(curve.rows) == 4
    for cp in (1, 2):
        assert curve.exponent(cp) == pytest.approx(1.0, abs=0.05)
    for one, two in zip(curve.of(1), curve.of(2), strict=True):
        rest = [row.peak_bytes - row.split.states_bytes for row in (one, two)]
        assert rest[1] / rest[0] == pytest.approx(0.5, abs=0.03)
        assert one.split.peak_bytes == one.peak_bytes
    assert not curve.warnings()


def test_a_planted_unfused_attention_is_seen_to_grow_with_the_square(trials):
    curve = curve_of(trials, cps="1", launcher=Unfused)

    assert curve.exponent(1) == pytest.approx(2.0, abs=0.2)
    assert "an attention that writes its scores is suspected" in curve.warnings()[0]
