"""The bench: timing, memory, tables, and the gate that refuses what it cannot trust."""

import time
from dataclasses import replace

import pytest
import torch

from posenc import Rope, Scheme
from posenc.bench import Effort, Size, Step, measure, paired, quantiles, timed
from posenc.bench import step as step_module
from posenc.bench.cost import table_bytes
from posenc.bench.memory import peak_bytes
from posenc.bench.step import gate, own_work
from posenc.registry import ENCODINGS, Shape

TINY = Size(batch_size=1, length=16, dim=32, num_heads=2)
BRIEF = Effort(forward=0.0, training=0.0, own=0.0)


def test_quantiles_are_those_of_numpy():
    found = quantiles([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.median, found.num_samples) == (3.0, 5)
    assert found.p10 == pytest.approx(1.4)
    assert found.p90 == pytest.approx(4.6)


def test_paired_ratio_is_the_candidates_over_the_baselines():
    times = paired(lambda: time.sleep(0.002), lambda: time.sleep(0.008), seconds=0.0, min_rounds=5)
    assert times.ratio.num_samples == 5
    assert 2 < times.ratio.median < 6
    assert times.candidate.median > times.baseline.median


def test_paired_alternates_who_runs_first():
    order: list[str] = []
    paired(lambda: order.append("b"), lambda: order.append("c"), seconds=0.0, min_rounds=4)
    assert "".join(order) == "bccbbccb"


def test_rounds_stop_at_the_deadline_or_the_cap():
    calls: list[int] = []
    timed(lambda: calls.append(0), seconds=60.0, min_rounds=1, max_rounds=7)
    assert len(calls) == 8  # one warms up


def test_peak_bytes_counts_what_is_alive_at_once_and_repeats_to_the_byte():
    def call() -> torch.Tensor:
        first = torch.empty(1000, dtype=torch.float64)
        del first
        return torch.empty(2500), torch.empty(500)  # pyright: ignore[reportReturnType]

    assert peak_bytes(call) == peak_bytes(call)
    assert 12_000 <= peak_bytes(call) < 12_000 + 200  # allocations are rounded up a little


def test_peak_bytes_leaves_stderr_alone(capfd: pytest.CaptureFixture[str]):
    peak_bytes(lambda: torch.ones(3))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_has_a_row_with_every_number(name: str):
    row = measure(ENCODINGS[name], TINY, BRIEF)
    assert "refused" not in row, row
    for kind in ("forward", "training"):
        ratio = row[kind]["ratio"]
        assert 0 < ratio["p10"] <= ratio["median"] <= ratio["p90"]
        assert row[kind]["ms"]["median"] > 0
        assert row[kind]["ms"]["n"] >= 3
    assert (row["own_ms"]["median"] == 0) == (name == "none")
    assert (row["table_bytes"] == 0) == (name == "none")
    learned = sum(p.numel() for p in Step(ENCODINGS[name], TINY).parameters())
    assert row["num_parameters"] == learned


def test_no_encoding_costs_no_memory():
    memory = measure(ENCODINGS["none"], TINY, BRIEF)["memory"]
    assert memory["forward"]["extra_bytes"] == memory["training"]["extra_bytes"] == 0


@pytest.mark.parametrize(
    ("name", "num_values"),
    [
        ("sinusoidal", 16 * 32),
        ("learned", 16 * 32),
        ("rope", 2 * 8 * 16),  # cos and sin of 8 pairs at 16 positions
        ("alibi", 2 * 16),  # heads times distances
        ("t5", 2 * 16),
        ("swin", 2 * (2 * 4 - 1) * (2 * 4 - 1)),  # a window of 4 × 4
        ("shaw", 2 * 33 * 16),
        ("learned+rope", 16 * 32 + 2 * 8 * 16),
    ],
)
def test_table_bytes_counts_distinct_values_in_float32(name: str, num_values: int):
    assert table_bytes(Step(ENCODINGS[name], TINY)) == 4 * num_values


def test_baseline_has_the_mask_of_the_row_and_no_positions():
    bare = Step.without_encoding(ENCODINGS["swin"], TINY)
    assert bare.mask is None and bare.positions is None
    assert bare.scheme == Scheme()


def test_own_work_of_a_hybrid_is_that_of_both_parts():
    assert len(own_work(Step(ENCODINGS["learned+rope"], TINY))) == 2
    assert own_work(Step(ENCODINGS["none"], TINY)) == []


def test_gate_passes_what_agrees_with_the_reference():
    assert gate(ENCODINGS["rope"], TINY) is None


def test_gate_refuses_a_fast_path_that_differs(monkeypatch: pytest.MonkeyPatch):
    right = step_module.attention

    def wrong(*qkv: torch.Tensor, impl: str, **options: object) -> torch.Tensor:
        out = right(*qkv, impl=impl, **options)  # pyright: ignore[reportCallIssue, reportArgumentType]
        return out if impl == "reference" else out + 1e-3

    monkeypatch.setattr(step_module, "attention", wrong)
    row = measure(ENCODINGS["rope"], TINY, BRIEF)
    assert set(row) == {"row", "refused"}
    assert "differs from impl='reference' by 1.0e-03" in row["refused"]


def test_a_row_that_does_not_fit_the_size_is_refused_with_the_reason():
    row = measure(ENCODINGS["rope"], Size(1, 8, 6, 2), BRIEF)  # heads of 3 channels
    assert "rotary_dim must be even" in row["refused"]
    assert "\n" not in row["refused"]


def test_a_broken_build_is_refused_not_raised():
    def build(shape: Shape) -> Scheme:
        return Scheme(rotary=Rope(shape.head_dim, rotary_dim=3))

    row = measure(replace(ENCODINGS["rope"], build=build), TINY, BRIEF)
    assert "got 3" in row["refused"]
