"""The lab: text, training by seed, the bytes that are scored, and cells in worker processes."""

import json
import math
import multiprocessing
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import Learned, Linear, Rope, Scheme, Yarn, causal, window
from posenc.lab import (
    BUDGETS,
    ROWS,
    Budget,
    Cell,
    Corpus,
    Decoder,
    Recipe,
    load,
    reads,
    run_cell,
    run_cells,
    settings,
    train,
)
from posenc.lab import cells as all_cells
from posenc.lab.extrapolation import Probe, build, gapped, work
from posenc.records import CellStore
from posenc.registry import ENCODINGS, SCALINGS

TINY = Budget(
    "tiny", length=8, num_layers=2, dim=16, num_heads=2, steps=3, batch_size=2, lr=1e-3,
    num_windows=5, num_scored=2, num_seeds=2, all_rows=True, tuned_steps=2, factors=(0.5, 1, 2, 4),
)  # fmt: skip


def prose(num_bytes: int, seed: int = 0) -> bytes:
    letters = random.Random(seed)
    return bytes(letters.choice(b"abcdefgh \n") for _ in range(num_bytes))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_bytes(prose(4000))
    return path


@pytest.fixture(scope="module")
def corpus(text: Path) -> Corpus:
    return load(text, longest_window=32)


# --- the text ---


def test_the_default_text_is_the_standard_library() -> None:
    first, second = load(longest_window=1024), load()
    assert first.digest == second.digest
    assert "standard library" in first.name
    assert first.num_bytes > 1_000_000
    assert first.held_out.dtype == torch.uint8
    assert 0.08 < first.held_out.numel() / first.num_bytes < 0.22


def test_whole_files_are_held_out_and_none_of_them_is_trained_on(tmp_path: Path) -> None:
    for i in range(30):
        folder = tmp_path / f"part{i % 3}"
        folder.mkdir(exist_ok=True)
        (folder / f"{i}.txt").write_bytes(b"<%d>" % i + prose(200, seed=i))
    corpus = load(tmp_path)
    train_text, held_out = (bytes(x.tolist()) for x in (corpus.train, corpus.held_out))
    where = [(b"<%d>" % i in train_text, b"<%d>" % i in held_out) for i in range(30)]
    assert all(trained != held for trained, held in where)
    assert 3 <= sum(held for _, held in where) <= 6
    assert corpus.num_bytes == len(train_text) + len(held_out)


def test_which_files_are_held_out_depends_on_names_alone(tmp_path: Path) -> None:
    held = []
    for seed in (1, 2):
        root = tmp_path / str(seed)
        root.mkdir()
        for i in range(20):
            (root / f"{i}.txt").write_bytes(b"<%d>" % i + prose(100, seed=seed * 100 + i))
        part = bytes(load(root).held_out.tolist())
        held.append([i for i in range(20) if b"<%d>" % i in part])
    assert held[0] == held[1]


def test_one_file_holds_out_its_tail(text: Path, corpus: Corpus) -> None:
    content = text.read_bytes()
    assert bytes(corpus.train.tolist()) + bytes(corpus.held_out.tolist()) == content
    assert corpus.held_out.numel() == 400
    assert (corpus.name, corpus.source) == ("prose.txt", str(text))


def test_any_utf_8_language_is_text(tmp_path: Path) -> None:
    path = tmp_path / "zh.txt"
    path.write_text("位置编码让模型知道次序。" * 50, encoding="utf-8")
    assert load(path, longest_window=100).num_bytes == 50 * 12 * 3


def test_pictures_among_texts_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(prose(500))
    (tmp_path / "b.png").write_bytes(b"\x89PNG\0\0" * 50)
    assert load(tmp_path).num_bytes == 500


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"text\0text", ["byte 4", "NUL"]),
        (b"text \xff\xfe text", ["byte 5", "UTF-8"]),
        (b"short", ["too short", "5 bytes", "101"]),
    ],
)
def test_a_file_that_will_not_do_is_one_clear_line(
    tmp_path: Path, content: bytes, words: list[str]
) -> None:
    path = tmp_path / "given.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        load(path, longest_window=100)
    message = str(caught.value)
    assert all(word in message for word in [str(path), *words])
    assert "\n" not in message


