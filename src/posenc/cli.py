"""The command line from within the library; it is a package beside this one, `posenc_cli`."""

from posenc_cli.main import cli, main, run

__all__ = ["cli", "main", "run"]
