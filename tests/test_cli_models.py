"""inspect, extend, convert and detect from the command line, and the numbers behind them."""

import json
import math
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from posenc import Rope, Yarn
from posenc.inspection import inspect, ranges, supported_length
from posenc.interop.extend import EXTENSIONS, extend_config
from posenc.interop.hf import ConfigError, scheme_from_config
from posenc.interop.mistakes import MISTAKES, warnings_about
from posenc_cli.models import commands
from tiny_lm import CONFIG, DATA

QWEN2: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
    "num_hidden_layers": 28, "max_position_embeddings": 32768, "rope_theta": 1_000_000.0,
}  # fmt: skip
NEWER: dict[str, Any] = {
    **{key: value for key, value in QWEN2.items() if key != "rope_theta"},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}


def run(*arguments: object) -> Result:
    group = click.Group(commands={str(command.name): command for command in commands})
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def written(path: Path, config: dict[str, Any]) -> Path:
    path.write_text(json.dumps(config))
    return path


# --- inspect ---


def test_the_supported_length_is_where_the_sum_first_falls_below_zero() -> None:
    """Against the definition, one distance at a time in plain floats."""
    for base, width in ((50.0, 8), (10_000.0, 32), (3.0, 4)):
        theta = [base ** (-2 * i / width) for i in range(width // 2)]
        expected = next(m for m in range(10**6) if sum(math.cos(m * t) for t in theta) < 0)
        assert supported_length(Rope(width, base=base).frequencies().inv_freq) == expected


@pytest.mark.parametrize(
    ("base", "length"),
    [(4.3e3, 1024), (2.7e4, 4096), (8.4e4, 8192), (2.1e6, 65_536), (7.8e6, 131_072)],
)
def test_published_bounds_of_the_base(base: float, length: int) -> None:
    """Men et al. 2024, table 2 (128 channels), whose bases are rounded to two digits."""
    found = supported_length(Rope(128, base=base).frequencies().inv_freq)
    assert found is not None and 0.95 * length < found < 1.25 * length


def test_a_search_that_ends_says_so() -> None:
    assert supported_length(torch.tensor([1e-9])) is None
    assert supported_length(torch.tensor([1.0]), limit=2) == 2  # whole blocks are searched


def test_inspect_counts_and_measures(tmp_path: Path) -> None:
    facts = inspect(written(tmp_path / "config.json", QWEN2))
    (rotation,) = facts.rotations
    assert (facts.model_type, facts.num_layers, facts.num_rotating) == ("qwen2", 28, 28)
    assert (rotation.method, rotation.base, rotation.pairing) == ("plain", 1e6, "half")
    assert rotation.wavelengths[0] == pytest.approx(2 * math.pi)
    assert rotation.wavelengths[-1] == pytest.approx(2 * math.pi * 1e6 ** (126 / 128))
    exact = [2 * math.pi * 1e6 ** (2 * i / 128) for i in range(64)]
    assert rotation.num_incomplete == sum(wave > 32768 for wave in exact) == 24
    assert inspect(tmp_path) == facts == inspect(QWEN2)


def test_inspect_shows_the_rotation_at_the_length_it_reaches() -> None:
    """Dynamic scaling has a base for each length: the one of the maximum is shown."""
    (rotation,) = inspect(LONG_QWEN2).rotations
    assert rotation.method == "Yarn"
    assert rotation.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert rotation.supported_length is not None and rotation.supported_length > 2 * 27_115


def test_the_command_prints_and_gives_json(tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", QWEN2)
    shown = run("inspect", path)
    assert shown.exit_code == 0
    for part in ("28 of 28 layers rotate", "24 of 64 pairs never complete", "base 1e+06", "27115"):
        assert part in shown.output
    parsed = json.loads(run("inspect", tmp_path, "--json").output)
    assert parsed["rotations"][0]["supported_length"] == 27115
    assert parsed["warnings"] == []


def test_layers_without_rotation_and_other_encodings_are_told() -> None:
    facts = inspect(SMOL)
    assert (facts.num_rotating, facts.rotations[0].layers) == (3, "0-2")
    bloom = {"model_type": "bloom", "hidden_size": 64, "n_head": 4, "n_layer": 2}
    facts = inspect(bloom)
    assert facts.num_rotating == 0 and "Alibi" in facts.other[0]


def test_layer_numbers_are_short() -> None:
    assert ranges([0, 1, 2, 4, 6, 7]) == "0-2, 4, 6-7"


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "nobody"}', '{"rope_theta": 1}'])
def test_what_cannot_be_read_is_one_line_and_code_2(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    result = run("inspect", path)
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1


def test_a_path_that_is_not_there_is_code_2(tmp_path: Path) -> None:
    assert run("inspect", tmp_path / "none.json").exit_code == 2
    assert run("inspect", tmp_path).exit_code == 2  # a folder without a config


def test_a_name_on_the_hub_is_looked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "cached.json", QWEN2)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: str(path))
    assert "qwen2: 28 of 28" in run("inspect", "Qwen/Qwen2.5-7B").output

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: None)
    monkeypatch.setattr(hub.HfApi, "model_info", unreachable)
    result = run("inspect", "Qwen/Qwen2.5-7B")
    assert result.exit_code == 2 and "the hub gave no config.json: no network" in result.output