def test_a_folder_without_text_says_so(tmp_path: Path) -> None:
    (tmp_path / "b.bin").write_bytes(b"\0\1\2")
    with pytest.raises(ValueError, match="none of its 1 files"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*missing"):
        load(tmp_path / "missing")


def test_an_unreadable_file_is_named(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:  # root, whom CI may run as, reads what chmod forbids
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError, match=r"cannot read .*prose\.txt: Permission denied"):
        load(text)


# --- the model and its training ---


def test_two_schemes_start_from_the_same_weights() -> None:
    plain, learned = (build(ROWS[name], TINY, seed=3) for name in ("none", "learned"))
    own = {name for name in learned.state_dict() if name not in plain.state_dict()}
    assert own == {"encoding.additive.weight"}
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, learned.state_dict()[name]), name


def test_every_row_trains_its_encoding() -> None:
    names = {name for row in ROWS.values() for name, _ in build(row, TINY, 0).named_parameters()}
    assert {"encoding.additive.weight", "encoding.bias.weight", "encoding.rotary.scale"} <= names


def test_training_repeats_bit_for_bit(corpus: Corpus) -> None:
    def run(seed: int) -> tuple[list[float], Tensor]:
        model = build(ROWS["t5"], TINY, seed)
        return train(model, corpus.train, TINY.recipe, seed=seed), model.head.weight.detach()

    (losses, weight), (again, same) = run(0), run(0)
    assert losses == again
    assert torch.equal(weight, same)
    assert run(1)[0] != losses


def test_training_learns(corpus: Corpus) -> None:
    model = Decoder(Scheme(rotary=Rope(8)), dim=16, num_heads=2, num_layers=1)
    losses = train(model, corpus.train, Recipe(16, 60, 8, 1e-2), seed=0)
    assert losses[-1] < losses[0] - 1.5
    assert losses[-1] > math.log(9)  # ten letters at random: less would mean that targets leak


def test_a_model_predicts_from_what_came_before() -> None:
    model = Decoder(Scheme(rotary=Rope(8)), dim=16, num_heads=2, num_layers=2).eval()
    tokens = torch.randint(256, (2, 12))
    changed = tokens.clone()
    changed[:, 7] += 1
    before, after = model(tokens), model(changed % 256)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7:], after[:, 7:])
    assert torch.equal(model(tokens, last=3), before[:, -3:])


def test_a_trained_rope_is_read_with_another_one() -> None:
    sizes = {"dim": 16, "num_heads": 2, "num_layers": 2, "seed": 5}
    plain, scaled = Rope(8), Rope(8, scaling=Yarn(factor=4.0, original_length=8))
    model, other = Decoder(Scheme(rotary=plain), **sizes), Decoder(Scheme(rotary=scaled), **sizes)
    tokens = torch.randint(256, (2, 32))
    torch.testing.assert_close(model(tokens, rotary=scaled), other(tokens))
    assert not torch.allclose(model(tokens), other(tokens))
    with pytest.raises(ValueError, match="without a rotation"):
        Decoder(Scheme(), **sizes)(tokens, rotary=plain)


def test_a_window_hides_what_is_further_away() -> None:
    model = Decoder(Scheme(), dim=16, num_heads=2, num_layers=1).eval()
    tokens = torch.randint(256, (1, 12))
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 256
    windowed = model.with_mask(causal & window(4))
    assert torch.equal(windowed(tokens)[:, 4:], windowed(changed)[:, 4:])
    assert not torch.equal(windowed(tokens)[:, 3], windowed(changed)[:, 3])
    assert not torch.equal(model(tokens)[:, 4:], model(changed)[:, 4:])
    torch.testing.assert_close(windowed(tokens[:, :4]), model(tokens[:, :4]))


def test_the_rate_warms_up_and_falls() -> None:
    recipe = Recipe(length=8, steps=200, batch_size=1, lr=1.0, warmup=10)
    rates = [recipe.lr_at(step) for step in range(200)]
    assert rates[0] == pytest.approx(0.1)
    assert 0.98 < max(rates) <= 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.05, abs=1e-3)


# --- what is scored ---


