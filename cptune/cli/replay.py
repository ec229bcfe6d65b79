"""`cptune replay`: any sampler on a stored table of measurements."""

from __future__ import annotations

from pathlib import Path

from cptune.cli.app import Format, app
from cptune.domain.aliases import meant
from cptune.domain.study import SamplerName
from cptune.errors import SpecError
from cptune.printing import print_answer

_ALL = "all"
_MOST_SEEDS = 10_000


@app.command
def replay(
    table: Path,
    /,
    *,
    sampler: str = SamplerName.RESIDUAL_GP.value,
    seeds: int = 20,
    noise: float = 0.0,
    format: Format = Format.TABLE,
) -> int:
    """Replay searches on a stored table: how far from the best each is after N trials.

    Args:
        table: Parquet or CSV, a row for each candidate of each workload; or a run directory.
        sampler: Who searches: some of residual-gp, tpe, gp, random, brute-force by commas, or all.
        seeds: Searches of each sampler and workload.
        noise: Standard deviation of a trial's step time, as a share; 0 flatters every sampler.
        format: How to print the result.
    """
    from cptune.offline.replay import ReplayAsked, read_landscapes
    from cptune.offline.replay import replay as answer_replay
    from cptune.report.replay import replay_view

    if not 1 <= seeds <= _MOST_SEEDS:
        raise SpecError(f"--seeds is {seeds}; wanted 1 to {_MOST_SEEDS:,}")
    if not 0 <= noise < 1:
        raise SpecError(f"--noise is {noise:g}; wanted a share from 0 up to, not including, 1")
    asked = ReplayAsked(samplers=_samplers(sampler), seeds=seeds, noise=noise)
    answer = answer_replay(read_landscapes(table), asked)
    print_answer(answer, as_json=format is Format.JSON, view=replay_view)
    return 0


def _samplers(said: str) -> tuple[SamplerName, ...]:
    """The samplers of a list by commas, each once."""
    if said == _ALL:
        return tuple(SamplerName)
    known = [one.value for one in SamplerName]
    words = [word.strip() for word in said.split(",")]
    for word in words:
        if word not in known:
            near = meant(word, [*known, _ALL])
            raise SpecError(f"--sampler is {word!r}; wanted {', '.join(known)} or {_ALL}{near}")
    return tuple(dict.fromkeys(map(SamplerName, words)))
