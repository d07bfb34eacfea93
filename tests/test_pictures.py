"""Pictures of encodings: numbers equal to the papers' formulas, files whole, the same every time."""

import json
import math
from pathlib import Path

import pytest
import torch

import oracles
from posenc import records
from posenc.cli import run
from posenc.registry import ENCODINGS, RELATED, SCALINGS
from posenc.report.pictures import Heat, Lines, Maps, Panel, picture
from posenc.report.pictures.draw import content, write
from posenc.report.pictures.related import PHI_3_LONG, PHI_3_SHORT


def values(panel: Panel) -> torch.Tensor:
    """All numbers of a panel, those that a mask hides as zeros."""
    if isinstance(panel, Heat):
        parts = [panel.values]
    else:
        parts = list((panel.lines if isinstance(panel, Lines) else panel.maps).values())
    return torch.cat([part.double().flatten() for part in parts]).nan_to_num()


def lines_of(name: str, panel: int = 0) -> Lines:
    found = picture(name).rows[0][panel]
    assert isinstance(found, Lines)
    return found


def heat_of(name: str, panel: int) -> torch.Tensor:
    found = picture(name).rows[0][panel]
    assert isinstance(found, Heat)
    return found.values


@pytest.mark.parametrize("name", [*ENCODINGS, *SCALINGS, *RELATED])
def test_every_entry_is_drawn_into_a_small_png(name: str):
    shown = picture(name)
    for panel in (panel for row in shown.rows for panel in row):
        drawn = values(panel)
        assert drawn.isfinite().all() and drawn.std() > 0, f"{panel.title}: nothing to see"
    made = content(shown, ".png")
    assert made.startswith(b"\x89PNG") and 5_000 < len(made) < 60_000


@pytest.mark.parametrize("name", ["learned", "t5", "cope", "mixed-rope", "deberta", "rope"])
def test_numbers_are_seeded_and_leave_the_generator_alone(name: str):
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first = picture(name)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(8)
    again = picture(name)
    for one, other in zip(first.rows[0], again.rows[0], strict=True):
        assert torch.equal(values(one), values(other))


def test_what_was_drawn_at_random_is_said():
    assert picture("rope").note.endswith("nothing is learned")
    assert "as initialised, seed 0" in picture("t5").note
    assert "begin at zero and are drawn at random here" in picture("cope").note
    assert "logits times 1.296" in picture("yarn").note  # (0.1 ln 4 + 1)²


def test_sinusoids_are_the_papers():
    table = heat_of("sinusoidal", 0)
    for position in (0, 1, 17, 63):
        for channel in (0, 1, 40, 127):
            expected = oracles.sinusoid(position, channel, table.shape[0])
            assert math.isclose(table[channel, position], expected, abs_tol=1e-6)


def test_rotary_scores_are_the_mean_cosine():
    shown = lines_of("rope", 1)
    score, at = shown.lines["equal"], shown.x.tolist()
    speeds = oracles.frequencies(64, 10_000.0)
    for index in (0, 9, 500, 1022):
        expected = math.fsum(math.cos(at[index] * s) for s in speeds) / len(speeds)
        assert math.isclose(score[index], expected, abs_tol=1e-5)
    cos = heat_of("rope", 0)
    assert math.isclose(cos[3, 200], math.cos(200 * speeds[3]), abs_tol=1e-6)


def test_a_learned_scale_is_drawn_at_three_scales():
    lines = lines_of("learned-scale-rope", 1).lines
    plain, slow, fast = (lines[f"equal, scale {x}"] for x in ("1", "0.25", "4"))
    torch.testing.assert_close(slow[3::4], plain[: len(slow[3::4])], atol=1e-5, rtol=0)
    torch.testing.assert_close(fast[: len(plain[3::4])], plain[3::4], atol=1e-5, rtol=0)


def test_biases_are_those_of_the_papers():
    alibi = lines_of("alibi").lines
    for head, slope in enumerate(oracles.alibi_slopes(4)):
        assert alibi[f"head {head}"][200].item() == oracles.alibi(slope, 200, 0)
    matrix = heat_of("alibi", 1)
    assert matrix[60, 50].item() == oracles.alibi(oracles.alibi_slopes(4)[0], 60, 50)
    assert matrix[50, 60].isnan()  # the future is hidden
    sandwich = lines_of("sandwich").lines["head 1"]
    largest, far = (oracles.sandwich(1, 4, d, 0) for d in (0, 100))
    assert math.isclose(sandwich[100], far - largest, abs_tol=1e-6)
    t5 = lines_of("t5").lines["head 0"]
    assert t5[113] == t5[255] and t5[112] != t5[113]  # the last bucket holds all beyond


def test_past_its_threshold_fire_reads_the_querys_position():
    lines = lines_of("fire").lines
    near, at_length, far = (lines[f"query at {x}"] for x in (128, 256, 1023))
    assert torch.equal(near[:129], at_length[:129]) and near[129:].isnan().all()
    assert (far[1:128] > at_length[1:128]).all()


