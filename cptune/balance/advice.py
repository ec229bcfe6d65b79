"""What the spread costs and what helps: context parallelism, packing, both, or dynamic CP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from cptune.balance.histogram import Histogram
from cptune.balance.pack import StepCutter, cut_rows
from cptune.balance.simulate import Setting
from cptune.balance.spread import Spread
from cptune.balance.work import Work
from cptune.domain.workload import ModelShape, preset_fields
from cptune.errors import SpecError

_DYNAMIC_DOCUMENTS = 1_000_000  # to draw, about
_DYNAMIC_STEPS = (16, 400)  # at least and at most
_SLACK = 0.02  # of the best step: the smallest CP within it is advised


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Expected step times, each as a factor on CP=1 with sequential packing; above 1 is faster.

    `cp` is the smallest of the sizes within 2% of the best step, with packing and without.
    """

    cp: int
    packing: str
    straggler_at_cp1: float
    cp_gain: float
    packing_gain: float
    both_gain: float
    dynamic_gain: float
    attention_share: float

    def lines(self) -> list[str]:
        """For people."""
        lost = 1 - 1 / step_factor(self.straggler_at_cp1, self.attention_share)
        of = "the step" if self.attention_share < 1 else "attention time"
        return [
            f"CP=1, documents as they come: the slowest group takes {self.straggler_at_cp1:.2f} "
            f"times the mean attention time, {lost:.0%} of {of} is lost to waiting",
            f"CP={self.cp} alone {self.cp_gain:.2f}x, {self.packing} packing alone "
            f"{self.packing_gain:.2f}x, both {self.both_gain:.2f}x as fast",
            f"a CP chosen for each document instead of CP={self.cp} for all: at most "
            f"{self.dynamic_gain:.2f}x as fast as CP={self.cp}",
        ]


def advise(
    spreads: Mapping[str, Mapping[int, Spread]],
    *,
    histogram: Histogram,
    setting: Setting,
    attention_share: float = 1.0,
) -> Advice:
    """Weigh simulated spreads, by packing and CP, `sequential` and one other among them.

    Only waiting is weighed; what context parallelism costs in communication is for a trial to say.
    """
    plain = spreads["sequential"]
    packing = next((name for name in spreads if name != "sequential"), "sequential")
    packed = spreads[packing]
    base = step_factor(plain[1].slowest_over_mean, attention_share)
    steps = {cp: step_factor(one.slowest_over_mean, attention_share) for cp, one in plain.items()}
    cp = min(size for size, step in steps.items() if step <= min(steps.values()) * (1 + _SLACK))
    return Advice(
        cp=cp,
        packing=packing,
        straggler_at_cp1=plain[1].slowest_over_mean,
        cp_gain=base / steps[cp],
        packing_gain=base / step_factor(packed[1].slowest_over_mean, attention_share),
        both_gain=base / step_factor(packed[cp].slowest_over_mean, attention_share),
        dynamic_gain=dynamic_cp_gain(
            histogram,
            setting=setting,
            cp=cp,
            static=plain[cp].slowest_over_mean,
            attention_share=attention_share,
        ),
        attention_share=attention_share,
    )


def step_factor(slowest_over_mean: float, attention_share: float) -> float:
    """Step time over that of even groups, when attention is this share of an even step."""
    return 1 + attention_share * (slowest_over_mean - 1)


def read_model(preset: str) -> ModelShape:
    """A public model by name.

    Raises:
        SpecError: when the name is not known.
    """
    try:
        return ModelShape(**cast(Any, preset_fields(preset)))
    except ValueError as exc:
        raise SpecError(str(exc)) from exc


def attention_share(model: ModelShape, *, keys_per_token: float) -> float:
    """Attention's share of the FLOPs of a step: 4 a pair and head element, 2 a weight and token."""
    attention = 4 * model.heads * model.head_dim * keys_per_token * model.layers
    embedding = 0 if model.tied_embeddings else model.vocab * model.hidden
    return attention / (attention + 2 * (model.parameters - embedding))


def dynamic_cp_gain(
    histogram: Histogram,
    *,
    setting: Setting,
    cp: int,
    static: float,
    attention_share: float = 1.0,
) -> float:
    """How much faster a step could be if each document had a CP of its own, up to `cp`.

    Args:
        histogram: The lengths, as often as they occur.
        setting: The hardware and the batch.
        cp: The CP of all documents that is compared, and the largest that one may have.
        static: Slowest over mean with that CP for all.
        attention_share: Of an even step.
    """
    even = dynamic_cp_straggler(histogram, setting=setting, cp=cp)
    return max(1.0, step_factor(static, attention_share) / step_factor(even, attention_share))


def dynamic_cp_straggler(histogram: Histogram, *, setting: Setting, cp: int) -> float:
    """The least slowest over mean, if each document may have a CP of its own, up to `cp`.

    Every rank is as busy as the mean, or as its share of the costliest document of the step, which
    goes over all `cp` ranks; what is longer than they hold is cut, as everywhere. Over steps drawn
    from the histogram.
    """
    row_tokens, work = cp * setting.tokens_per_gpu, setting.work
    per_step = setting.step_tokens / histogram.mean_tokens
    steps = max(_DYNAMIC_STEPS[0], min(_DYNAMIC_STEPS[1], int(_DYNAMIC_DOCUMENTS / per_step)))
    cutter, rng = StepCutter(setting.step_tokens), np.random.default_rng(0)
    ratios: list[float] = []
    while len(ratios) < steps:
        ready = cutter.feed(histogram.draw(min(1 << 20, 1024 + int(per_step)), rng))
        if ready is None:
            continue
        documents, counts = cut_rows(ready, row_tokens=setting.step_tokens)
        for pieces in np.split(documents, np.cumsum(counts)[:-1]):
            whole, rest = np.divmod(pieces, row_tokens)
            even = (whole * work.of(np.array([row_tokens])) + work.of(rest)).sum() / setting.world
            costliest = work.of(np.minimum(pieces, row_tokens)).max() / cp
            ratios.append(max(1.0, float(costliest / even)))
    return float(np.mean(ratios))


def batches_by_cp(
    histogram: Histogram, *, setting: Setting, cps: Sequence[int]
) -> dict[int, float]:
    """The share of steps whose longest document needs each CP and no smaller one."""
    documents = setting.step_tokens / histogram.mean_tokens
    lengths, shares = histogram.points()
    found: dict[int, float] = {}
    before = 0.0
    for cp in sorted(cps):
        within = shares[lengths <= cp * setting.tokens_per_gpu].sum()
        reached = 1.0 if cp == max(cps) else float(min(1.0, within) ** documents)
        found[cp] = reached - before
        before = reached
    return found


def keys_per_token(histogram: Histogram, *, work: Work) -> float:
    """Pairs of a token, on average over the tokens of all documents."""
    lengths, shares = histogram.points()
    return float((work.pairs(lengths) * shares).sum() / (lengths * shares).sum())
