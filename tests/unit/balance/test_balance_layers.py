"""Full and window layers: a row for each kind, and for the model that has both."""

import numpy as np
import pytest
from test_balance_study import answered, scripted

from cptune.balance.answer import answer_asked
from cptune.balance.asked import BalanceAsked, Packing, Split
from cptune.balance.layers import read_work, works_by_kind
from cptune.balance.spread import Layers, Source
from cptune.balance.work import Work
from cptune.errors import SpecError
from cptune.report.balance import balance_page, study_lines
from cptune.report.figures import balance_figure
from cptune.store.balance import open_lengths

MIXED = {
    "lengths": "lognormal(mean=200, sigma=1, max=2000)",
    "layers": "full=1,window=5",
    "window": 64,
}


def works(layers, window=64):
    return works_by_kind(read_work(layers, window=window, token_keys=3.0))


def rows_of(study, source):
    return {(row.layers, row.cp): row for row in study.rows if row.source is source}


def test_the_mixture_costs_what_all_layers_cost_together():
    found = works("full=1,window=5")
    lengths = np.array([1, 10, 64, 65, 66, 1000])
    each = {kind: work.of(lengths) for kind, work in found.items()}
    assert list(found) == [Layers.FULL, Layers.WINDOW, Layers.MIXTURE]
    assert 6 * each[Layers.MIXTURE] == pytest.approx(each[Layers.FULL] + 5 * each[Layers.WINDOW])


def test_one_kind_alone_is_no_mixture():
    assert works("full=6", None) == works(None, None) == {Layers.FULL: Work(token_keys=3.0)}
    assert (
        works("window=6,full=0") == works(None) == {Layers.WINDOW: Work(window=64, token_keys=3.0)}
    )


@pytest.mark.parametrize(
    ("layers", "window", "said"),
    [
        ("full=1,window=5", None, "there is no window"),
        ("full=2", 64, "have none with a window"),
        ("full=1,local=5", 64, "'local=5' is not full=N or window=N"),
        ("full=1,window=-5", 64, "'window=-5' is not"),
        ("full=x", 64, "'full=x' is not"),
        ("", 64, "'' is not full=N"),
        ("full=0,window=0", 64, "wanted one layer or more"),
        ("full=1,window=5", 0, "window is 0"),
    ],
)
def test_layers_that_say_nothing_are_refused(layers, window, said):
    with pytest.raises(SpecError, match=said):
        works(layers, window)


def test_every_kind_has_its_rows_and_a_window_is_the_evenest():
    study = answered(**MIXED)
    for source in (Source.THEORY, Source.SIMULATED):
        rows = rows_of(study, source)
        assert list(rows) == [(kind, cp) for kind in Layers for cp in (1, 2, 4)]
        for cp in (1, 2, 4):
            full, window, mixture = (rows[kind, cp].cv for kind in Layers)
            assert window < mixture < full
    assert any("17% of the layers full" in line for line in study_lines(study))
    assert balance_page(study).renderables
    assert '"name":"theory, sequential, mixture layers"' in balance_figure(study.rows)


def test_theory_and_simulation_of_each_kind_agree():
    study = answered(**{**MIXED, "world": 64, "tokens_per_gpu": 2048})
    theory, counted = (rows_of(study, one) for one in (Source.THEORY, Source.SIMULATED))
    for key, row in theory.items():
        assert row.cv == pytest.approx(counted[key].cv, rel=0.1), key


def test_a_kind_in_the_mixture_spreads_as_it_does_alone():
    mixed = rows_of(answered(**MIXED), Source.SIMULATED)
    alone = rows_of(answered(lengths=MIXED["lengths"], window=64), Source.SIMULATED)
    assert mixed[Layers.WINDOW, 2] == alone[Layers.WINDOW, 2]


@pytest.mark.parametrize("split", [Split.DOCUMENT, Split.ZIGZAG])
def test_rows_are_packed_by_the_mixture_and_counted_by_kind(split):
    asked = {**MIXED, "tokens_per_gpu": 4096, "token_keys": 0, "split": split}
    rows = rows_of(answered(**asked, packing=Packing.QUADRATIC), Source.SIMULATED)
    plain = rows_of(answered(**asked), Source.SIMULATED)
    assert rows[Layers.MIXTURE, 1].cv < plain[Layers.MIXTURE, 1].cv
    assert rows[Layers.FULL, 1].cv != rows[Layers.WINDOW, 1].cv


def test_measured_rows_are_of_full_layers_and_that_is_said():
    asked = BalanceAsked(**MIXED, world=8, tokens_per_gpu=512, cp="1,2", measured=True)
    study = answer_asked(asked, open_file=open_lengths, measurer=scripted)
    assert {row.layers for row in study.rows if row.source is Source.MEASURED} == {Layers.FULL}
    assert "the kernels that are measured have no window" in study.notes