@pytest.mark.parametrize("largest_gap", [1, 4])
def test_every_context_scores_the_same_bytes(corpus: Corpus, largest_gap: int) -> None:
    probe = Probe.of(corpus, TINY, largest_gap)
    longest, _, targets = probe.context(32)
    for context in TINY.contexts:
        inputs, positions, same = probe.context(context)
        assert torch.equal(same, targets)
        assert torch.equal(inputs, longest[:, -context:])
        assert torch.equal(inputs[:, -1:], targets[:, -2:-1])  # the last target comes after all
        if largest_gap == 1:
            assert positions is None
        else:
            assert positions is not None
            gaps = positions.diff(dim=1)
            assert positions[:, 0].eq(0).all() and 1 <= gaps.min() <= gaps.max() <= largest_gap
    held_out = bytes(corpus.held_out.tolist())
    assert all(bytes(row.tolist()) in held_out for row in probe.windows)
    assert bytes(probe.windows[-1].tolist()) == held_out[-33:]


def test_nats_are_minus_the_log_of_the_probability(corpus: Corpus) -> None:
    probe, model = Probe.of(corpus, TINY), build(ROWS["rope"], TINY, 0).eval()
    inputs, _, targets = probe.context(16)
    expected = []
    for row, wanted in zip(inputs, targets, strict=True):
        total = 0.0
        for logits, byte in zip(model(row[None])[0, -2:].tolist(), wanted.tolist(), strict=True):
            total -= math.log(math.exp(logits[byte]) / sum(map(math.exp, logits)))
        expected.append(total / 2)
    assert probe.nats(model, 16).tolist() == pytest.approx(expected, rel=1e-5)


def test_gaps_rise_by_what_was_asked_for() -> None:
    draw = gapped(8)
    assert gapped(1) is None
    assert draw is not None
    gaps = draw(64, 64, torch.Generator().manual_seed(0)).diff(dim=1)
    assert (gaps.min(), gaps.max()) == (1, 8)


# --- cells ---


def test_every_row_and_scaling_is_registered() -> None:
    assert {row.encoding for row in ROWS.values()} <= set(ENCODINGS)
    assert {name for row in ROWS.values() for name in row.scalings} <= set(SCALINGS)
    for budget in BUDGETS.values():
        names = [read.name for row in ROWS.values() for read in reads(row, budget)]
        assert len(set(names)) == len(names)
        assert budget.num_scored <= budget.length // 4


def test_keys_name_a_row_and_a_seed_and_outlive_more_seeds() -> None:
    quick, more = (all_cells(BUDGETS["quick"], seeds) for seeds in ([0], range(2)))
    assert {cell.key for cell in quick} < {cell.key for cell in more}
    assert len({cell.key for cell in more}) == len(more)
    assert all("/" not in cell.key and " " not in cell.key for cell in all_cells(BUDGETS["full"]))
    assert not any(ROWS[cell.row].only_full for cell in quick)
    full = BUDGETS["full"]
    assert len(all_cells(full)) == full.num_seeds * len(ROWS)


def test_a_result_is_not_seen_under_other_settings(tmp_path: Path, corpus: Corpus) -> None:
    store = CellStore(tmp_path, settings(TINY, corpus))
    store.put("rope-seed0", {"row": "rope", "nats": 1.0})
    assert CellStore(tmp_path, settings(TINY, corpus)).get("rope-seed0") == {
        "row": "rope",
        "nats": 1.0,
    }
    others = [settings(replace(TINY, lr=2e-3), corpus), settings(TINY, replace(corpus, digest="x"))]
    assert [CellStore(tmp_path, other).get("rope-seed0") for other in others] == [None, None]


@pytest.mark.parametrize("row", ["rope", "alibi", "learned-scale-rope+gaps"])
def test_a_cell_is_json_and_repeats(row: str, corpus: Corpus) -> None:
    cell, steps = Cell(f"{row}-seed1", row, 1), []
    result = run_cell(cell, TINY, corpus, lambda *step: steps.append(step))
    assert json.loads(json.dumps(result)) == result
    assert without_time(result) == without_time(run_cell(cell, TINY, corpus))
    assert steps[-1] == (work(ROWS[row], TINY),) * 2
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert set(result["reads"]) == {read.name for read in reads(ROWS[row], TINY)}
    for scores in result["reads"].values():
        assert list(scores) == ["4", "8", "16", "32"]
        assert scores["8"]["change"] == 0.0
        change = scores["32"]["nats"] - scores["8"]["nats"]
        assert scores["32"]["change"] == pytest.approx(change, abs=2e-5)


