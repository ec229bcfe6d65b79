"""From the flags of `cptune balance` to a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from cptune.balance.advice import read_model
from cptune.balance.asked import BalanceAsked
from cptune.balance.distributions import (
    is_distribution,
    known_names,
    nearest_lengths,
    read_distribution,
)
from cptune.balance.effort import DRAWN_STEPS, check_drawn
from cptune.balance.histogram import Histogram
from cptune.balance.layers import read_work
from cptune.balance.processes import measure
from cptune.balance.simulate import Setting, parse_cps
from cptune.balance.study import Measurer, Study, run_study
from cptune.balance.work import LONGEST, Tokens, published_token_keys
from cptune.domain.checks import LARGEST_SEED, is_file
from cptune.errors import SpecError

_DRAWN_DOCUMENTS = 100_000  # of a distribution, at least

OpenFile = Callable[[Path, str | None], Iterable[Tokens]]


def answer_asked(
    asked: BalanceAsked, *, open_file: OpenFile, measurer: Measurer = measure
) -> Study:
    """The study that a person asks for.

    Args:
        asked: The flags.
        open_file: Reads a column of lengths from a file.
        measurer: Times batches on so many ranks, when that is asked for.

    Raises:
        SpecError: when a flag or the file is wrong.
        ClusterError: when a measuring process fails.
    """
    for name, value, least, most in (
        ("seed", asked.seed, 0, LARGEST_SEED),
        ("cap", asked.cap, 1, LONGEST),
    ):
        if value is not None and not least <= value <= most:
            raise SpecError(f"{name} is {value}; wanted {least} to {most:,}")
    keys = published_token_keys() if asked.token_keys is None else asked.token_keys
    work = read_work(asked.layers, window=asked.window, token_keys=keys)
    setting = Setting(
        world=asked.world,
        tokens_per_gpu=asked.tokens_per_gpu,
        cps=parse_cps(asked.cp),
        work=work,
        split=asked.split,
    )
    model = None if asked.model is None else read_model(asked.model)
    stream = _open_stream(asked, setting=setting, open_file=open_file)
    if asked.cap is not None:
        stream = (np.minimum(documents, asked.cap) for documents in stream)
    return run_study(
        stream,
        setting=setting,
        packing=asked.packing,
        seed=asked.seed,
        measurer=measurer if asked.measured else None,
        model=model,
    )


def read_histogram(lengths: str, *, open_file: OpenFile) -> Histogram:
    """The lengths of a file or a distribution, as `straggler_factor` takes them.

    Raises:
        SpecError: when the file or the distribution is wrong.
    """
    histogram = Histogram()
    for documents in _open_lengths(lengths, None, open_file) or [read_distribution(lengths).table]:
        histogram.add(documents)
    return histogram


def _open_stream(asked: BalanceAsked, *, setting: Setting, open_file: OpenFile) -> Iterable[Tokens]:
    stream = _open_lengths(asked.lengths, asked.column, open_file)
    if stream is not None:
        return stream
    drawn = read_distribution(asked.lengths)
    check_drawn(setting.step_tokens, mean_tokens=drawn.mean_tokens)
    least = int(_DRAWN_DOCUMENTS * drawn.mean_tokens)
    return drawn.chunks(max(least, DRAWN_STEPS * setting.step_tokens), seed=asked.seed)


def _open_lengths(lengths: str, column: str | None, open_file: OpenFile) -> Iterable[Tokens] | None:
    """The blocks of a file; None for the name of a distribution."""
    if is_file(Path(lengths)):
        return open_file(Path(lengths), column)
    if is_distribution(lengths):
        return None
    raise SpecError(
        f"lengths is {lengths!r}, which is no file and no distribution"
        f"{nearest_lengths(lengths, Path())}",
        hint=f"wanted a file or {', '.join(known_names())}",
    )
