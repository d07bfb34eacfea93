"""The command line of posenc, beside the library and not inside it: importing anything of `posenc`
loads torch, and help, the version and errors in what was typed need none of it."""

__version__ = "0.1.0"
