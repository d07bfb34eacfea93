"""Rotations of transformers beyond one form for queries and keys: values, hidden states, time, 3-D.

Also single keys of a config that a model's code and its weights read differently.
"""

import importlib
import math
from types import SimpleNamespace
from typing import Any

import torch
import transformers

from conformance.check import Check
from conformance.several_axes import Family, modules
from posenc import AxialRope, DynamicNTK, MixedRope, Rope, Table, Yarn, rotate
from posenc.interop.hf import ConfigError, scheme_from_config
from posenc.positions import grid, sequence
from support import assert_roundings, random

__all__ = ["CHECKS"]


def load(name: str) -> Any:
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def clvp_turns_values_too() -> None:
    theirs, config = load("clvp"), transformers.ClvpEncoderConfig()
    angles = theirs.ClvpRotaryPositionalEmbedding(config)(torch.zeros(1, 16, 4))
    turned = angles.shape[-1]
    width = config.hidden_size // config.num_attention_heads
    q, k, v = (random(1, 2, 16, width, seed=s, dtype=torch.float32) for s in (1, 2, 3))
    parts = theirs.apply_rotary_pos_emb(
        *(x[..., :turned] for x in (q, k, v)),
        angles.cos().squeeze(0),
        angles.sin().squeeze(0),
        sequence(16)[None],
    )
    table = Rope(width, rotary_dim=turned, angle_dtype=torch.float32).table(sequence(16))
    for x, part in zip((q, k, v), parts, strict=True):
        their = torch.cat((part, x[..., turned:]), -1)
        assert torch.equal(rotate(x, table, impl="eager"), their)


def roformer_is_adjacent_pairs() -> None:
    for start in (0, 5):
        roformer_from(start)


def roformer_from(start: int) -> None:
    theirs = load("roformer")
    table = theirs.RoFormerSinusoidalPositionalEmbedding(64, 64)
    table.weight.data = table.create_weight()
    at = table((1, 16), start)[None, None]
    q, k = (random(1, 2, 16, 64, seed=s, dtype=torch.float32) for s in (1, 2))
    rotated = theirs.RoFormerSelfAttention.apply_rotary_position_embeddings(at, q, k)
    ours = Rope(64, pairing="adjacent").table(sequence(16, start=start))
    for x, their in zip((q, k), rotated, strict=True):
        assert_roundings(rotate(x, ours), their.double(), 4)


CONFORMERS = {
    "seamless_m4t": "SeamlessM4TConformer",
    "wav2vec2_bert": "Wav2Vec2Bert",
    "wav2vec2_conformer": "Wav2Vec2Conformer",
}


def conformers_turn_hidden_states_before_they_are_projected(name: str) -> None:
    theirs, prefix = load(name), CONFORMERS[name]
    sizes = {"num_attention_heads": 4, "speech_encoder_attention_heads": 4}
    config = SimpleNamespace(hidden_size=64, rotary_embedding_base=10_000, **sizes)
    hidden = random(2, 8, 64, dtype=torch.float32)
    at = getattr(theirs, f"{prefix}RotaryPositionalEmbedding")(config)(hidden)
    bare = SimpleNamespace(num_heads=4, head_size=16)
    their = getattr(theirs, f"{prefix}SelfAttention")._apply_rotary_embedding(bare, hidden, at)
    split = hidden.view(2, 8, 4, 16).transpose(1, 2)
    table = Rope(16, angle_dtype=torch.float32).table(sequence(8))
    ours = rotate(split, table, impl="eager").transpose(1, 2).reshape(2, 8, 64)
    assert torch.equal(ours, their)


def qwen_omni_speech_turns_one_head() -> None:
    """Head 0, taken apart into (even, odd) channels first: adjacent pairs, in another order."""
    theirs = load("qwen2_5_omni")
    q = random(1, 3, 9, 64, dtype=torch.float32)
    rope = Rope(64, pairing="adjacent", angle_dtype=torch.float32)
    table = rope.table(sequence(9))
    cos, sin = (torch.cat((part, part), -1) for part in (table.cos, table.sin))
    first = theirs.deinterleave_head_dim(q[:, :1])
    their, _ = theirs.apply_rotary_pos_emb(first, first, cos, sin)
    ours = rotate(q[:, :1], table, impl="eager")
    assert torch.equal(theirs.deinterleave_head_dim(ours), their)


def v_jepa_2_is_not_a_rotation() -> None:
    """modeling_vjepa2.py rotate_queries_or_keys turns pair (2i, 2i + 1) with cosines laid out
    [f, f]: its two channels have different speeds and lengths change. Weights were trained so; there
    is no form here that repeats it.
    """
    basis = torch.eye(8).view(1, 8, 1, 8)
    made = load("vjepa2").rotate_queries_or_keys(basis, torch.ones(1, 1, 1))[0, :, 0]
    assert (made @ made.T - torch.eye(8)).abs().max() > 0.3


