"""`cptune` and `python -m cptune`."""

import sys
from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line; a Ctrl-C while it is still being imported ends without a traceback."""
    try:
        from cptune.cli import main as run
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
