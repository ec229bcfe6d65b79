"""The marked processes of tests/ray, for tests that kill them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "ray"))
