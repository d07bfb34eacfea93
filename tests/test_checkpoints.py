"""Weights moved between pairings: which rows, in which tensors, exactly, and never the wrong ones."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from causal_models import causal_model
from conformance.checkpoints import CONVERTED, OTHERS, REFUSED, saved
from posenc import Rope, rotate_qk
from posenc.interop.checkpoints import CheckpointError, Heads, convert, permute, permute_fused
from posenc.interop.checkpoints.files import read_header
from posenc.interop.hf import scheme_from_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "rope_theta": 10_000.0,
}


def by_hand(rows: list[int], heads: int, width: int, turning: range, to: str) -> list[int]:
    """The oracle: one row at a time, from the two definitions of a pair."""
    first, pairs = turning.start, len(turning) // 2
    new = list(rows)
    for head in range(heads):
        for pair in range(pairs):
            half = [head * width + first + pair, head * width + first + pair + pairs]
            adjacent = [head * width + first + 2 * pair, head * width + first + 2 * pair + 1]
            source, target = (half, adjacent) if to == "adjacent" else (adjacent, half)
            for old, place in zip(source, target, strict=True):
                new[place] = rows[old]
    return new


@given(
    heads=st.integers(1, 5),
    pairs=st.integers(1, 6),
    passing=st.integers(0, 5),
    trailing=st.booleans(),
    to=st.sampled_from(["half", "adjacent"]),
)
def test_rows_go_where_the_definitions_say(
    heads: int, pairs: int, passing: int, trailing: bool, to: Any
) -> None:
    width, start = 2 * pairs + passing, passing if trailing else 0
    weight = torch.arange(heads * width)
    moved = permute(
        weight, num_heads=heads, head_dim=width, rotary_dim=2 * pairs, start=start, to=to
    )
    turning = range(start, start + 2 * pairs)
    assert moved.tolist() == by_hand(weight.tolist(), heads, width, turning, to)
    other = "half" if to == "adjacent" else "adjacent"
    back = permute(
        moved, num_heads=heads, head_dim=width, rotary_dim=2 * pairs, start=start, to=other
    )
    assert torch.equal(back, weight)


def test_b01_keys_move_by_the_number_of_key_heads() -> None:
    """TinyLlama: 32 query heads, 4 key heads of 64 rows, and a converter that used 32 // 4 = 8."""
    weight = torch.arange(256)[:, None].expand(256, 3)
    moved = permute(weight, num_heads=4, head_dim=64, to="adjacent")
    assert moved[:, 0].tolist() == by_hand(list(range(256)), 4, 64, range(64), "adjacent")
    assert moved[:4, 0].tolist() == [0, 32, 1, 33]
    with pytest.raises(ValueError, match=r"512 rows = 8 heads · 64, got a weight \[256, 3\]"):
        permute(weight, num_heads=8, head_dim=64, to="adjacent")


@pytest.mark.parametrize("heads", [32, 8])
def test_b02_there_and_back_is_the_identity_with_each_tensor_s_own_heads(heads: int) -> None:
    weight = torch.randn(heads * 16, 5).to(torch.bfloat16)
    there = permute(weight, num_heads=heads, head_dim=16, to="half")
    assert torch.equal(permute(there, num_heads=heads, head_dim=16, to="adjacent"), weight)
    assert not torch.equal(there, weight)


def test_b05_scores_of_converted_weights_under_the_other_rotation_are_the_same() -> None:
    """Meta's weights in a half-split rotation give wrong text: either side must be converted."""
    x, positions = torch.randn(1, 6, 12, dtype=torch.float64), torch.tensor([0, 1, 5, 70, 71, 900])
    weights = [torch.randn(4 * 8, 12, dtype=torch.float64) for _ in range(2)]

    def scores(weights: list[Tensor], pairing: Any) -> Tensor:
        q, k = ((x @ w.T).unflatten(-1, (4, 8)).transpose(1, 2) for w in weights)
        rope = Rope(8, pairing=pairing)
        q, k = rotate_qk(q, k, rope.tables(positions, positions, dtype=torch.float64))
        return q @ k.transpose(-1, -2)

    converted = [permute(w, num_heads=4, head_dim=8, to="half") for w in weights]
    expected = scores(weights, "adjacent")
    torch.testing.assert_close(scores(converted, "half"), expected, rtol=1e-12, atol=1e-12)
    assert (scores(weights, "half") - expected).abs().max() > 0.1


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn,
              torch.float8_e5m2, torch.int8, torch.bool]
)  # fmt: skip
def test_every_dtype_moves_as_bytes(dtype: torch.dtype) -> None:
    weight = torch.randint(0, 256, (16, 24), dtype=torch.uint8)
    weight = weight.bool() if dtype == torch.bool else weight.view(dtype)
    moved = permute(weight, num_heads=2, head_dim=8, to="half")
    assert moved.dtype == dtype and moved.shape == weight.shape
    rows = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert torch.equal(moved.view(torch.uint8), weight.view(torch.uint8)[rows])


