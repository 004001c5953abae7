"""python -m vitrail."""

from vitrail.cli import main

__all__ = []

main()
