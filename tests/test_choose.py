"""`posenc choose`: what a checkpoint allows, ranked, every reason with a pointer."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import posenc
from posenc.cli import run
from posenc.registry import ENCODINGS
from posenc.report.answer import as_dict
from posenc.report.checkpoints import CHECKPOINTS, FAMILIES, family_of
from posenc.report.choose import TASKS, Answer, Request, choose, parse_request
from posenc.report.evidence import measured, published
from posenc.report.memory import estimate, parse_bytes


def record(rows: dict[str, list[float]], length: int = 64) -> dict[str, Any]:
    """A record with one seed; contexts are L, 2 L, 4 L, …; a short row stops."""
    contexts = [length * 2**i for i in range(max(map(len, rows.values())))]
    stop = {"error": f"positions must lie in 0 … {length - 1}"}
    return {
        "format": 1,
        "cost": {"rows": {"alibi": _cost(1.25), "rope": _cost(1.5), "swin": {"refused": "no"}}},
        "extrapolation": {
            "train_length": length,
            "contexts": contexts,
            "seeds": [0],
            "text": {"name": "a text"},
            "rows": {
                name: {
                    str(context): (
                        {"nats": values[i], "spread": None, "sem": 0.01, "num_seeds": 1}
                        if i < len(values)
                        else stop
                    )
                    for i, context in enumerate(contexts)
                }
                for name, values in rows.items()
            },
        },
    }


def _cost(ratio: float) -> dict[str, Any]:
    return {kind: {"ratio": {"median": ratio}} for kind in ("forward", "training")}


def names(answer: Answer) -> list[str]:
    return [choice.option.name for choice in answer.ranked]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("ratio", [0.5, 1, 2, 8, 100])
def test_every_reason_points_somewhere(checkpoint: str, task: str, ratio: float):
    answer = choose(Request(round(1024 * ratio), 1024, checkpoint, task))
    assert answer.ranked or answer.ruled_out
    reasons = [reason for choice in answer.ranked for reason in choice.reasons]
    for reason in [*reasons, *(reason for _, reason in answer.ruled_out)]:
        assert reason.text
        assert reason.pointer
    assert all(choice.reasons for choice in answer.ranked)
    known = {f"data/evidence.json: {table.id}" for table in published()}
    for reason in reasons:
        assert reason.pointer in known or reason.pointer.startswith("posenc show ")


def test_a_rope_checkpoint_cannot_become_alibi():
    answer = choose(Request(32768, 4096, "llama"))
    assert all(name.startswith("rope") for name in names(answer))
    ruled_out = dict(answer.ruled_out)
    assert "alibi" in next(iter(ruled_out))
    assert "from scratch" in next(iter(ruled_out.values())).text


def test_a_rope_checkpoint_at_8x_wants_a_tuned_scaling_and_never_rope_as_it_is():
    answer = choose(Request(32768, 4096, "llama"))
    assert names(answer)[0] == "rope+yarn, tuned"
    verdicts = {choice.option.name: choice.verdict for choice in answer.ranked}
    assert verdicts["rope+yarn"] == "degrades"
    assert verdicts["rope"] == "fails"
    assert [choice.rank for choice in answer.ranked][:3] == [1, 1, 1]  # no figure tells them apart


def test_a_rope_checkpoint_at_2x_needs_no_training():
    answer = choose(Request(8192, 4096, "llama"))
    assert answer.ranked[0].option.training == "none"
    assert answer.ranked[0].verdict == "holds"


def test_released_alibi_models_fail_at_2x_and_the_answer_says_so():
    answer = choose(Request(4096, 2048, "bloom"))
    verdicts = {choice.option.name: choice.verdict for choice in answer.ranked}
    assert verdicts["alibi"] == "fails"
    assert any("27.7 to 158" in note for note in answer.notes)


def test_within_the_trained_length_nothing_is_extended():
    answer = choose(Request(2048, 4096, "llama"))
    assert names(answer) == ["rope"]
    assert {"alibi", "rope", "learned"} <= set(names(choose(Request(512, 512))))


def test_a_learned_table_past_its_end_is_ruled_out():
    answer = choose(Request(2048, 1024, "gpt2"))
    assert not answer.ranked
    assert any("no position past 1024" in reason.text for _, reason in answer.ruled_out)
    assert any("Nothing is left" in note for note in answer.notes)


def test_an_encoder_without_positions_is_ruled_out():
    answer = choose(Request(512, 512, task="encoder"))
    assert "none" not in names(answer)
    assert "order" in answer.ruled_out[0][1].text


def test_vision_prefers_the_window_bias():
    assert names(choose(Request(49, 49, task="vision")))[0] == "swin"


def test_retrieval_ranks_by_retrieval_tables_not_by_perplexity():
    by_retrieval = names(choose(Request(2048, 1024, task="retrieval")))
    by_perplexity = names(choose(Request(2048, 1024)))
    assert by_retrieval.index("none") < by_retrieval.index("alibi")
    assert by_perplexity.index("alibi") < by_perplexity.index("none")


def test_a_measured_row_comes_first_with_its_value():
    rows = {"alibi": [1.5, 1.5], "rope": [1.4, 2.2], "learned": [1.5]}
    answer = choose(Request(8192, 4096), record(rows), "here/record.json")
    first = next(choice for choice in answer.ranked if choice.option.name == "alibi").reasons[0]
    assert "1.50 nats at 128 (2 L)" in first.text
    assert first.pointer == "here/record.json: extrapolation.rows['alibi']"
    learned = next(reason for name, reason in answer.ruled_out if name == "Learned table")
    assert learned.pointer == "here/record.json: extrapolation.rows['learned']"


def test_the_record_moves_the_ranking():
    good = choose(
        Request(8192, 4096, "llama"), record({"rope": [1.4, 2.2], "rope+yarn": [1.4, 1.4]})
    )
    bad = choose(
        Request(8192, 4096, "llama"), record({"rope": [1.4, 2.2], "rope+yarn": [1.4, 4.4]})
    )
    assert names(good).index("rope+yarn") < names(bad).index("rope+yarn")


def test_costs_are_cited_where_they_were_measured():
    answer = choose(Request(8192, 4096), record({"alibi": [1.5, 1.5]}), "r.json")
    alibi = next(choice for choice in answer.ranked if choice.option.name == "alibi")
    cost = next(reason for reason in alibi.reasons if reason.text.startswith("costs"))
    assert "× 1.25" in cost.text
    assert cost.pointer == "r.json: cost.rows['alibi']"


def test_memory_rules_out_full_caches_and_leaves_the_window():
    answer = choose(
        parse_request(max_length=32768, train_length=4096, checkpoint="llama", memory="2GB")
    )
    assert names(answer) == ["rope+window"]
    assert any("given 2 GB" in reason.text for _, reason in answer.ruled_out)


def test_memory_of_keys_and_values_is_the_known_128_kib_a_token():
    memory = estimate(FAMILIES["rope"][0], CHECKPOINTS["llama"], 32768, 4096)
    assert memory.cache == 32768 * 128 * 1024
    assert memory.tables == 32768 * 128 * 4


def test_a_shape_of_ones_own_changes_the_memory():
    small = parse_request(
        max_length=2048, train_length=2048, checkpoint="llama", model_shape="2x1x64"
    )
    memory = choose(small).ranked[0].memory
    assert memory.cache == 2 * 2 * 1 * 64 * 2 * 2048


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("8GB", 8 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("512mb", 512 * 10**6),
        ("64", 64),
        ("2T", 2 * 10**12),
    ],
)
def test_amounts_of_memory(text: str, num_bytes: int):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "nan", "0GB", "-1GB", "8 gallons", "1.2.3GB", "inf"])
def test_bad_amounts_of_memory_say_what_was_expected(text: str):
    with pytest.raises(ValueError, match="expected one like 8GB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["32", "32x8", "32x0x128", "axbxc", "32x8x128x4"])
def test_bad_shapes_say_what_was_expected(text: str):
    with pytest.raises(ValueError, match="32x8x128"):
        CHECKPOINTS["llama"].shaped(text)


def test_every_family_has_options_and_every_option_can_be_written():
    for checkpoint in CHECKPOINTS:
        for task in TASKS:
            assert FAMILIES[family_of(checkpoint, task)]
    for options in FAMILIES.values():
        for option in options:
            option.how.format(factor=2, train=512, head_dim=64, heads=8, rope="")


@pytest.mark.parametrize(
    ("checkpoint", "rope"),
    [
        ("llama", posenc.Rope(128, base=500_000.0)),
        ("llama-2", posenc.Rope(128)),
        ("qwen", posenc.Rope(128, base=1_000_000.0)),
        ("gpt-neox", posenc.Rope(96, rotary_dim=24)),
        ("pythia", posenc.Rope(128, rotary_dim=32)),
        ("gpt-j", posenc.Rope(256, pairing="adjacent", rotary_dim=64)),
    ],
)
def test_a_checkpoint_is_answered_with_its_own_rotation(checkpoint: str, rope: posenc.Rope):
    request = parse_request(max_length=8192, train_length=2048, checkpoint=checkpoint)
    written = {choice.option.name: choice.how for choice in choose(request).ranked}
    assert eval(written["rope"], dict(vars(posenc))) == rope
    yarn = posenc.Yarn(factor=4, original_length=2048)
    assert eval(written["rope+yarn"], dict(vars(posenc))) == replace(rope, scaling=yarn)


def test_published_tables_name_source_and_grade():
    for table in published():
        assert table.grade in {"P", "D", "S", "M"}
        assert table.task in TASKS
        assert table.setting in {"scratch", "checkpoint", "both"}
        assert "arXiv" in table.source or "openreview" in table.source
        assert all(math.isfinite(v) for row in table.rows.values() for v in row.values())


def test_published_rows_are_options_that_exist():
    options = {option.name for family in FAMILIES.values() for option in family}
    assert {name for table in published() for name in table.rows} <= options


def test_a_table_that_goes_no_further_proves_failure_but_not_success():
    tables = {table.id: table for table in published()}
    failing = tables["kazemnejad-1.3b"].cited("rope", 8)
    holding = tables["yarn-llama-2-7b-2x"].cited("rope+yarn, tuned", 8)
    assert failing is not None and failing.where == "short" and failing.counts
    assert holding is not None and holding.where == "short" and not holding.counts


def test_a_table_that_begins_further_out_proves_success_but_not_failure():
    tables = {table.id: table for table in published()}
    failing = tables["pi-llama-7b"].cited("rope+linear", 1.5)  # its first row is at 4 L
    holding = tables["yarn-llama-2-7b"].cited("rope+yarn, tuned", 0.8 * 2)
    assert failing is not None and failing.where == "far" and not failing.counts
    assert holding is not None and holding.counts


def test_fine_tuned_rows_of_a_record_are_named_like_published_ones():
    table = measured(record({"rope": [1.4], "rope+linear, 50 steps": [1.45]}), "r.json")
    assert table is not None and "rope+linear, tuned" in table.rows
    assert (
        table.pointer("rope+linear, tuned") == "r.json: extrapolation.rows['rope+linear, 50 steps']"
    )


def test_an_answer_is_plain_data():
    answer = as_dict(choose(Request(2048, 1024)))
    assert json.loads(json.dumps(answer))["ranked"][0]["reasons"]


def test_choose_reads_the_usual_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked = ["choose", "--max-length", "128", "--train-length", "64", "--json"]
    monkeypatch.chdir(tmp_path)
    assert run(asked) == 0
    assert "record.json: " not in capsys.readouterr().out
    Path("posenc-compare").mkdir()
    Path("posenc-compare/record.json").write_text(json.dumps(record({"alibi": [1.5, 1.5]})))
    assert run(asked) == 0
    assert "posenc-compare/record.json: extrapolation.rows['alibi']" in capsys.readouterr().out
    assert run(asked[:-1]) == 0
    assert "1.50 nats at 128" in capsys.readouterr().out


def test_the_row_nearest_to_the_median_is_the_first_reason():
    """RoPE as it is, at 2 L: its tables say 0.4 to far over 3, the score is their median."""
    for ratio in (2, 8):
        tables = published()
        cited = [t.cited("rope", ratio) for t in tables if t.task == "language-model"]
        counted = [c for c in cited if c and c.counts and c.table.setting in ("checkpoint", "both")]
        excesses = sorted(min(c.excess, 3.0) for c in counted)
        choice = next(
            c
            for c in choose(Request(1024 * ratio, 1024, "llama")).ranked
            if c.option.name == "rope"
        )
        assert choice.num_tables == len(excesses) > 1
        assert choice.score == statistics.median(excesses)
        assert choice.score is not None
        closest = min(abs(x - choice.score) for x in excesses)
        first = next(c for c in counted if c.text() == choice.reasons[0].text)
        assert abs(min(first.excess, 3.0) - choice.score) == closest


def test_the_terminal_says_how_many_tables_the_score_is_of_and_where_they_lie(
    capsys: pytest.CaptureFixture[str],
):
    asked = ["choose", "--max-length", "32768", "--train-length", "4096", "--checkpoint", "llama"]
    assert run(asked) == 0
    shown = capsys.readouterr().out
    choice = next(
        c for c in choose(Request(32768, 4096, "llama")).ranked if c.option.name == "rope"
    )
    assert f"({choice.score:+.2f}, median of {choice.num_tables} tables)" in shown
    assert f"and {len(choice.reasons) - 2} more (--json)" in shown
    path = shown.split("data/evidence.json is ")[1].strip()
    assert json.loads(Path(path).read_text())["tables"]
    assert run([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evidence"] == path


def test_every_encoding_is_an_option_of_some_task() -> None:
    options = [o for task in ("scratch", "encoder", "vision") for o in FAMILIES[task]]
    assert {option.name for option in options} >= set(ENCODINGS)


@pytest.mark.parametrize("task", ["scratch", "encoder", "vision"])
def test_what_an_option_says_to_write_can_be_written(task: str) -> None:
    names = vars(posenc) | {"dim": 64, "h": 4, "w": 4}
    for option in FAMILIES[task]:
        how = option.how.format(factor=4, train=128, head_dim=16, heads=4, rope="")
        if "..." not in how:
            eval(how, names)


def test_encodings_without_a_table_are_named_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["choose", "--max-length", "8192", "--train-length", "2048"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "No table speaks of Sandwich, RoPE with a learned scale, Learned table and RoPE" in told
    assert "posenc compare --budget full measures Sandwich, RoPE with a learned scale" in told


def test_what_no_run_here_learns_is_not_sent_to_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["choose", "--max-length", "224", "--train-length", "224", "--task", "vision"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "No table speaks of Axial rotary" in told
    assert "measures Axial rotary" not in told


@pytest.mark.parametrize(
    ("name", "ratio", "verdict", "table", "text"),
    [
        ("kerple", 2, "holds", "dape-125m", "ppl 4.35 at 1024"),
        ("kerple", 16, "fails", "dape-125m", "ppl 13.4 at 8192"),
        ("fire", 2, "holds", "dape-125m", "ppl 4.7 at 1024"),
        ("fire", 4, "fails", "dape-125m", "ppl 30.1 at 2048"),
        ("transformer-xl", 16, "holds", "dape-cope", "ppl 27.9 at 2048"),
        ("transformer-xl", 64, "degrades", "dape-cope", "ppl 41.12 at 8192"),
        ("cope", 16, "holds", "dape-cope", "ppl 33.8 at 2048"),
        ("cope", 64, "fails", "dape-cope", "ppl 90.66 at 8192"),
        ("shaw", 1, "holds", "transformer-xl-128m", "ppl 30.5"),
        ("xpos", 2, "holds", "xpos-1024", "ppl 27.29 at 2048"),
        ("xpos", 8, "fails", "xpos-1024", "ppl 63.99 at 8192"),
    ],
)
def test_the_family_of_biases_and_vectors_is_answered_from_its_tables(
    name: str, ratio: int, verdict: str, table: str, text: str
) -> None:
    ranked = choose(Request(1024 * ratio, 1024)).ranked
    choice = next(choice for choice in ranked if choice.option.name == name)
    assert choice.verdict == verdict
    cited = [r.text for r in choice.reasons if r.pointer == f"data/evidence.json: {table}"]
    assert any(text in line and line.startswith(verdict) for line in cited)


@pytest.mark.parametrize(
    ("name", "verdict"), [("kerple", "fails"), ("alibi", "degrades"), ("rope", "fails")]
)
def test_encoders_are_answered_by_the_four_tasks_of_formal_languages(
    name: str, verdict: str
) -> None:
    ranked = choose(Request(500, 40, task="encoder")).ranked
    choice = next(choice for choice in ranked if choice.option.name == name)
    assert (choice.verdict, choice.num_tables) == (verdict, 4)


def test_deberta_is_answered_for_encoders_at_the_trained_length() -> None:
    ranked = choose(Request(512, 512, task="encoder")).ranked
    deberta = next(choice for choice in ranked if choice.option.name == "deberta")
    assert "86.1%" in deberta.reasons[0].text
    assert "[M]" in deberta.reasons[0].text


def test_what_holds_shares_a_rank_and_the_most_spoken_of_comes_first() -> None:
    """At 4 L CoPE's one table reads 0.2 nats better than at L, ALiBi's ten 0.07 worse: both hold."""
    ranked = choose(Request(4096, 1024)).ranked
    first = {choice.option.name: choice for choice in ranked if choice.rank == 1}
    assert {"alibi", "cope", "transformer-xl"} <= set(first)
    assert ranked[0].option.name == "alibi"
    assert first["cope"].score is not None and first["cope"].score < -0.15
