"""The terminal that tables are printed on."""

from rich.console import Console

__all__ = ["console"]


def console(*, width: int = 120, stderr: bool = False) -> Console:
    """A page of `width` columns where nobody says how wide it is: the usual 80 would break tables."""
    made = Console(stderr=stderr)
    return made if made.is_terminal else Console(stderr=stderr, width=width)