def test_fused_runs_move_by_themselves_and_values_stay() -> None:
    weight = torch.arange(2 * (2 * 4 + 4 + 4))
    runs = [Heads(2, 4, 4), Heads(1, 4, 2), Heads(1, 4)]
    moved = permute_fused(weight, runs, groups=2, to="half").tolist()
    assert moved[:16] == [0, 2, 1, 3, 4, 6, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    assert moved[16:] == [row + 16 for row in moved[:16]]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"count": 0, "head_dim": 4}, "at least 1"),
        ({"count": 1, "head_dim": 4, "rotary_dim": 3}, "even"),
        ({"count": 1, "head_dim": 4, "rotary_dim": 4, "start": 2}, "at most head_dim"),
    ],
)
def test_heads_that_cannot_be_are_refused(runs: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Heads(**runs)


def test_an_unknown_pairing_is_refused() -> None:
    with pytest.raises(ValueError, match="'half' or 'adjacent', got 'neox'"):
        permute(torch.zeros(8), num_heads=1, head_dim=8, to="neox")  # pyright: ignore


# --- files ---


def llama_weights(config: Mapping[str, Any] = LLAMA) -> dict[str, Tensor]:
    dim, head = config["hidden_size"], config["hidden_size"] // config["num_attention_heads"]
    rows = {"q": config["num_attention_heads"] * head, "k": config["num_key_value_heads"] * head}
    made = {"model.embed_tokens.weight": torch.randn(40, dim).to(torch.bfloat16)}
    for layer in range(config["num_hidden_layers"]):
        start = f"model.layers.{layer}"
        for name in ("q", "k", "v", "o"):
            shape = (rows.get(name, rows["k"] if name == "v" else dim), dim)
            made[f"{start}.self_attn.{name}_proj.weight"] = torch.randn(shape).to(torch.bfloat16)
        made[f"{start}.self_attn.q_proj.bias"] = torch.randn(rows["q"])
        made[f"{start}.mlp.gate_proj.weight"] = torch.randn(48, dim)
        made[f"{start}.input_layernorm.weight"] = torch.randn(dim)
    return made | {"model.norm.weight": torch.randn(dim), "lm_head.weight": torch.randn(40, dim)}


def folder(path: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any] = LLAMA) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(dict(weights), path / "model.safetensors", metadata={"format": "pt"})
    return path


