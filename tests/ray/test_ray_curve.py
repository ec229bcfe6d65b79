"""The curve on real actors: bytes grow with the tokens, of a planted attention with the square."""

import json
import sys
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from sweep_process import tiny_spec

from cptune.cluster.ray_launcher import RayLauncher
from cptune.curve import CurveStudy
from cptune.domain.asked import CurveAsked
from cptune.domain.outcome import OutcomeKind
from cptune.predict.limits import Hardware
from cptune.search.curve_plan import CurvePlan
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
        return replace(super().search(capacity_bytes), most=self.grid.seq_lens[-1])


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
        hardware=Hardware(cores=(None,)),
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


ROW = {
    *("cp", "seq_len", "peak_bytes", "forward_peak_bytes", "backward_peak_bytes"),
    *("allocated_bytes", "reserved_bytes", "outcome"),
}


def start_curve(processes, path, *words):
    command = [sys.executable, "-m", "cptune", "curve", path, "--runs", processes.runs, *words]
    return processes.start(command)


def test_the_command_prints_the_contract_and_keeps_the_rows(processes):
    path = processes.write(
        "grow",
        cluster={"world_size": 2, "device_memory_bytes": 6_000_000},
        workload={"global_batch_seqs": 2},
        axes={"tp": [1], "cp": [1, 2], "pp": [1]},
    )
    out, figure = processes.folder / "rows.parquet", processes.folder / "curve.html"
    words = ("--seq-lens", "256,512", "--format", "json", "--out", out, "--figure", figure)
    curve = start_curve(processes, path, *words)
    text, err = curve.communicate(timeout=110)

    assert curve.returncode == 0, err
    answer = json.loads(text)
    assert set(answer) == {
        *("rows", "exponent", "longest_fitting_seq_len", "shortest_helping_seq_len")
    }
    assert all(set(row) == ROW for row in answer["rows"])
    longest = answer["longest_fitting_seq_len"]
    assert longest["2"] > longest["1"] >= 256
    assert set(answer["shortest_helping_seq_len"]) == {"fits", "faster"}
    assert longest["1"] < answer["shortest_helping_seq_len"]["fits"] <= longest["2"]
    ran_out = [row for row in answer["rows"] if row["outcome"] == "out_of_memory"]
    assert ran_out
    assert all(row["peak_bytes"] is None for row in ran_out)
    for kept in (out, processes.runs / "grow-curve" / "curve.parquet"):
        assert pq.read_table(kept).num_rows == len(answer["rows"])
    assert figure.stat().st_size > 1_000_000
