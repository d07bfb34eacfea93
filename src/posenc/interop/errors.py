"""The one error of reading other people's configs."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ConfigError", "about"]


class ConfigError(ValueError):
    """A config that cannot be read as one encoding: names the key, its value, what was expected."""


@contextmanager
def about(key: str) -> Iterator[None]:
    """Errors of the encodings inside become a ConfigError about this key."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise ConfigError(f"{key}: {error}") from error
