"""`[stack]`: the software a plan is for moves its figures, and an unknown word is refused."""

from dataclasses import replace

import pytest

from cptune.domain.asked import Asked
from cptune.domain.candidate import Candidate
from cptune.domain.layout import ParallelLayout
from cptune.errors import SpecError
from cptune.planning.explain import explain
from cptune.planning.machine import build_case
from cptune.predict.prediction import Predictor
from cptune.spec import parse

TEXT = """
[model]
preset = "llama3-8b"
[workload]
seq_len = 8192
global_batch_seqs = 256
[cluster]
world_size = 64
gpu = "H100-SXM-80GB"
gather_hops = [[32, 70e-6]]
[axes]
data_parallel = ["zero1"]
[stack]
"""


def said(*lines, **asked):
    spec = parse(TEXT + "\n".join(lines), source="test", default_name="test")
    return explain(spec, Asked(**asked))


def test_the_kind_of_stack_moves_memory_and_time():
    fused, eager = (said(f'kind = "{kind}"', tp=4) for kind in ("fused", "eager"))
    assumed = said(tp=4)  # what zero1 suggests
    assert assumed.pop("stack") == {"kind": "fused", "assumed": True}
    assert fused.pop("stack") == {"kind": "fused", "assumed": False}
    assert assumed == fused
    assert eager["step_s"] > fused["step_s"]
    assert eager["memory"]["peak_bytes"] > 1.2 * fused["memory"]["peak_bytes"]
    assert eager["memory"]["peak_lo_bytes"] == fused["memory"]["peak_lo_bytes"]


def test_the_kernel_of_the_stack_is_the_one_whose_rates_are_used():
    times = {
        name: said(f'kernel = "{name}"', cp=2)["step_s"] for name in ("fa2", "fa3", "cudnn", "auto")
    }
    assert times["fa2"] > times["fa3"]
    assert times["auto"] == times["cudnn"]


def test_a_kernel_that_the_candidate_names_goes_before_the_stacks():
    flash2, usual = (
        build_case(parse(TEXT + line, source="test", default_name="test"))
        for line in ('kernel = "fa2"', "")
    )
    plain = Candidate(layout=ParallelLayout(dp=64))
    named = replace(plain, kernel="fa3")
    times = [
        Predictor(case).predict(one).time.step_s
        for case, one in ((flash2, named), (usual, named), (flash2, plain), (usual, plain))
    ]
    assert times[0] == times[1]
    assert len(set(times)) == 3


def test_a_balanced_pipeline_spares_the_stage_with_the_head():
    even, balanced = (said(f'pipeline = "{word}"', tp=2, pp=4) for word in ("even", "balanced"))
    assert balanced["step_s"] < even["step_s"]


def test_what_is_done_with_gathered_inputs_moves_the_band_and_nothing_known_spans_both():
    bands = {
        word: said(*lines, 'kind = "eager"', tp=4)["memory"]
        for word, lines in {
            "kept": ['tp_inputs = "kept"'],
            "gathered": ['tp_inputs = "gathered"'],
            "": [],
        }.items()
    }
    for end in ("peak_lo_bytes", "peak_bytes", "peak_hi_bytes"):
        assert bands["gathered"][end] < bands["kept"][end]
    assert bands[""]["peak_lo_bytes"] == bands["gathered"]["peak_lo_bytes"]
    assert bands[""]["peak_hi_bytes"] == bands["kept"]["peak_hi_bytes"]


def test_a_check_of_each_collective_takes_a_time_for_each_rank_of_its_group():
    one, two = (said(f"check_s = {seconds}", tp=4)["step_s"] for seconds in (10e-3, 20e-3))
    batches, data_ranks = 256 // (64 // 4), 64 // 4
    checks = batches * 32 * 10 * 4 + 2 * data_ranks
    assert two - one == pytest.approx(checks * 10e-3, rel=1e-3)


def test_a_check_that_the_device_outlasts_costs_a_layer_nothing():
    short, plain = (said(line, tp=4)["time"] for line in ("check_s = 10e-6", ""))
    assert short["compute_s"] == plain["compute_s"]
    assert short["dp_exposed_s"] - plain["dp_exposed_s"] == pytest.approx(2 * 16 * 10e-6)


def test_measured_hops_slow_what_leaves_the_island():
    slow, fast = (
        explain(
            parse(text, source="test", default_name="test"),
            Asked(tp=4),
        )["time"]["dp_exposed_s"]
        for text in (TEXT, TEXT.replace("70e-6", "0.0"))
    )
    assert slow > fast


def test_an_unknown_kernel_is_refused_with_the_nearest():
    with pytest.raises(SpecError) as caught:
        said('kernel = "flash3"', tp=1)
    assert str(caught.value).startswith("stack.kernel | kernel 'flash3' has no measured rate on ")
    assert "known: cudnn, fa2, fa3, sdpa, triton; nearest legal: fa3" in str(caught.value)


def test_an_optimizer_whose_states_are_not_known_is_refused_with_the_nearest():
    spec = parse(TEXT, source="test", default_name="test")
    other = replace(spec, workload=replace(spec.workload, optimizer="adam"))
    with pytest.raises(SpecError, match=r"^workload.optimizer \| 'adam' .*adamw-fp32"):
        build_case(other)
