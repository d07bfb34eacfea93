"""Figures of the pages are what their commands make now, and the check would say if they were not."""

import importlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

import oracles
from posenc.registry import ENCODINGS, RELATED, SCALINGS
from posenc.report.ink import digest
from posenc.report.pictures import facts, picture
from posenc.report.pictures.draw import content

ROOT = Path(__file__).parents[1]


@pytest.fixture(name="check", scope="module")
def made() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module("check_figures")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def copied(check: ModuleType, folder: Path, image: Image.Image, told: dict[str, str]) -> Any:
    """ALiBi's figure as another file, with other pixels or other words in it."""
    words = PngImagePlugin.PngInfo()
    for key, text in told.items():
        words.add_text(key, text)
    file = folder / "alibi.png"
    image.save(file, pnginfo=words)
    return replace(check.figures()["alibi"], file=file)


@pytest.fixture(name="alibi", scope="module")
def image_and_words() -> tuple[Image.Image, dict[str, str]]:
    image = Image.open(io.BytesIO(content(picture("alibi"), ".png")))
    return image, {key: image.info[key] for key in ("Software", "drawn from")}


def test_a_figure_says_what_it_was_drawn_from(alibi: tuple[Image.Image, dict[str, str]]) -> None:
    told = json.loads(alibi[1]["drawn from"])
    assert told == json.loads(json.dumps(facts(picture("alibi"))))
    first = told["panels"][0]
    assert first["title"] == "Added to a logit, by distance"
    count, mean, *_, last = first["numbers"]["head 0"]
    slope = oracles.alibi_slopes(4)[0]
    assert count == 256 and last == oracles.alibi(slope, 255, 0)
    assert mean == pytest.approx(-slope * 127.5)
    assert None in told["panels"][1]["numbers"][""]  # what the mask hides


def test_a_figure_is_small_and_keeps_its_colours(
    alibi: tuple[Image.Image, dict[str, str]],
) -> None:
    image = alibi[0]
    assert image.mode == "P" and image.size == (800, 350)
    pixels = np.asarray(image.convert("RGB"), dtype=int).reshape(-1, 3)
    for wanted in ((0, 114, 178), (213, 94, 0), (0, 158, 115), (0, 0, 0), (255, 255, 255)):
        assert np.abs(pixels - wanted).max(-1).min() < 12


def test_what_is_stale_is_named(
    check: ModuleType, alibi: tuple[Image.Image, dict[str, str]], tmp_path: Path
) -> None:
    image, told = alibi
    assert check.stale(copied(check, tmp_path, image, told), ink=True) is None
    other = told | {"drawn from": json.dumps(facts(picture("kerple")))}
    assert check.stale(copied(check, tmp_path, image, other), ink=False) == (
        "was drawn from other facts"
    )
    assert "does not say" in str(check.stale(copied(check, tmp_path, image, {}), ink=False))
    pixels = np.asarray(image.convert("RGB")).copy()
    pixels[100:120, 100:120] = 0
    changed = Image.fromarray(pixels)
    assert "0.14% of its pixels" in str(
        check.stale(copied(check, tmp_path, changed, told), ink=True)
    )
    elsewhere = told | {"Software": "matplotlib 2.0"}  # its letters may lie elsewhere
    assert check.stale(copied(check, tmp_path, changed, elsewhere), ink=True) is None
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    large = copied(check, tmp_path, Image.fromarray(noise), told)
    assert "bytes, more than 60,000" in str(check.stale(large, ink=False))
    assert check.stale(replace(large, file=tmp_path / "none.png"), ink=False) == "is missing"


@pytest.mark.parametrize(
    ("one", "other", "is_alike"),
    [
        ([5, 1.0, 2.0], [5, 1.0005, 2.0], True),  # rounding, of a thousandth of the largest
        ([5, 1.0, 2.0], [5, 1.01, 2.0], False),
        ([5, 1e-9, 2.0], [5, -1e-9, 2.0], True),
        ([500, 1.0], [501, 1.0], False),
        ([5, None, 2.0], [5, 0.0, 2.0], False),
        ({"a": [1.0]}, {"b": [1.0]}, False),
        ({"a": {"b": "c"}}, {"a": {"b": "d"}}, False),
        ([1.0], [1.0, 2.0], False),
    ],
)
def test_facts_are_compared_up_to_rounding(
    check: ModuleType, one: Any, other: Any, is_alike: bool
) -> None:
    assert check.alike(one, other) is is_alike


def test_facts_of_two_encodings_differ_and_those_of_one_do_not(check: ModuleType) -> None:
    for one, other in (("alibi", "kerple"), ("rope", "xpos"), ("ntk", "yarn"), ("swin", "beit")):
        same, again, different = (facts(picture(name)) for name in (one, one, other))
        assert check.alike(same, again) and not check.alike(same, different)


def test_a_record_changes_its_digest() -> None:
    record = {"cells": [{"nats": 1.5}], "format": 1}
    assert digest(record) == digest({"format": 1, "cells": [{"nats": 1.5}]})
    assert digest(record) != digest({"format": 1, "cells": [{"nats": 1.5000001}]})


def test_every_page_has_its_figure_in_the_check(check: ModuleType) -> None:
    assert {*ENCODINGS, *SCALINGS, *RELATED, "compare", "compare-full", "bench"} == set(
        check.figures()
    )


def test_the_facts_of_a_few_figures_are_those_of_now(check: ModuleType) -> None:
    for name in ("alibi", "longrope", "axes", "compare"):
        assert check.stale(check.figures()[name], ink=False) is None


@pytest.mark.slow
def test_every_figure_is_what_its_command_makes_now(
    check: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main([]) == 0, capsys.readouterr().err