def esmfold2_fills_a_table() -> None:
    """ESMFold 2 mixes two bases in one head: no form says so, but its angles fill a Table."""
    theirs = load("esmfold2")
    sizes = {"num_spatial_rope_pairs_per_axis": 3, "num_uid_rope_pairs": 4, "head_dim": 32}
    bases = {"spatial_rope_base_frequency": 100.0, "uid_rope_base_frequency": 1000.0}
    rotary = theirs.EsmFold2RotaryEmbedding(SimpleNamespace(**sizes, **bases))
    cos, sin = rotary(random(1, 5, 3, dtype=torch.float32), sequence(5)[None], torch.float32)
    q = random(1, 2, 5, 32, dtype=torch.float32)
    their, _ = theirs.apply_rotary_pos_emb(q, q, cos, sin)
    table = Table(cos[..., :16], sin[..., :16], "half", 32)
    assert torch.equal(rotate(q, table, impl="eager"), their)


def lightglue_is_mixed_rotation() -> None:
    theirs = load("lightglue")
    encoder = theirs.LightGluePositionalEncoder(
        SimpleNamespace(descriptor_dim=32, num_attention_heads=2)
    )
    points = random(1, 5, 2, dtype=torch.float32)
    q, k = (random(1, 2, 5, 16, seed=s, dtype=torch.float32) for s in (1, 2))
    rotated = theirs.apply_rotary_pos_emb(q, k, *encoder(points)[0])
    rope = MixedRope(16)
    rope.weight.data = encoder.projector.weight.data.T
    for x, their in zip((q, k), rotated, strict=True):
        assert_roundings(rotate(x, rope.table(points)), their.double(), 8)


