"""Run the command line: `python -m jetjobs`."""

from jetjobs.cli import main

main()