# --- known mistakes ---

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONGER = {"max_position_embeddings": 131072}
LONG_QWEN2 = {**QWEN2, **LONGER, "rope_scaling": YARN}
SHORT, LONG = [1.0] * 64, [4.0] * 64
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "kv_lora_rank": 512, "rope_theta": 10_000.0,
    "max_position_embeddings": 163840, "rope_scaling": {
        "type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32,
        "beta_slow": 1, "original_max_position_embeddings": 4096}}  # fmt: skip
PHI3: dict[str, Any] = {
    "model_type": "phi3", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 2,
    "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_theta": 1e4,
    "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
}  # fmt: skip
SMOL = {**QWEN2, "model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "length-never-raised": ({**QWEN2, "rope_scaling": YARN}, "131072 tokens"),
    "factor-disagrees": (
        {**QWEN2, "rope_scaling": YARN, "max_position_embeddings": 65536}, "65536 / 32768 = 2"),
    "factor-set-twice": (
        {**QWEN2, **LONGER, "rope_scaling": {**YARN, "attention_factor": 1.0, "mscale": 0.7}},
        "with mscale"),
    "softmax-scale": (DEEPSEEK, "1.8739"),
    "dynamic-with-cache": (
        {**QWEN2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "cached earlier"),
    "longrope-with-cache": (PHI3, "token 4096"),
    "theta-left-out": (
        {k: v for k, v in SMOL.items() if k != "rope_theta"}, "2e+06 is what"),
    "two-forms": (
        {**QWEN2, **LONGER, "rope_scaling": {**YARN, "type": "yarn"}}, "type and rope_type"),
    "ramp-not-truncated": (
        {**QWEN2, **LONGER, "rope_scaling": {**YARN, "truncate": False}}, "truncate is false"),
    "no-rope-layers": (SMOL, "[3]"),
    "mrope-beside-default": (
        {**QWEN2, "model_type": "qwen2_vl",
         "rope_scaling": {"rope_type": "default", "mrope_section": [16, 24, 24]}},
        "'default' beside mrope_section"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_every_known_mistake_is_found_and_a_right_config_has_none(name: str) -> None:
    config, says = WRONG[name]
    found = {warned.name: warned for warned in warnings_about(config, scheme_from_config(config))}
    assert name in found
    assert says in found[name].text and "#" in found[name].source
    assert not list(warnings_about(QWEN2, scheme_from_config(QWEN2)))


# --- extend ---


@pytest.mark.parametrize("config", [QWEN2, NEWER])
@pytest.mark.parametrize("method", EXTENSIONS)
def test_the_extended_config_reads_back_as_the_method(config: dict[str, Any], method: str) -> None:
    before = json.dumps(config)
    new = extend_config(config, to=131_072, method=method)
    assert json.dumps(config) == before
    rope = scheme_from_config(new.config).scheme.rotary
    assert isinstance(rope, Rope)
    meant = Rope(128, base=1e6, scaling=EXTENSIONS[method](4.0, 32768))
    torch.testing.assert_close(
        rope.frequencies().inv_freq, meant.frequencies().inv_freq, rtol=1e-12, atol=0
    )
    assert new.config["max_position_embeddings"] == (32768 if method == "dynamic" else 131_072)
    assert "factor 4 = 131072 / 32768" in new.explained[0]
    assert ("rope_parameters" in new.config) == ("rope_parameters" in config)


def test_every_number_of_yarn_is_explained() -> None:
    new = extend_config(QWEN2, to=131_072)
    assert scheme_from_config(new.config).scheme.rotary == Rope(
        128, base=1e6, scaling=Yarn(4.0, original_length=32768)
    )
    text = "\n".join(new.explained)
    for part in ("pairs up to 23 of 64", "from 40 on", "1.1386 = 0.1·ln 4 + 1", "32768 -> 131072"):
        assert part in text


def test_only_layers_that_see_everything_are_extended() -> None:
    gemma = {
        "model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
        "num_hidden_layers": 6, "max_position_embeddings": 32768, "sliding_window": 512,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"], "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6}}}  # fmt: skip
    new = extend_config(gemma, to=65_536, method="linear").config
    assert new["rope_parameters"]["sliding_attention"] == {
        "rope_type": "default",
        "rope_theta": 1e4,
    }
    assert new["rope_parameters"]["full_attention"]["factor"] == 2.0


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (QWEN2, {"to": 32768}, "trained at 32768 tokens: 32768 is no extension"),
        (QWEN2, {"to": 65536, "method": "longrope"}, "'longrope' is unknown: expected yarn"),
        (LONG_QWEN2, {"to": 262144, "method": "linear"}, "scaled already"),
        ({"model_type": "bloom", "hidden_size": 8, "n_head": 2, "n_layer": 1, "seq_length": 64},
         {"to": 128}, "rotates"),
    ],
)  # fmt: skip
def test_extensions_that_mean_nothing_are_refused(
    config: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        extend_config(config, **options)


def test_a_longer_factor_of_the_same_method_starts_from_the_trained_length() -> None:
    new = extend_config(LONG_QWEN2, to=262_144)
    assert scheme_from_config(new.config).scheme.rotary == Rope(
        128, base=1e6, scaling=Yarn(8.0, original_length=32768)
    )
    again = extend_config(LONG_QWEN2, to=262_144, method="ntk", replace_scaling=True)
    assert scheme_from_config(again.config).scheme.rotary == Rope(128, base=1e6 * 8 ** (128 / 126))


def test_the_command_never_writes_over_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", QWEN2)
    before = path.read_bytes()
    refused = run("extend", tmp_path, "--to", 131072, "--out", path)
    assert refused.exit_code == 2 and "exists: name a new file" in refused.output
    assert path.read_bytes() == before
    done = run("extend", tmp_path, "--to", 131072, "--out", tmp_path / "new" / "config.json")
    assert done.exit_code == 0 and "attention factor 1.1386" in done.output
    assert scheme_from_config(tmp_path / "new").max_length == 131072
    assert path.read_bytes() == before
    printed = run("extend", path, "--to", 131072)
    assert json.loads(printed.stdout) == json.loads((tmp_path / "new" / "config.json").read_text())
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.json", "new"]


def test_bad_extensions_are_code_2(tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", QWEN2)
    assert run("extend", path, "--to", 10).exit_code == 2
    assert run("extend", path, "--to", 65536, "--method", "magic").exit_code == 2
    assert run("extend", path).exit_code == 2
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert run("extend", tmp_path / "model.gguf", "--to", 65536).exit_code == 2


# --- convert and detect ---


def test_convert_and_detect_from_the_command_line(tmp_path: Path) -> None:
    source = tmp_path / "half"
    source.mkdir()
    written(source / "config.json", CONFIG)
    save_file(load_file(DATA / "trained-half.safetensors"), source / "model.safetensors")
    done = run("convert", source, tmp_path / "out", "--to", "adjacent")
    assert done.exit_code == 0
    assert "half -> adjacent: 4 tensors moved, 0 as they were" in done.output
    assert "must rotate adjacent pairs" in done.output
    shown = run("inspect", tmp_path / "out").output
    assert "base 10000, half pairs in the config, adjacent in the weights\n" in shown
    assert "warning: the weights were converted" in shown
    assert "unless it is told (posenc.interop.transformers.set_rope)" in shown
    assert "in the weights" not in run("inspect", source).output
    assert json.loads(run("inspect", tmp_path / "out", "--json").output)["noted_pairing"] == (
        "adjacent"
    )
    assert "warning" not in run("inspect", source).output
    back = run("convert", tmp_path / "out", tmp_path / "back", "--to", "half").output
    assert "half pairs are what llama code rotates" in back and "unless" not in back
    told = run("detect", tmp_path / "out").output
    assert told.startswith("adjacent: ")
    assert told.endswith("8 heads; metadata says adjacent, by posenc convert\n")
    assert "metadata" not in run("detect", source).output
    found = json.loads(run("detect", source, "--json").output)
    assert found["pairing"] == "half" and found["score"] > 8
    config = written(tmp_path / "other.json", {**CONFIG, "num_attention_heads": 4})
    wrong = run("convert", source, tmp_path / "no", "--to", "adjacent", "--config", config)
    assert wrong.exit_code == 2 and "k_proj.weight" in wrong.output


def test_conversions_that_cannot_be_are_one_line_and_code_2(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    written(source / "config.json", CONFIG)
    weights = load_file(DATA / "trained-half.safetensors")
    save_file({**weights, "strange": torch.ones(2)}, source / "model.safetensors")
    for arguments in (
        (source, tmp_path / "out", "--to", "half"),
        (source, tmp_path / "out", "--to", "adjacent"),
        (source, source, "--to", "adjacent"),
        (tmp_path / "none", tmp_path / "out", "--to", "adjacent"),
    ):
        result = run("convert", *arguments)
        assert result.exit_code == 2, result.output
        assert len(result.output.strip().splitlines()) == 1
    kept = run("convert", source, tmp_path / "out", "--to", "adjacent", "--keep", "str*")
    assert kept.exit_code == 0 and (tmp_path / "out" / "model.safetensors").is_file()
    assert run("detect", tmp_path / "none").exit_code == 2