def test_how_a_rope_is_read(corpus: Corpus) -> None:
    scores = run_cell(Cell("rope-seed0", "rope", 0), TINY, corpus)["reads"]
    plain = scores["rope"]
    for name in ("linear", "ntk", "yarn"):  # a factor of 1 up to the trained length, then more
        assert scores[f"rope+{name}"]["8"] == plain["8"]
        assert scores[f"rope+{name}"]["32"]["nats"] != plain["32"]["nats"]
    assert scores["rope+window"]["8"]["nats"] == pytest.approx(plain["8"]["nats"], abs=1e-5)
    assert scores["rope+window"]["32"]["nats"] != plain["32"]["nats"]
    assert scores["rope, 2 steps"]["8"]["nats"] != plain["8"]["nats"]
    model = build(ROWS["rope"], TINY, 0)
    train(model, corpus.train, TINY.recipe, seed=0)
    nats = Probe.of(corpus, TINY).nats(model, 32, Rope(8, scaling=Linear(4.0)))
    assert scores["rope+linear"]["32"]["nats"] == pytest.approx(float(nats.mean()), abs=1e-5)
    assert scores["rope+linear"]["32"]["sem"] == pytest.approx(float(nats.std()) / 5**0.5, abs=1e-5)


@pytest.mark.parametrize("row", ["learned", "learned+rope"])
def test_a_table_stops_with_its_own_error(row: str, corpus: Corpus) -> None:
    scores = run_cell(Cell(f"{row}-seed0", row, 0), TINY, corpus)["reads"][row]
    with pytest.raises(ValueError) as caught:
        Learned(8, 16).encode(torch.arange(16))
    assert {scores[c]["error"] for c in ("16", "32")} == {str(caught.value)}
    assert all(math.isfinite(scores[c]["nats"]) for c in ("4", "8"))


def test_a_text_too_short_is_said_before_training(corpus: Corpus) -> None:
    long = replace(TINY, factors=(1, 64))
    with pytest.raises(ValueError, match=r"too short: 400 of its 4,000 bytes .* needs 513"):
        run_cell(Cell("none-seed0", "none", 0), long, corpus)


# --- workers ---


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if "seconds" not in name}


def test_workers_give_what_one_process_gives_longest_first(text: Path, corpus: Corpus) -> None:
    chosen = [Cell(f"{row}-seed0", row, 0) for row in ("none", "alibi", "rope")]
    results, steps = {}, []
    run_cells(
        chosen, TINY, text, workers=2,
        on_step=lambda *step: steps.append(step),
        on_result=lambda cell, result: results.update({cell.key: result}),
    )  # fmt: skip
    assert multiprocessing.active_children() == []
    assert set(results) == {cell.key for cell in chosen}
    for cell in chosen:
        total = work(ROWS[cell.row], TINY)
        assert [s for s in steps if s[0] == cell.key][-1] == (cell.key, total, total)
        assert without_time(results[cell.key]) == without_time(run_cell(cell, TINY, corpus))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        run_cells(chosen, TINY, text, workers=0, on_result=lambda *_: None)


def test_a_failing_cell_is_named_and_finished_ones_stay(text: Path) -> None:
    good = Cell("rope-seed0", "rope", 0)
    kept, bad = [], Cell("none-seed-broken", "none", -(2**70))
    with pytest.raises(RuntimeError, match=r"^none-seed-broken failed: \w+: [^\n]+$"):
        run_cells([bad, good], TINY, text, workers=1, on_result=lambda cell, _: kept.append(cell))
    assert kept == [good]
    assert multiprocessing.active_children() == []


def test_ctrl_c_stops_the_workers(text: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(
            [Cell("none-seed0", "none", 0)], replace(TINY, steps=10**6), text,
            workers=1, on_step=interrupt, on_result=lambda *_: None,
        )  # fmt: skip
    assert multiprocessing.active_children() == []