def sharded_folder(
    path: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any] = LLAMA
) -> Path:
    """The same in three files with an index."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    names, weight_map = sorted(weights), {}
    for n in range(3):
        held = {name: weights[name] for name in names[n::3]}
        shard = f"model-0000{n + 1}-of-00003.safetensors"
        save_file(held, path / shard)
        weight_map |= dict.fromkeys(held, shard)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def snapshot(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def assert_same_bytes(one: Path, other: Path) -> None:
    """Every tensor of two files, by its bytes as they lie there."""
    headers = [read_header(path / "model.safetensors") for path in (one, other)]
    for a, b in zip(headers[0].tensors, headers[1].tensors, strict=True):
        assert (a.name, a.dtype, a.shape) == (b.name, b.dtype, b.shape)
        assert headers[0].read(a) == headers[1].read(b), a.name


def test_a_checkpoint_goes_there_and_back_bit_for_bit(tmp_path: Path) -> None:
    source = folder(tmp_path / "half", llama_weights())
    (source / "tokenizer.json").write_text("{}")
    (source / "pytorch_model.bin").write_bytes(b"old pairing")
    before = snapshot(source)
    done = convert(source, tmp_path / "adjacent", to="adjacent")
    assert (done.source_pairing, done.pairing, done.left_out) == (
        "half",
        "adjacent",
        ("pytorch_model.bin",),
    )
    assert sorted(done.moved) == sorted(
        f"model.layers.{layer}.self_attn.{name}"
        for layer in range(2)
        for name in ("q_proj.weight", "k_proj.weight", "q_proj.bias")
    )
    old, new = (load_file(path / "model.safetensors") for path in (source, tmp_path / "adjacent"))
    for name, weight in old.items():
        heads = 4 if ".q_proj" in name else 2
        moved = (
            permute(weight, num_heads=heads, head_dim=8, to="adjacent")
            if name in done.moved
            else weight
        )
        assert torch.equal(new[name], moved), name
    assert (tmp_path / "adjacent" / "tokenizer.json").read_text() == "{}"
    back = convert(tmp_path / "adjacent", tmp_path / "back", to="half")
    assert back.source_pairing == "adjacent"  # noted in the weights: the config would say half
    assert_same_bytes(source, tmp_path / "back")
    assert snapshot(source) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adjacent", "back", "half"]


def test_the_file_is_one_that_safetensors_reads(tmp_path: Path) -> None:
    source = folder(tmp_path / "half", llama_weights())
    convert(source / "model.safetensors", tmp_path / "one.safetensors", to="adjacent")
    with safe_open(tmp_path / "one.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "posenc.pairing": "adjacent"}
        assert set(file.keys()) == set(llama_weights())
    with (tmp_path / "one.safetensors").open("rb") as raw:
        assert int.from_bytes(raw.read(8), "little") % 8 == 0


def test_a_sharded_checkpoint_is_converted_file_by_file(tmp_path: Path) -> None:
    weights = llama_weights()
    source = sharded_folder(tmp_path / "half", weights)
    index = (source / "model.safetensors.index.json").read_text()
    save_file({"other": torch.zeros(1)}, source / "consolidated.safetensors")
    done = convert(source, tmp_path / "out", to="adjacent")
    assert len(done.moved) == 6 and done.left_out == ("consolidated.safetensors",)
    whole = folder(tmp_path / "whole", weights)
    convert(whole, tmp_path / "whole-out", to="adjacent")
    expected = load_file(tmp_path / "whole-out" / "model.safetensors")
    for shard in set(json.loads(index)["weight_map"].values()):
        for name, weight in load_file(tmp_path / "out" / shard).items():
            assert torch.equal(weight, expected[name])
    assert (tmp_path / "out" / "model.safetensors.index.json").read_text() == index


@pytest.mark.parametrize("name", [
    "model.layers.0.self_attn.qkv.weight",
    "model.layers.0.self_attn.indexer.wq_b.weight",
    "model.layers.0.self_attn.q_proj.qweight",
    "model.layers.0.something_new.weight",
    "model.vision_tower.layers.0.self_attn.q_proj.weight",
    "model.layers.2.self_attn.q_proj.weight",
    "q_proj.weight",
    "model.layers.0.self_attn.norm_q.weight",  # norms in attention that may be of queries and keys
    "model.layers.0.self_attn.ln_k.weight",
    "model.layers.0.self_attn.experts.input_linear.weight",  # JetMoE: queries come from experts
    "model.layers.0.self_attn.kv_proj.weight",
    "model.layers.0.lambda_1",
    "shared_attention.fused.weight",
    "transformer.block.0.fused.weight",  # a layer, but not by a name that is known
    "depth_decoder.layers.0.self_attn.v_proj.linear.weight",
])  # fmt: skip
def test_a_tensor_that_is_not_recognised_stops_everything_by_name(
    tmp_path: Path, name: str
) -> None:
    source = folder(tmp_path / "half", {**llama_weights(), name: torch.zeros(32, 32)})
    with pytest.raises(CheckpointError, match=f"'{name}'"):
        convert(source, tmp_path / "out", to="adjacent")
    assert [path.name for path in tmp_path.iterdir()] == ["half"]
    done = convert(source, tmp_path / "out", to="adjacent", keep=[name])
    assert name in done.kept and len(done.moved) == 6


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.gate_bias", (4,)),  # one number for a head
        ("model.layers.0.layer_scalar", (1,)),
        ("model.layers.1.new.scale", (7, 3)),  # heads turn 8 channels
        ("model.layers.1.new.count", ()),
        ("decoder.bias", (40,)),
        ("cls.predictions.transform.weight", (32, 32)),
    ],
)
def test_what_cannot_reach_the_scores_stays(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    source = folder(tmp_path / "half", {**llama_weights(), name: torch.randn(shape)})
    done = convert(source, tmp_path / "out", to="adjacent")
    assert name in done.kept and len(done.moved) == 6


def test_a_number_for_each_channel_that_turns_may_reach_them(tmp_path: Path) -> None:
    name = "model.layers.1.new.scale"
    source = folder(tmp_path / "half", {**llama_weights(), name: torch.randn(8)})
    with pytest.raises(CheckpointError, match=f"'{name}'"):
        convert(source, tmp_path / "out", to="adjacent")


def test_all_of_a_layer_that_does_not_rotate_stays(tmp_path: Path) -> None:
    config = {**LLAMA, "model_type": "smollm3", "no_rope_layers": [1, 0]}
    names = [f"model.layers.{layer}.self_attn.unknown.weight" for layer in (0, 1)]
    source = folder(tmp_path / "one", llama_weights() | {names[1]: torch.randn(32, 32)}, config)
    done = convert(source, tmp_path / "out", to="adjacent")
    assert names[1] in done.kept and all(".0." in name for name in done.moved)
    source = folder(tmp_path / "two", llama_weights() | {names[0]: torch.randn(32, 32)}, config)
    with pytest.raises(CheckpointError, match=names[0]):
        convert(source, tmp_path / "out2", to="adjacent")


def test_two_stacks_of_layers_that_differ_are_refused(tmp_path: Path) -> None:
    """Layer 1 of which stack is it that does not rotate?"""
    config = {**LLAMA, "model_type": "smollm3", "no_rope_layers": [1, 0]}
    weights = {
        f"draft.{name}": weight for name, weight in llama_weights().items() if "layers" in name
    }
    source = folder(tmp_path / "half", llama_weights() | weights, config)
    with pytest.raises(CheckpointError, match=r"draft\.model\.layers\. and in model\.layers\."):
        convert(source, tmp_path / "out", to="adjacent")
    assert len(convert(source, tmp_path / "out", to="adjacent", keep=["draft.*"]).moved) == 3
    alike = folder(tmp_path / "alike", llama_weights() | weights)
    assert len(convert(alike, tmp_path / "out2", to="adjacent").moved) == 12


@pytest.mark.parametrize(
    ("kind", "key", "to"),
    [("gemma4_text", "attention_k_eq_v", "adjacent"), ("roformer", "rotary_value", "half")],
)
def test_values_that_share_what_keys_do_are_refused(
    tmp_path: Path, kind: str, key: str, to: Any
) -> None:
    """Their channels would change places, and the output projection still read the old ones."""
    saved(causal_model(kind, **{key: True}), tmp_path / "source")
    with pytest.raises(ValueError, match=key):
        convert(tmp_path / "source", tmp_path / "out", to=to)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_every_causal_family_that_rotates_is_accounted_for() -> None:
    """A family that a new version of transformers adds fails here, not in silence."""
    listed = {*CONVERTED, *REFUSED, *OTHERS}
    rotating = {kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if _rotates(kind)}
    assert len(rotating) > 130 and rotating <= listed, sorted(rotating - listed)


def _rotates(kind: str) -> bool:
    try:
        scheme: Any = scheme_from_config(CONFIG_MAPPING[kind]().to_dict())
    except (ValueError, StrictDataclassError):  # not read here, or its defaults do not fit
        return False
    return any(layer.rotary is not None for layer in getattr(scheme, "layers", ()))


def test_heads_that_do_not_fit_the_rows_are_named(tmp_path: Path) -> None:
    source = folder(tmp_path / "half", llama_weights(), {**LLAMA, "num_key_value_heads": 4})
    with pytest.raises(
        CheckpointError, match=r"k_proj.weight' \[16, 32\] has 16 rows.*4 heads of 8 = 32"
    ):
        convert(source, tmp_path / "out", to="adjacent")


def test_what_cannot_be_converted_says_why(tmp_path: Path) -> None:
    source = folder(tmp_path / "half", llama_weights())
    with pytest.raises(CheckpointError, match="is half already"):
        convert(source, tmp_path / "out", to="half")
    with pytest.raises(FileExistsError, match="never writes over"):
        convert(source, source, to="adjacent")
    with pytest.raises(CheckpointError, match="no such file or folder"):
        convert(tmp_path / "nothing", tmp_path / "out", to="half", config=LLAMA)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"no config.json or params.json"):
        convert(tmp_path / "empty", tmp_path / "out", to="half")
    with pytest.raises(CheckpointError, match="got none"):
        convert(tmp_path / "empty", tmp_path / "out", to="adjacent", config=LLAMA)
    nope = {"model_type": "bloom", "hidden_size": 32, "n_head": 4, "n_layer": 2}
    with pytest.raises(CheckpointError, match="rotates in no layer"):
        convert(source, tmp_path / "out", to="adjacent", config=nope)


def test_source_pairing_overrules_the_config(tmp_path: Path) -> None:
    source = folder(tmp_path / "meta", llama_weights())
    done = convert(source, tmp_path / "out", to="half", source_pairing="adjacent")
    assert (done.source_pairing, done.pairing) == ("adjacent", "half")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no safetensors file"),
        (b"\xff" * 20, "no safetensors file"),
        ((2).to_bytes(8, "little") + b"[]", "no JSON object"),
        ((8).to_bytes(8, "little") + b'{"a":{}}', "no dtype, shape and offsets"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_header(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "F32 .2. but has 4 bytes"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}, "starts at byte 4, expected 0"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "take 4 bytes, the file holds 8"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "shape"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    header = json.dumps({"a": entry}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(CheckpointError, match=message):
        read_header(path)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path / "half", llama_weights())

    def no_space(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("posenc.interop.checkpoints.conversion._copy_others", no_space)
    with pytest.raises(OSError, match="no space"):
        convert(source, tmp_path / "out", to="adjacent")
    assert [path.name for path in tmp_path.iterdir()] == ["half"]


@pytest.mark.parametrize(("rows", "moves"), [(1, False), (2, False), (32, True)])
def test_scales_of_float8_weights_follow_their_rows(tmp_path: Path, rows: int, moves: bool) -> None:
    """One for all stays, as does one for blocks that rows do not leave; one for each row moves."""
    name = "model.layers.0.self_attn.q_proj.weight_scale"
    source = folder(tmp_path / "half", {**llama_weights(), name: torch.randn(rows, 1)})
    done = convert(source, tmp_path / "out", to="adjacent")
    assert (name in done.moved) is moves


def test_scales_of_blocks_that_rows_would_leave_are_refused(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight_scale_inv"
    source = folder(tmp_path / "half", {**llama_weights(), name: torch.randn(8, 1)})
    with pytest.raises(CheckpointError, match="leave the blocks"):
        convert(source, tmp_path / "out", to="adjacent")


PEAK = """
import json, sys
from pathlib import Path
import posenc.interop.hf
from posenc.interop.checkpoints import convert

