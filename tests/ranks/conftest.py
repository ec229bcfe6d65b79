"""The `ranks` fixture: one pool of gloo ranks for each file of tests."""

from collections.abc import Iterator

import pytest
from rank_pool import RankPool


@pytest.fixture(scope="module")  # not of the run: ranks that idle take time from the tests of Ray
def ranks() -> Iterator[RankPool]:
    """Run a function on several ranks: `ranks.run(fn, world=3, **kwargs)`, one result a rank."""
    pool = RankPool()
    yield pool
    pool.close()
