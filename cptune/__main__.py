"""`python -m cptune`."""

from cptune.cli import main

main()