def test_scalings_are_drawn_before_and_after():
    shown = lines_of("llama3")
    expected = oracles.llama3_frequencies(128, 10_000.0, 4.0, 2048)
    assert math.isclose(shown.lines["llama3"][36], 2 * math.pi / expected[36], rel_tol=1e-6)
    trained = oracles.frequencies(128, 10_000.0)
    assert math.isclose(shown.lines["trained"][63], 2 * math.pi / trained[63], rel_tol=1e-6)
    still = lines_of("proportional", 1).lines["proportional"]
    assert still[15] == 0.25 and still[16] == 0
    assert lines_of("proportional").lines["proportional"][16].isnan()


def test_longrope_is_drawn_with_both_lists() -> None:
    ratio = lines_of("longrope", 1).lines
    assert math.isclose(ratio["short list"][0], 1 / 1.05, rel_tol=1e-6)
    assert math.isclose(ratio["short list"][47], 1 / 3.05, rel_tol=1e-6)
    assert math.isclose(ratio["long list"][16], 1 / 9.09, rel_tol=1e-6)
    trained = oracles.frequencies(96, 10_000.0)
    turn = lines_of("longrope").lines["long list"][47]
    assert math.isclose(turn, 2 * math.pi / trained[47] * 64.81, rel_tol=1e-6)
    assert "logits times 1.417" in picture("longrope").note  # 1 + ln 32 / ln 4096


def test_the_drawn_lists_are_those_of_the_checkpoint() -> None:
    config = json.loads((Path(__file__).parent / "configs/phi-3-mini-128k.json").read_text())
    for name, drawn in (("short_factor", PHI_3_SHORT), ("long_factor", PHI_3_LONG)):
        assert drawn == pytest.approx(config["rope_scaling"][name], rel=1e-6)


def test_qwens_ntk_is_drawn_at_the_length_in_use() -> None:
    base = 10_000.0 * 7 ** (128 / 126)  # at four times the trained length
    ratio = lines_of("qwen-ntk", 1).lines["qwen-ntk"]
    assert math.isclose(ratio[63], (base / 10_000.0) ** (-126 / 128), rel_tol=1e-6)


def test_axes_are_a_row_term_and_a_column_term() -> None:
    panel = picture("axes").rows[0][0]
    assert isinstance(panel, Maps)
    for values in panel.maps.values():
        mixed = values - values[:1] - values[:, :1] + values[0, 0]
        assert mixed.abs().max() < 1e-6 and values.std() > 1e-3


def test_mrope_shows_rows_and_columns_in_turn() -> None:
    maps = picture("mrope").rows[0][0]
    assert isinstance(maps, Maps)
    assert maps.maps["pair 1"].std(1).max() < 1e-6 < maps.maps["pair 1"].std(0).max()
    assert maps.maps["pair 2"].std(0).max() < 1e-6 < maps.maps["pair 2"].std(1).max()


def test_windows_and_images_are_maps_with_the_query_marked():
    for name in ("swin", "decomposed"):
        panel = picture(name).rows[0][0]
        assert isinstance(panel, Maps) and panel.cell == (5, 7)
        assert all(values.shape == (11, 15) for values in panel.maps.values())
    score = picture("axial-rope").rows[0][1]
    assert isinstance(score, Maps) and score.cell == (6, 8)
    assert score.maps[""].argmax() == 6 * 16 + 8 and math.isclose(score.maps[""].max(), 1)


def test_cope_shows_the_positions_that_it_counts():
    counted = lines_of("cope").lines["mean of 32"]
    assert counted[0] < 1 and counted[-1] == 63  # at most max_positions − 1
    assert (counted.diff() >= 0).all()


def test_no_encoding_shows_what_the_mask_tells():
    lines = lines_of("none").lines
    assert math.isclose(lines["causal mask"][99], 1 / 100, rel_tol=1e-5)
    assert lines["no mask"].std() < 1e-6


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
def test_a_figure_is_written_whole_and_the_same_every_time(suffix: str, tmp_path: Path):
    file = tmp_path / "new folder" / f"alibi{suffix}"
    write("alibi", file)
    first = file.read_bytes()
    write("alibi", file)
    assert file.read_bytes() == first and [x.name for x in file.parent.iterdir()] == [file.name]


def test_a_failed_write_leaves_the_old_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "rope.png"
    file.write_bytes(b"old")

    def full(source: object, target: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(records.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write("alibi", file)
    assert file.read_bytes() == b"old" and list(tmp_path.iterdir()) == [file]


def test_the_command_draws_beside_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "yarn.svg"
    assert run(["show", "yarn", "--figure", str(file)]) == 0
    printed = capsys.readouterr()
    assert "YaRN" in printed.out and f"written: {file}" in printed.err
    assert file.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize("name", ["rope.jpg", "rope", "rope.pdf"])
def test_other_kinds_of_files_are_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["show", "rope", "--figure", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert f"a figure is a .png or .svg file, got '{tmp_path / name}'" in printed.err
    assert printed.out == "" and not list(tmp_path.iterdir())
