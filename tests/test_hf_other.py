"""Other forms than one config.json of one language model: params.json, GGUF, vision, two towers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from posenc import Llama3, Rope, Yarn
from posenc.interop.gguf import scheme_from_fields
from posenc.interop.hf import FAMILIES, ConfigError, ModelScheme, scheme_from_config
from posenc.interop.meta import scheme_from_params
from test_mrope_vision import VISION, modules

CONFIGS = Path(__file__).with_name("configs")


def raw(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def rope_of(model: ModelScheme) -> Any:
    return model.scheme.rotary


def test_params_json_pairs_adjacent_channels() -> None:
    params = {path.stem: json.loads(path.read_text()) for path in CONFIGS.glob("params/*.json")}
    scaled = rope_of(scheme_from_params(params["llama-3.1-8b"]))
    assert scaled == Rope(128, 5e5, "adjacent", scaling=Llama3(8.0, 8192))
    assert rope_of(scheme_from_params(params["llama-2-7b"])) == Rope(128, 1e4, "adjacent")
    assert rope_of(scheme_from_params(params["code-llama-7b"])).base == 1e6
    with pytest.raises(ConfigError, match=r"by 8, its config\.json by 32"):
        scheme_from_params(params["llama-3.2-1b"])


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw("llama-3-8b")))
    assert scheme_from_config(tmp_path) == scheme_from_config(tmp_path / "config.json")
    (tmp_path / "params.json").write_text((CONFIGS / "params/llama-2-7b.json").read_text())
    assert rope_of(scheme_from_config(tmp_path / "params.json")).pairing == "adjacent"
    for text, message in (("[1]", "a config is an object"), ("{", "is not JSON")):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match=message):
            scheme_from_config(tmp_path / "bad.json")
    with pytest.raises(ConfigError, match="no such file"):
        scheme_from_config(tmp_path / "nothing.json")


def test_the_fields_of_a_gguf_header() -> None:
    fields: dict[str, Any] = {
        "general.architecture": "llama", "llama.block_count": 32, "llama.embedding_length": 4096,
        "llama.attention.head_count": 32, "llama.context_length": 131072,
        "llama.rope.freq_base": 500000.0, "llama.rope.dimension_count": 128,
    }  # fmt: skip
    plain = rope_of(scheme_from_fields(fields))
    assert plain == Rope(128, 5e5, "adjacent")  # GGUF permutes Llama's weights
    yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 32768}  # fmt: skip
    assert rope_of(scheme_from_fields({**fields, **yarn})).scaling == Yarn(4.0, 32768)
    divisors = [1.0] * 30 + [8.0] * 34
    divided = rope_of(scheme_from_fields(fields, {"rope_freqs.weight": divisors})).frequencies()
    expected = plain.frequencies().inv_freq / torch.tensor(divisors, dtype=torch.float64)
    assert torch.allclose(divided.inv_freq, expected, rtol=1e-15)
    assert divided.attention_factor == 1.0
    with pytest.raises(ConfigError, match=r"general\.architecture = 'nosuch'"):
        scheme_from_fields({**fields, "general.architecture": "nosuch"})
    with pytest.raises(ConfigError, match=r"rope.new_key = 1: expected no such key"):
        scheme_from_fields({**fields, "llama.rope.new_key": 1})


def test_a_gguf_file_needs_the_gguf_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match="pip install gguf"):
        scheme_from_config(tmp_path / "model.gguf")


def test_the_header_of_a_gguf_file(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(str(tmp_path / "model.gguf"), "qwen2")
    for name, value in (("block_count", 28), ("context_length", 131072), ("head_count", 28),
                        ("embedding_length", 3584), ("rope_freq_base", 1e6),
                        ("rope_scaling_type", gguf.RopeScalingType.YARN),
                        ("rope_scaling_factor", 4.0),
                        ("rope_scaling_orig_ctx_len", 32768)):  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    rope = rope_of(scheme_from_config(tmp_path / "model.gguf"))
    assert rope == Rope(128, 1e6, scaling=Yarn(4.0, 32768))
    (tmp_path / "bad.gguf").write_bytes(b"junk")
    with pytest.raises(ConfigError, match="is no GGUF file"):
        scheme_from_config(tmp_path / "bad.gguf")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VISION)
def test_a_vision_encoder_turns_by_rows_and_columns(name: str) -> None:
    config = modules(name, VISION[name])[1]
    keys = json.loads(json.dumps(config.to_dict(), default=str))
    if FAMILIES[name].refuse:
        with pytest.raises(ConfigError, match="not supported: vision"):
            scheme_from_config(keys)
        return
    model = scheme_from_config({"vision_config": keys}, part="vision_config")
    assert model.scheme.rotary == VISION[name].form(config)


@pytest.mark.filterwarnings("ignore")
def test_an_encoder_beside_its_decoder() -> None:
    transformers = pytest.importorskip("transformers")
    keys = json.loads(json.dumps(transformers.DiaConfig().to_dict(), default=str))
    model = scheme_from_config(keys)
    assert (model.model_type, len(model.layers)) == ("dia_decoder", 18)
    assert model.encoder is not None and len(model.encoder.layers) == 12
    assert scheme_from_config(keys, part="encoder_config").layers == model.encoder.layers
