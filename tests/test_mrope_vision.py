"""Several coordinates, and rotations of other things, against transformers' own code.

The cases are lists in tests/conformance, which scripts/conformance.py walks too.
"""

import importlib
import re
from pathlib import Path

import pytest
import torch

from conformance.check import Check
from conformance.groups import GROUPS
from conformance.positions_of_models import their_positions
from conformance.several_axes import CENTRED, MROPE, VISION, modules
from posenc.positions import Text, Video, multimodal

CASES = [
    pytest.param(check, id=f"{group}/{check.case}")
    for group, listed in GROUPS.items()
    for check in listed()
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", CASES)
def test_a_case_is_as_the_page_says(check: Check) -> None:
    with torch.no_grad():
        check.run()
    assert check.said or check.status == "refused"


def test_every_family_is_accounted_for() -> None:
    """A family that a new version of transformers adds fails here, not in silence."""
    covered = {modules(name, family)[2].__name__ for name, family in (MROPE | VISION).items()}
    covered |= {modules(name)[2].__name__ for name in CENTRED}
    covered |= {"Llama4VisionRotaryEmbedding", "Gemma4VisionRotaryEmbedding"}
    several_axes = re.compile("recomposition_frequencies|patch_coords|freqs_x|compute_axial|mrope")
    folders = Path(importlib.import_module("transformers.models").__path__[0])
    found = {
        body.split("(")[0]
        for path in folders.glob("*/modeling_*.py")
        for body in path.read_text().split("\nclass ")[1:]
        if re.search("Rot|Rope", body.split("(")[0])
        and several_axes.search(body)
        and "Embedding" in body.split("(")[0]
    }
    assert len(found) > 50 and found <= covered, f"not compared: {sorted(found - covered)}"


def test_what_follows_a_long_video_comes_after_it() -> None:
    """transformers 5 goes on after the grid's height or width, inside the time of the video."""
    parts = [Text(3), Video(4, 2, 2, 1.5), Text(1)]
    theirs = their_positions("qwen2_5_vl", parts, "video", second_per_grid_ts=torch.tensor([1.5]))
    assert torch.equal(multimodal(parts, tokens_per_second=4, advance="grid"), theirs)
    assert theirs[-1].tolist() == [5, 5, 5] and theirs[:-1].max() == 3 + 18
    assert multimodal(parts, tokens_per_second=4)[-1].tolist() == [22, 22, 22]
