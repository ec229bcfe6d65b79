"""The `ranks` fixture: one pool of gloo ranks for the whole run."""

from collections.abc import Iterator

import pytest
from rank_pool import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Run a function on several ranks: `ranks.run(fn, world=3, **kwargs)`, one result a rank."""
    pool = RankPool()
    yield pool
    pool.close()