def peak():  # of this process alone: ru_maxrss starts at what its parent held
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

convert(sys.argv[4], sys.argv[5], to="adjacent")  # modules loaded on first use are no tensors
try:
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
except OSError:
    pass
before = peak()
convert(sys.argv[1], sys.argv[2], to="adjacent", config=json.loads(sys.argv[3]))
print((peak() - before) * 1024)
"""
LARGEST = 2048 * 2048 * 2  # bytes of the largest tensor that moves, 8.4 MB


def large_weights() -> dict[str, Tensor]:
    """101 MB: twelve times the largest tensor that moves, and half of it one that stays."""
    weights: dict[str, Tensor] = {}
    for layer in range(2):
        for name in ("q_proj", "k_proj", "v_proj"):
            key = f"model.layers.{layer}.self_attn.{name}.weight"
            weights[key] = torch.zeros(2048, 2048, dtype=torch.float16)
    weights["lm_head.weight"] = torch.zeros(12_288, 2048, dtype=torch.float16)
    return weights


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("sharded", [False, True])
def test_memory_is_about_one_tensor(tmp_path: Path, sharded: bool) -> None:
    """In a process of its own, beyond what it held after a small conversion.

    All resident pages count, those of mapped files too.
    """
    config = {**LLAMA, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16}
    made = (sharded_folder if sharded else folder)(tmp_path / "in", large_weights())
    source = made if sharded else made / "model.safetensors"
    arguments = [str(source), str(tmp_path / "out")]
    arguments += [json.dumps(config), str(folder(tmp_path / "small", llama_weights()))]
    command = [sys.executable, "-c", PEAK, *arguments, str(tmp_path / "warm")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    tensors = int(done.stdout) / LARGEST
    assert 0.5 < tensors < 2, f"{tensors:.2f} times the largest tensor that moves"
