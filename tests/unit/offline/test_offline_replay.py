"""Regret by its formula on a table made by hand, and samplers that break the rules are seen."""

import json

import pytest
from fakes import ListSampler
from replay_tables import ROWS, row, write_csv

from cptune.cli import run
from cptune.domain.study import SamplerName
from cptune.offline.replay import ReplayAsked, replay, score
from cptune.offline.table import sift
from cptune.offline.walk import AFTER, Walk, open_sampler, walk

EVERY = ReplayAsked(samplers=tuple(SamplerName), seeds=2)


def landscape(rows=ROWS):
    (found,) = sift(rows).landscapes
    return found


class Listed:
    """Asks for what it is given, whatever that is."""

    def __init__(self, *candidates):
        self._left = list(candidates)

    def ask(self, *, among=None):
        return self._left.pop(0) if self._left else None

    def tell(self, trial):
        pass

    def restore(self, trials):
        pass


def by_sizes(found):
    return {(one.layout.tp, one.layout.cp): one for one in found.space.candidates}


def test_regret_is_best_so_far_over_best_less_one_and_one_before_a_success():
    found = landscape()
    at = by_sizes(found)
    order = [(1, 1), (1, 4), (2, 1), (4, 1), (2, 2), (1, 2)]
    seen = walk(found, Listed(*(at[sizes] for sizes in order)))
    assert seen.regrets == pytest.approx((1.0, 1.0, 0.3, 0.3, 0.0, 0.0))
    assert [seen.regret_after(after) for after in AFTER] == pytest.approx([1, 1, 0.3, 0, 0, 0])
    assert (seen.trials_to(0.05), seen.trials_to(0.31), seen.out_of_memory) == (5, 3, 1)
    assert (seen.duplicates, seen.illegal_asks) == (0, 0)


def test_a_slow_first_success_is_worse_than_none():
    found = landscape([row(1, 1, 1.0), row(2, 1, 3.5)])
    assert walk(found, Listed(by_sizes(found)[2, 1])).regrets == pytest.approx((2.5,))


def test_a_mutant_that_asks_twice_and_one_that_asks_outside_are_counted():
    found, other = landscape(), landscape([row(2, 2, 1.0, micro_batch=2)])
    one, outside = found.space.candidates[0], other.space.candidates[0]
    seen = walk(found, Listed(one, one, outside))
    assert (seen.duplicates, seen.illegal_asks) == (1, 1)

    class Stuck(ListSampler):
        def ask(self, *, among=None):
            return found.space.candidates[0]

    assert walk(found, Stuck(found.space)).duplicates == 63


def test_under_noise_regret_is_the_true_step_of_what_looks_best():
    found = landscape([row(1, 1, 1.00), row(2, 1, 1.01)])
    order = found.space.candidates
    seen = {walk(found, Listed(*order), noise=0.3, seed=seed).regrets[-1] for seed in range(30)}
    assert {round(one, 9) for one in seen} == {0.0, 0.01}
    assert walk(found, Listed(*order), noise=0.3, seed=1) == walk(
        found, Listed(*order), noise=0.3, seed=1
    )


def test_no_sampler_of_ours_asks_twice_or_outside():
    answer = replay(sift(ROWS), EVERY)
    assert list(answer["samplers"]) == [one.value for one in SamplerName]
    for found in answer["samplers"].values():
        overall = found["overall"]
        assert (overall["duplicates"], overall["illegal_asks"]) == (0, 0)
        assert overall["regret"]["8"] == {"mean": 0, "p90": 0, "worst": 0}
        assert overall["out_of_memory"]["worst"] <= 1


def test_the_answer_has_the_contract_at_its_top():
    answer = replay(sift(ROWS), ReplayAsked(seeds=3, noise=0.02))
    assert answer["sampler"] == "residual-gp"
    assert list(answer["overall"]["regret"]) == ["1", "2", "3", "5", "8", "10"]
    assert {"duplicates", "illegal_asks", "false_prunes"} <= answer["overall"].keys()
    assert answer["workloads"]["small"]["candidates"] == 6
    assert answer == replay(sift(ROWS), ReplayAsked(seeds=3, noise=0.02))


def test_brute_force_walks_in_the_order_of_the_legal_set_not_of_the_table():
    orders = []
    for rows in (ROWS, ROWS[::-1]):
        found = landscape(rows)
        sampler = open_sampler(found, SamplerName.BRUTE_FORCE, seed=0)
        orders.append(walk(found, sampler).regrets)
    assert orders[0] == orders[1]


def test_a_prune_of_what_ran_is_counted_and_the_best_is_named():
    tiny = [{**one, "device_memory_bytes": 1000} for one in ROWS]
    found = score([landscape(tiny)], lambda one, seed: ListSampler(one.space), asked=EVERY)
    assert found["overall"]["false_prunes"] == 5
    assert found["overall"]["best_pruned"] == 1
    assert found["overall"]["regret"]["10"]["mean"] == 1.0


def test_where_nothing_was_tried_the_regret_is_one():
    assert Walk(regrets=(), duplicates=0, illegal_asks=0, out_of_memory=0).regret_after(3) == 1.0


def test_the_command_prints_json_alone(tmp_path, capsys):
    path = write_csv(tmp_path / "table.csv")
    assert run(["replay", str(path), "--sampler", "gp,random", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["sampler"], list(answer["samplers"]), err) == ("gp", ["gp", "random"], "")
    assert run(["replay", str(path), "--sampler", "all", "--noise", "0.02"]) == 0
    assert "brute-force" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--sampler", "residual"], "did you mean 'residual-gp'?"),
        (["--sampler", ""], "wanted residual-gp"),
        (["--seeds", "0"], "--seeds is 0; wanted 1 to"),
        (["--noise", "1"], "--noise is 1; wanted a share"),
        (["--noise", "nan"], "wanted a finite number"),
    ],
)
def test_wrong_words_are_refused(tmp_path, words, wanted, capsys):
    path = write_csv(tmp_path / "table.csv")
    assert run(["replay", str(path), *words]) == 2
    assert wanted in capsys.readouterr().err
