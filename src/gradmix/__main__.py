"""`python -m gradmix` is the command `gradmix`."""

from gradmix.cli import main

main()