def musicflamingo_turns_by_window_frame_and_time() -> None:
    """Both coordinates are real: −2π · seconds times the share of the window, or of the frame."""
    theirs, config = load("musicflamingo"), transformers.MusicFlamingoConfig()
    rotary, frames = theirs.MusicFlamingoRotaryEmbedding(config), 6
    section: Any = config.rope_parameters
    seconds = torch.arange(2)[:, None] * 30.0 + torch.arange(frames) * 0.04
    cos, sin = rotary(seconds, frames)
    width = cos.shape[-1]
    hidden = random(2, frames, width + 8, dtype=torch.float32)
    their = theirs.apply_rotary_time_emb(hidden, cos, sin)
    window = (seconds[:, :1] / (config.audio_frame_step * 4 * frames)).round()
    places = torch.stack(
        (window.expand(-1, frames), torch.arange(frames).expand(2, -1) * 2 * math.pi), -1
    )
    positions = (
        places.double() / rotary.max_seq_len_cached * (-2 * math.pi * seconds.double())[..., None]
    )
    rope = AxialRope(width + 8, section["rope_theta"], (width // 2, width // 2), "adjacent")
    ours = rotate(hidden[:, None], rope.table(positions))[:, 0]
    largest = positions.abs().max().item()
    assert_roundings(ours, their.double(), 4 + 4 * largest)  # float32 angles of theirs


def mlcd_gives_the_class_token_angles_of_its_own() -> None:
    modeling, config, rotary = modules("mlcd_vision_model")
    form = AxialRope(config.hidden_size // config.num_attention_heads, angle_dtype=torch.float32)
    patches, cells = form.table(grid(4, 6)), grid(4, 6)
    learned = random(1, patches.cos.shape[-1], dtype=torch.float32)
    twice = torch.cat((learned, learned), -1)
    cos, sin = rotary(config)(torch.zeros(1, len(cells), 4), cells)
    cos, sin = torch.cat((twice.cos(), cos)), torch.cat((twice.sin(), sin))
    q = random(1, 2, 25, form.head_dim, dtype=torch.float32)
    rows = q[0].transpose(0, 1)
    their, _ = modeling.apply_rotary_pos_emb_vision(rows, rows, cos, sin)
    table = Table(
        torch.cat((learned.cos()[None], patches.cos), 1),
        torch.cat((learned.sin()[None], patches.sin), 1),
        "half",
        form.head_dim,
    )
    assert torch.equal(rotate(q, table, impl="eager"), their.transpose(0, 1)[None])


def deepseek_v4_turns_its_output_back() -> None:
    theirs = load("deepseek_v4")
    rope = Rope(64, pairing="adjacent", rotary_dim=32, placement="trailing")
    table = rope.table(sequence(5, start=1000))
    x = random(1, 2, 5, 64, dtype=torch.float32)
    turned = theirs.apply_rotary_pos_emb(x, table.cos, table.sin)
    assert torch.equal(rotate(x, table, impl="eager"), turned)
    back = theirs.apply_rotary_pos_emb(turned, table.cos, -table.sin)
    assert_roundings(rotate(turned, table.inverse()), back.double(), 4)
    assert_roundings(rotate(turned, table.inverse()), x.double(), 4)


# --- Keys of a config that code and weights read differently -------------------------------------

SMALL: dict[str, Any] = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 4}


def rope_of(**config: Any) -> Any:
    return scheme_from_config(config).layers[0].rotary


def refused(message: str, config: dict[str, Any]) -> None:
    try:
        scheme_from_config(config)
    except ConfigError as error:
        if message not in str(error):
            raise
    else:
        raise AssertionError(f"no ConfigError with {message!r}")


def speeds(rope: Any) -> torch.Tensor:
    return rope.frequencies().inv_freq


def close(theirs: torch.Tensor, ours: torch.Tensor) -> bool:
    same = theirs.shape == ours.shape
    return same and bool((theirs.double() - ours).abs().le(4 * 2**-23 * ours.abs()).all())


def dynamic_ntk_forgets_nothing() -> None:
    keys: dict[str, Any] = {**SMALL, "max_position_embeddings": 4096}
    section = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    config = transformers.LlamaConfig(**keys, rope_parameters=section)
    rope = rope_of(model_type="llama", **keys, rope_parameters=section)
    assert rope == Rope(64, 1e4, scaling=DynamicNTK(2.0, 4096))
    module = load("llama").LlamaRotaryEmbedding(config)
    same = []
    for last in (3000, 100_000, 9000, 3000):
        module(torch.zeros(1, 1, 4), torch.tensor([[last]]))
        same.append(close(module.inv_freq, speeds(rope.at_length(last + 1))))
    assert same == [True, True, False, True]  # at 9,000 it still has the base of 100,001


def llama_ignores_a_share_of_the_head() -> None:
    share: dict[str, Any] = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}
    module = load("llama").LlamaRotaryEmbedding
    counts = [
        len(module(transformers.LlamaConfig(**SMALL, rope_parameters={**share, **kind})).inv_freq)
        for kind in ({"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0})
    ]
    assert counts == [32, 16]
    keys: dict[str, Any] = {**SMALL, "rope_parameters": {**share, "rope_type": "default"}}
    message = "partial_rotary_factor = 0.5: expected all 64 channels"
    refused(message, {"model_type": "llama", **keys})


def olmo3_loses_truncate() -> None:
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096,
            "rope_theta": 5e5, "truncate": False}  # fmt: skip
    sections: dict[str, Any] = {"full_attention": yarn,
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}  # fmt: skip
    keys: dict[str, Any] = {
        **SMALL,
        "head_dim": 64,
        "max_position_embeddings": 32768,
        "rope_parameters": sections,
    }
    made = load("olmo3").Olmo3RotaryEmbedding(transformers.Olmo3Config(**keys))
    rope = scheme_from_config({"model_type": "olmo3", **keys}).layers[3].rotary
    meant = Rope(64, 5e5, scaling=Yarn(8.0, 4096, truncate=False))
    assert rope == meant and not close(made.full_attention_inv_freq, speeds(meant))
    assert close(made.full_attention_inv_freq, speeds(Rope(64, 5e5, scaling=Yarn(8.0, 4096))))


def dbrx_loses_its_base() -> None:
    config = transformers.DbrxConfig(attn_config={"rope_theta": 500_000.0})
    theirs = load("dbrx").DbrxRotaryEmbedding(config).inv_freq
    sizes = {"d_model": 6144, "n_heads": 48, "n_layers": 40}
    rope = rope_of(model_type="dbrx", **sizes, attn_config={"rope_theta": 500_000.0})
    refused("keys that agree", config.to_dict())  # it saves both
    assert rope.base == 500_000.0 and not close(theirs, speeds(rope))
    assert close(theirs, speeds(Rope(rope.head_dim, 10_000.0)))


def granite_has_a_base_for_each_layer() -> None:
    bases = [10_000.0, 500_000.0, 0, 10_000.0]
    module = load("granite_swa")
    config = module.GraniteSWAConfig(**SMALL, layer_rope_theta=bases)
    layers = scheme_from_config(config.to_dict()).layers
    assert [getattr(layer.rotary, "base", 0) for layer in layers] == bases
    for base, layer in zip(bases, layers, strict=True):
        if base:
            config.rope_parameters = {**config.rope_parameters, "rope_theta": base}
            made = module.GraniteSWARotaryEmbedding(config)
            assert close(made.inv_freq, speeds(layer.rotary))


def muse_reads_a_list_of_bases_as_a_switch() -> None:
    keys = {**SMALL, "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}
    on: dict[str, Any] = {**keys, "layer_rope_theta": [500_000.0, 0, 500_000.0, 0]}
    for name in ("muse_glimmer_text", "muse_spark_text"):
        layers = scheme_from_config({"model_type": name, **on}).layers
        assert [getattr(layer.rotary, "base", 0) for layer in layers] == on["layer_rope_theta"]
        other = {**on, "layer_rope_theta": [7.0, 0, 7.0, 0]}
        _, config, rotary = modules(name, Family(lambda config: None, config=other))
        assert close(rotary(config).inv_freq, speeds(layers[0].rotary))
        refused("keys that agree", {"model_type": name, **other})


def minimax_m3_turns_the_whole_head() -> None:
    module = importlib.import_module(
        "transformers.models.minimax_m3_vl.configuration_minimax_m3_vl"
    )
    config = module.MiniMaxM3VLTextConfig()
    theirs = load("minimax_m3_vl").MiniMaxM3VLRotaryEmbedding(config).inv_freq
    rope = rope_of(**config.to_dict())
    assert (rope.head_dim, rope.rotary_dim, len(theirs)) == (128, 64, 64)
    assert close(theirs, speeds(Rope(128, rope.base)))


CHECKS = [
    Check("clvp", "`Rope` of leading channels; values turn as well", clvp_turns_values_too),
    Check("roformer", "`Rope`, adjacent pairs", roformer_is_adjacent_pairs),
    *(
        Check(f"{name} (conformer)", "`Rope` on hidden states, before they are projected",
              lambda name=name: conformers_turn_hidden_states_before_they_are_projected(name))
        for name in CONFORMERS
    ),
    Check("lightglue", "`MixedRope`, whose speeds are the learned projection of keypoints",
          lightglue_is_mixed_rotation),
    Check("musicflamingo", "`AxialRope` at real (window, frame) positions times −2π · seconds",
          musicflamingo_turns_by_window_frame_and_time),
    Check("esmfold2 (atoms)", "a `Table` of its angles: two bases, one of them shared by three axes",
          esmfold2_fills_a_table),
    Check("mlcd (class token)", "a `Table`: `AxialRope` for patches, learned angles before them",
          mlcd_gives_the_class_token_angles_of_its_own),
    Check("deepseek_v4 (output)", "`Table.inverse()`", deepseek_v4_turns_its_output_back),
    Check("qwen2_5_omni_dit", "`Rope`, adjacent pairs, on head 0 alone; its config is refused, for a "
          "`Scheme` turns all heads", qwen_omni_speech_turns_one_head),
    Check("vjepa2", "", v_jepa_2_is_not_a_rotation, "refused: a pair's two channels have different "
          "speeds, so lengths are not kept: it is no rotation (modeling_vjepa2.py:195)"),
    Check("granite_swa: layer_rope_theta", "a base for each layer",
          granite_has_a_base_for_each_layer),
    Check("muse_glimmer, muse_spark: layer_rope_theta", "a switch, no base; another base than the "
          "model's is refused", muse_reads_a_list_of_bases_as_a_switch),
    Check("dynamic NTK after a longer text", "`DynamicNTK.at_length(n)`", dynamic_ntk_forgets_nothing,
          "theirs: it keeps the base of the longest text so far, until one is shorter than "
          "max_position_embeddings (modeling_rope_utils.py:83)"),
    Check("olmo3: truncate in a section", "`Yarn(truncate=False)`", olmo3_loses_truncate,
          "theirs: truncate is looked up beside the sections, where it is not "
          "(modeling_rope_utils.py:475)"),
    Check("dbrx: attn_config.rope_theta", "`Rope(base=500_000)`, as published; a config that "
          "transformers saved says both and is refused", dbrx_loses_its_base,
          "theirs: attn_config.rope_theta is ignored and 10,000 used (modeling_dbrx.py:73)"),
    Check("minimax_m3_vl: rotary_dim", "64 of 128 channels, as published and as its class documents",
          minimax_m3_turns_the_whole_head,
          "theirs: rotary_dim = 64 is not read (modeling_minimax_m3_vl.py:309), as it was not in "
          "MiniMax-M2 until that was mended (configuration_minimax_m2.py:99)"),
    Check("llama: partial_rotary_factor", "", llama_ignores_a_share_of_the_head,
          "refused: without a scaling method its code ignores the key, with one it honours it and "
          "then fails on the shapes"),
]  # fmt: skip
