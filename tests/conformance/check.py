"""A case of the page that is compared by a function of its own."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Check"]


def nothing() -> None:
    """Of a case in which there is nothing to compare."""


@dataclass(frozen=True)
class Check:
    """One case: what it is in this library's words, and a function that raises where it is not.

    `why` is empty where it is equal. Otherwise it begins with "theirs:" or "refused:", and `run`
    holds that the fault is still there.
    """

    case: str
    said: str
    run: Callable[[], None] = nothing
    why: str = ""

    @property
    def status(self) -> str:
        """What `run` shows where it does not raise."""
        return {"": "equal", "theirs": "differs", "refused": "refused"}[self.why.partition(":")[0]]
