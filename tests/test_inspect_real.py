"""What `posenc inspect` prints of well-known models, against published values and plain formulas."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import oracles
from posenc.cli import run
from posenc.inspection import inspect

CONFIGS = Path(__file__).with_name("configs")


@dataclass(frozen=True)
class Known:
    """The published values of one rotation, and the method as the papers have it."""

    layers: str
    first_line: str
    speeds: Callable[[], Sequence[float]]
    channels: tuple[int, int]  # that turn, of the head
    trained: int | None
    maximum: int | None
    attention_factor: float = 1.0
    softmax_scale: float = 1.0


def plain(width: int, base: float) -> Callable[[], list[float]]:
    return lambda: oracles.frequencies(width, base)


def long_factors() -> list[float]:
    scaling = json.loads((CONFIGS / "phi-3-mini-128k.json").read_text())["rope_scaling"]
    return oracles.longrope_frequencies(96, 1e4, scaling["long_factor"])


KNOWN: dict[str, tuple[Known, ...]] = {
    "llama-3.1-8b": (Known(
        "0-31", "Llama3, base 500000, half pairs",
        lambda: oracles.llama3_frequencies(128, 5e5, 8.0, 8192, 1.0, 4.0),
        (128, 128), 8192, 131072),),
    "qwen2.5-7b": (Known(
        "0-27", "plain, base 1e+06, half pairs", plain(128, 1e6), (128, 128), 131072, 131072),),
    "gemma-3-4b": (
        Known("0-4, 6-10, 12-16, 18-22, 24-28, 30-33", "plain, base 10000, half pairs",
              plain(256, 1e4), (256, 256), None, 131072),
        Known("5, 11, 17, 23, 29", "Linear, base 1e+06, half pairs",
              lambda: oracles.linear_frequencies(256, 1e6, 8.0), (256, 256), None, 131072)),
    "phi-3-mini-128k": (Known(
        "0-31", "LongRope, base 10000, half pairs", long_factors, (96, 96), 4096, 131072,
        math.sqrt(1 + math.log(32) / math.log(4096))),),
    "gpt-oss-20b": (Known(
        "0-23", "Yarn, base 150000, half pairs",
        lambda: oracles.yarn_frequencies(64, 1.5e5, 32.0, 4096, truncate=False),
        (64, 64), 4096, 131072, 0.1 * math.log(32) + 1),),
    "deepseek-v3": (Known(
        "0-60", "Yarn, base 10000, adjacent pairs",
        lambda: oracles.yarn_frequencies(64, 1e4, 40.0, 4096),
        (64, 192), 4096, 163840, 1.0, (0.1 * math.log(40) + 1) ** 2),),
    "mistral-7b-v0.1": (Known(
        "0-31", "plain, base 10000, half pairs", plain(128, 1e4), (128, 128), 32768, 32768),),
    "pythia-1b": (Known(
        "0-15", "plain, base 10000, half pairs", plain(64, 1e4), (64, 256), 2048, 2048),),
    "falcon-7b": (Known(
        "0-31", "plain, base 10000, half pairs", plain(64, 1e4), (64, 64), None, None),),
    "chatglm3-6b": (Known(
        "0-27", "plain, base 10000, adjacent pairs", plain(64, 1e4), (64, 128), 8192, 8192),),
}  # fmt: skip


def first_below_zero(speeds: Sequence[float], limit: int) -> int:
    """Men 2024: the first m where the sum of cosines is negative, one block of m at a time."""
    theta = np.array(speeds)
    for start in range(0, limit, 1 << 13):
        sums = np.cos(np.arange(start, start + (1 << 13))[:, None] * theta).sum(1)
        if (sums < 0).any():
            return start + int((sums < 0).argmax())
    raise AssertionError(limit)


@pytest.mark.parametrize("name", KNOWN)
def test_well_known_models_are_inspected_right(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = inspect(CONFIGS / f"{name}.json")
    assert run(["inspect", str(CONFIGS / f"{name}.json")]) == 0
    printed = capsys.readouterr().out
    assert len(facts.rotations) == len(KNOWN[name])
    for rotation, known in zip(facts.rotations, KNOWN[name], strict=True):
        waves = [2 * math.pi / speed for speed in known.speeds()]
        assert f"layers {known.layers}: {known.first_line}" in printed
        assert (rotation.rotary_dim, rotation.head_dim) == known.channels
        assert (facts.trained_length, facts.max_length) == (known.trained, known.maximum)
        assert list(rotation.wavelengths) == pytest.approx(waves)
        assert f"wavelengths {waves[0]:.4g} to {waves[-1]:.6g} tokens" in printed
        counts = [
            None if length is None else sum(wave > length for wave in waves)
            for length in (known.trained, known.maximum)
        ]
        assert [rotation.num_incomplete, rotation.num_incomplete_at_maximum] == counts
        assert rotation.attention_factor == pytest.approx(known.attention_factor)
        assert rotation.softmax_scale == pytest.approx(known.softmax_scale)
        supported = rotation.supported_length
        assert supported == first_below_zero(known.speeds(), 1 << 20)
        assert f"tell near from far up to {supported} tokens, a rule of" in printed
        whole = known.channels[0] == known.channels[1]
        assert ("channels that do not turn see farther" in printed) is not whole


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("**/*.json")), ids=lambda path: path.stem)
def test_every_real_config_is_inspected_in_lines_that_fit(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--json"]):
        assert run(["inspect", str(path), *options]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        if options:
            assert json.loads(out)["model_type"]
        else:
            assert max(map(len, out.splitlines())) < 400 and "None" not in out.splitlines()[1]


def test_a_trained_and_a_maximum_length_both_count_pairs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(["inspect", str(CONFIGS / "llama-3.1-8b.json")])
    said = "32 of 64 pairs never complete a turn in 8192 tokens, 25 of them in 131072"
    waves = [2 * math.pi / x for x in oracles.llama3_frequencies(128, 5e5, 8.0, 8192, 1.0, 4.0)]
    assert sum(x > 131072 for x in waves) == int(said.split()[-5]) == 25
    assert said in capsys.readouterr().out
    run(["inspect", str(CONFIGS / "falcon-7b.json")])
    falcon = capsys.readouterr().out
    assert "trained length not in the config, maximum not in the config" in falcon
    assert "rope_theta is not in the config: 10000.0 by default" in falcon
    assert "warning" not in falcon  # every reader takes that base
    run(["inspect", str(CONFIGS / "gemma-3-4b.json")])
    assert "no base in the config: 1e+06 is what the published code" in capsys.readouterr().out
