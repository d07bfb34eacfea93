"""What somebody meets who tries the library for the first time: objects, messages, printed values."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from posenc import Alibi, KVCache, MultiHeadAttention, Rope, Scheme
from posenc.cli import cli
from posenc.interop.hf import ConfigError, scheme_from_config
from posenc.registry import ENCODINGS

ROOT = Path(__file__).resolve().parents[1]

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
    "max_position_embeddings": 128, "rope_theta": 5e5,
}  # fmt: skip


class Config:
    """A config object as transformers has them."""

    def to_dict(self) -> dict[str, object]:
        return dict(CONFIG)


def test_a_config_object_is_read_as_its_dict_is() -> None:
    assert scheme_from_config(Config()) == scheme_from_config(CONFIG)
    with pytest.raises(ConfigError, match="a config is an object, got"):
        scheme_from_config(Config)  # pyright: ignore[reportArgumentType]


def test_a_config_of_transformers_is_read() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    assert scheme_from_config(config).scheme == Scheme(rotary=Rope(16))


def test_a_dict_as_scaling_is_told_where_configs_are_read() -> None:
    with pytest.raises(TypeError, match=r"got \{'type': 'yarn'\}; posenc.interop.hf.scheme_from_"):
        Rope(32, scaling={"type": "yarn"})  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"scaling method, got 4.0$"):
        Rope(32, scaling=4.0)  # pyright: ignore[reportArgumentType]


def test_a_wrong_field_has_its_article() -> None:
    with pytest.raises(TypeError, match="additive= takes an AdditiveEncoding, got Rope"):
        Scheme(additive=Rope(8))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="rotary= takes a RotaryEncoding, got Alibi"):
        Scheme(rotary=Alibi(2))  # pyright: ignore[reportArgumentType]


def test_a_cache_prints_what_it_holds() -> None:
    cache = KVCache()
    assert repr(cache) == "KVCache(empty)"
    layer = MultiHeadAttention(64, 4, num_kv_heads=2, scheme=Scheme(rotary=Rope(16)))
    layer(torch.randn(3, 5, 64), cache=cache)
    assert repr(cache) == f"KVCache(5 tokens, batch 3, 2 heads, rotation {Rope(16)})"


def test_a_swap_prints_the_rotation_in_force() -> None:
    transformers = pytest.importorskip("transformers")
    from posenc.interop.transformers import set_rope  # noqa: PLC0415

    size = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(vocab_size=8, intermediate_size=8, **size)
    swap = set_rope(transformers.LlamaForCausalLM(config), Rope(16))
    assert repr(swap) == f"RopeSwap(LlamaForCausalLM, {Rope(16)})"
    swap.undo()
    assert repr(swap).endswith(", undone)")


def test_what_is_said_of_the_budgets_is_so() -> None:
    """The numbers stand in the help and in both READMEs: no registry is loaded for a help text."""
    quick, all_of_them = sum(not e.only_full for e in ENCODINGS.values()), len(ENCODINGS)
    shown = " ".join(CliRunner().invoke(cli, ["compare", "--help"]).output.split())
    assert f"quick: {quick} of the {all_of_them} encodings" in shown
    assert f"Of the {all_of_them} encodings the quick budget measures {quick};" in shown
    for name in ("README.md", "Makefile"):
        assert f"measure {quick} of the {all_of_them} encodings" in (ROOT / name).read_text()
    assert f"{all_of_them} 种编码中的 {quick} 种" in (ROOT / "README.zh-CN.md").read_text()


def test_no_description_of_a_command_is_cut_short() -> None:
    shown = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    lines = shown.partition("Commands:\n")[2].splitlines()
    assert len(lines) == len(cli.commands)
    assert not [line for line in lines if line.endswith("...")]
