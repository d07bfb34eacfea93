"""What the command line answers by itself: it waits for no torch, and what it says is true."""

import subprocess
import sys

import click
import pytest

import posenc
import posenc_cli
from posenc.cli import cli
from posenc.lab import BUDGETS
from posenc.registry import ENCODINGS
from posenc.report.checkpoints import CHECKPOINTS
from posenc.report.choose import TASKS
from posenc_cli import names

CHOOSE = ("choose", "--max-length", "8", "--train-length", "8")
WITHOUT = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "posenc", "rich", "matplotlib"):
            raise AssertionError(f"{name} is loaded")
sys.meta_path.insert(0, Refused())
from posenc_cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 0, "Rank the encodings"),
        (["--help"], 0, "Rank the encodings"),
        (["--version"], 0, posenc.__version__),
        *[([name, "--help"], 0, f"posenc {name}") for name in cli.commands],
        (["compare", "--budget", "quik"], 2, "did you mean quick?"),
        (["choose", "--max-length", "8"], 2, "--train-length"),
        ([*CHOOSE, "--checkpoint", "lama"], 2, "llama"),
        ([*CHOOSE, "--task", "x"], 2, "retrieval"),
        (["show"], 2, "NAME"),
        (["bench", "--seconds", "-1"], 2, "-1"),
        (["chose"], 2, "choose"),
    ],
)
def test_help_version_and_errors_of_typing_load_neither_torch_nor_the_library(
    arguments: list[str], code: int, told: str
):
    command = [sys.executable, "-c", WITHOUT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert told in done.stdout + done.stderr


def test_what_the_command_line_knows_without_the_library_is_true():
    assert posenc_cli.__version__ == posenc.__version__
    assert tuple(BUDGETS) == names.BUDGETS
    assert tuple(CHECKPOINTS) == names.CHECKPOINTS
    assert names.TASKS == TASKS
    quick = sum(not entry.only_full for entry in ENCODINGS.values())
    command = cli.commands["compare"]
    budget = {param.name: param for param in command.params}["budget"]
    assert isinstance(budget, click.Option) and budget.help is not None and command.help is not None
    assert f"{quick} of the {len(ENCODINGS)} encodings" in budget.help
    assert f"Of the {len(ENCODINGS)} encodings the quick budget measures {quick};" in command.help
