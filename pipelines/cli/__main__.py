"""`python -m pipelines.cli` is `everloop`."""

from pipelines.cli import main

main()
