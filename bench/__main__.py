"""`python -m bench [NAME...]`: run benchmarks, print and keep their tables, check their claims."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from bench import attention, balance, depths, monitor, predict, replay, topology, trial
from bench.record import write_page

BENCHMARKS = {
    "attention": attention.run,
    "balance": balance.run,
    "depths": depths.run,
    "monitor": monitor.run,
    "predict": predict.run,
    "replay": replay.run,
    "topology": topology.run,
    "trial": trial.run,
}


def main(names: Sequence[str]) -> int:
    """Run the named benchmarks, all without names; 1 when a claim is broken, 2 on a wrong name.

    A known miss is repeated at the end as such and breaks nothing.
    """
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(
            f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr
        )
        return 2
    failed = []
    for name in names or BENCHMARKS:
        start = time.monotonic()
        report = BENCHMARKS[name]()
        page = write_page(name, report)
        print(f"== {name}, {time.monotonic() - start:.0f} s, kept in {page}\n\n{report}\n")
        failed += [claim for claim in report.claims if not claim.holds]
    for claim in failed:
        print(claim, file=sys.stderr)
    return 1 if any(claim.breaks for claim in failed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
