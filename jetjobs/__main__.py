"""`python -m jetjobs` is the command line."""

from jetjobs.cli import main

main()
