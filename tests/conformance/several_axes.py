"""Every M-RoPE and vision rotation of transformers, said in this library's values.

The model's own rotary module and apply function run on its default config. With
`angle_dtype=torch.float32` their cosines, sines and rotated tensors are ours bit for bit; the float64
default is within the rounding of their angles. `scheme_from_config` reads the same value.
"""

import importlib
import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conformance.check import Check
from posenc import AxialRope, MRope, Rope, rotate
from posenc.interop.hf import FAMILIES, scheme_from_config
from posenc.positions import (
    Image,
    Text,
    Video,
    centred,
    grid,
    multimodal,
    on_axes,
    sequence,
    volume,
)
from support import assert_roundings, random

__all__ = ["CENTRED", "MROPE", "VISION", "modules", "mrope_checks", "vision_checks"]

HEADS = 2
HEIGHT, WIDTH = 4, 6
NOT_EQUAL = {
    "hunyuan_vl_text": "theirs: each section of cat(freq, freq) is doubled where the original "
    "repeats the list, so the two channels of a pair turn with different coordinates and lengths "
    "are not kept (modeling_hunyuan_vl.py:186); equal where coordinates agree, as in text",
}


@dataclass(frozen=True)
class Family:
    """Where transformers keeps the rotation of a model type, and how it is called."""

    form: Callable[[Any], Any]  # config -> the value that says the same
    folder: str = ""
    rotary: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    layer_type: str | None = None
    placement: str = "leading"
    shift: int | None = None  # of vision: what the first row and column count as


# --- M-RoPE --------------------------------------------------------------------------------------


def head_dim_of(config: Any) -> int:
    if hasattr(config, "qk_rope_head_dim"):
        return config.qk_nope_head_dim + config.qk_rope_head_dim
    width = getattr(config, "head_dim", None)
    return width or config.hidden_size // config.num_attention_heads


def mrope(
    *sections: int,
    order: Any = "contiguous",
    pairing: Any = "half",
    placement: Any = "leading",
    layer_type: str | None = None,
    **family: Any,
) -> Family:
    def form(config: Any) -> MRope:
        rope = Rope(
            head_dim_of(config),
            theta_of(config, layer_type),
            pairing,
            2 * sum(sections),
            placement=placement,
        )
        return MRope(rope, sections, order)

    return Family(form, layer_type=layer_type, placement=placement, **family)


def theta_of(config: Any, layer_type: str | None = None) -> float:
    parameters = config.rope_parameters
    return parameters["rope_theta"] if layer_type is None else parameters[layer_type]["rope_theta"]


HALF_TURNS = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
    }
}
INTERLEAVED = {"order": "interleaved"}
OMNI = {"rotary": "Qwen2_5OmniRotaryEmbedding"}
MROPE = {
    "cohere_compass_text": mrope(
        24, 20, 20, **INTERLEAVED, layer_type="full_attention",
        config={"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    ),
    "cosmos3_edge_text": mrope(24, 20, 20, **INTERLEAVED),
    "ernie4_5_vl_moe_text": mrope(20, 22, 22, order="alternating", pairing="adjacent"),
    "glm4v_moe_text": mrope(8, 12, 12, config={"head_dim": 128, **HALF_TURNS}),
    "glm4v_text": mrope(8, 12, 12, pairing="adjacent", config=HALF_TURNS),
    "glm_image_text": mrope(8, 12, 12, config=HALF_TURNS),
    "glm_ocr_text": mrope(8, 12, 12, pairing="adjacent"),
    "hunyuan_vl_text": mrope(
        16, 16, 16, 16,
        config={
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 16, 16, 16]
            }
        },
    ),
    "hy_v4_vl_text": mrope(
        12, 10, 10, **INTERLEAVED, pairing="adjacent", placement="trailing"
    ),
    "neomme": mrope(4, 4, **INTERLEAVED, layer_type="full_attention"),
    "neomme/sliding": mrope(16, 16, **INTERLEAVED, layer_type="sliding_attention"),
    "paddleocr_vl_text": mrope(16, 24, 24),
    "qwen2_5_omni_talker": mrope(16, 24, 24, **OMNI),
    "qwen2_5_omni_text": mrope(16, 24, 24, **OMNI),
    "qwen2_5_vl_text": mrope(16, 24, 24),
    "qwen2_vl_text": mrope(16, 24, 24),
    "qwen3_5_moe_text": mrope(11, 11, 10, **INTERLEAVED),
    "qwen3_5_text": mrope(11, 11, 10, **INTERLEAVED),
    "qwen3_omni_moe_talker_text": mrope(
        11, 11, 10, **INTERLEAVED, rotary="Qwen3OmniMoeTalkerRotaryEmbedding"
    ),
    "qwen3_omni_moe_text": mrope(
        24, 20, 20, **INTERLEAVED, rotary="Qwen3OmniMoeThinkerTextRotaryEmbedding",
        config={"head_dim": 128},
    ),
    "qwen3_vl_moe_text": mrope(24, 20, 20, **INTERLEAVED),
    "qwen3_vl_text": mrope(24, 20, 20, **INTERLEAVED),
    "qwen4_exp_text": mrope(107, 11, 10, **INTERLEAVED),  # its sections cover 32 of 128 pairs
}  # fmt: skip


# --- Vision --------------------------------------------------------------------------------------


def axial(
    *,
    width: Callable[[Any], int] = head_dim_of,
    shift: int = 0,
    folder: str = "",
    **options: Any,
) -> Family:
    def form(config: Any) -> AxialRope:
        return AxialRope(width(config), theta_of(config), **options)

    return Family(form, folder=folder, shift=shift)


def memory_width(config: Any) -> int:
    heads = config.memory_attention_downsample_rate * config.memory_attention_num_attention_heads
    return config.memory_attention_hidden_size // heads


COLUMNS_FIRST: dict[str, Any] = {"axis_order": (1, 0)}
SEGMENT_ANYTHING = axial(width=memory_width, pairing="adjacent", **COLUMNS_FIRST)
VISION = {
    **dict.fromkeys(
        (
            "cohere_compass_vision", "dots3_note_vision_encoder", "ernie4_5_vl_moe_vision",
            "exaone4_5_vision", "glm4v_moe_vision", "glm4v_vision", "glm5_next_vision",
            "glm_ocr_vision", "lfm3_vl_vision", "mlcd_vision_model", "paddleocr_vl_vision",
            "qwen2_5_omni_vision_encoder", "qwen2_5_vl_vision", "qwen3_5_moe_vision",
            "qwen3_5_vision", "qwen3_omni_moe_vision_encoder", "qwen3_vl_moe_vision",
            "qwen3_vl_vision", "qwen4_exp_vision", "video_llama_3_vision",
        ),
        axial(),
    ),
    "qwen2_vl_vision": axial(width=lambda config: config.embed_dim // config.num_heads),
    "edgetam_video": SEGMENT_ANYTHING,
    "sam2_video": SEGMENT_ANYTHING,
    "sam3_tracker_video": SEGMENT_ANYTHING,
    "sam3_vit_model": axial(pairing="adjacent", **COLUMNS_FIRST),
    "inkling2_vision": axial(pairing="adjacent", shift=1, **COLUMNS_FIRST),
    "kimi_k25_vision": axial(order="alternating", **COLUMNS_FIRST),
    "step3p5_vision": axial(folder="step3p7", **COLUMNS_FIRST),
    "muse_glimmer_vision": axial(shift=1, **COLUMNS_FIRST),
    "muse_spark_vision": axial(shift=1, **COLUMNS_FIRST),
    "pixtral": axial(spectrum="dealt"),
    "minimax_m3_vl_vision": axial(split=3),
}  # fmt: skip
X_FIRST = (  # these take (x, y) positions
    "edgetam_video", "sam2_video", "sam3_tracker_video", "sam3_vit_model", "muse_glimmer_vision",
    "muse_spark_vision",
)  # fmt: skip
CENTRED = ("dinov3_vit", "sapiens2", "eomt_dinov3")


# --- Their code ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Theirs:
    """What the model's own code makes of q and k, `[1, H, T, D]`, and its cosines and sines."""

    config: Any
    cos: Tensor
    sin: Tensor
    q: Tensor
    k: Tensor
    q_rot: Tensor
    k_rot: Tensor


def modules(model_type: str, family: Family | None = None) -> tuple[Any, Any, Any]:
    """The modeling module, a config and the class of the rotary module of a model type."""
    model_type = model_type.split("/", maxsplit=1)[0]
    family = family or Family(lambda config: None)
    folders = importlib.import_module("transformers.models").__path__[0]
    names = [model_type.rsplit("_", cut)[0] for cut in range(model_type.count("_") + 1)]
    folder = family.folder or next(name for name in names if Path(folders, name).is_dir())
    path = f"transformers.models.{folder}"
    modeling = importlib.import_module(f"{path}.modeling_{folder}")
    configs = vars(importlib.import_module(f"{path}.configuration_{folder}")).values()
    config = next(c for c in configs if getattr(c, "model_type", None) == model_type)
    vision = family.shift is not None
    rotary = [
        made
        for name, made in vars(modeling).items()
        if name.endswith(("RotaryEmbedding", "RopePositionEmbedding")) and inspect.isclass(made)
        if not family.rotary or name == family.rotary
    ]
    named = [made for made in rotary if ("Vision" in made.__name__) == vision]
    return modeling, config(**family.config), (named or rotary)[0]


def called(modeling: Any, name: str, q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> Any:
    return getattr(modeling, name)(q, k, *args, **kwargs)


def their_mrope(name: str, family: Family, positions: Tensor) -> Theirs:
    modeling, config, rotary = modules(name, family)
    layer = [] if family.layer_type is None else [family.layer_type]
    cos, sin = rotary(config)(torch.zeros(1, 1, 4), positions.T[:, None], *layer)
    width = head_dim_of(config)
    q, k = (random(1, HEADS, len(positions), width, seed=s, dtype=torch.float32) for s in (0, 1))
    if family.placement == "trailing":
        turned = cos.shape[-1]
        parts = modeling.apply_rotary_pos_emb(q[..., -turned:], k[..., -turned:], cos, sin)
        rotated = [
            torch.cat((x[..., :-turned], part), -1) for x, part in zip((q, k), parts, strict=True)
        ]
    else:
        rotated = modeling.apply_rotary_pos_emb(q, k, cos, sin)
    return Theirs(config, cos, sin, q, k, *rotated)


def their_axial(name: str, family: Family, positions: Tensor) -> Theirs:
    modeling, config, rotary = modules(name, family)
    given = positions.flip(-1) if name in X_FIRST else positions
    cos, sin = rotary(config)(torch.zeros(1, len(given), 4), given)
    width = family.form(config).head_dim
    q, k = (random(1, HEADS, len(given), width, seed=s, dtype=torch.float32) for s in (0, 1))
    two_d = [name for name in vars(modeling) if name.startswith("apply_rotary_pos_emb_2d")]
    if two_d:
        own = [name for name in two_d if "cross" not in name]
        rotated = getattr(modeling, own[0])(q, k, cos, sin)
    elif name == "pixtral":
        rotated = modeling.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=0)
    else:  # tokens before heads
        rows = (x[0].transpose(0, 1) for x in (q, k))
        rotated = [
            x.transpose(0, 1)[None] for x in modeling.apply_rotary_pos_emb_vision(*rows, cos, sin)
        ]
    return Theirs(config, cos, sin, q, k, *rotated)


# --- Equal ---------------------------------------------------------------------------------------


def assert_equal_to_theirs(form: Any, positions: Tensor, theirs: Theirs) -> None:
    """Bit for bit with float32 angles; the float64 default within the rounding of those angles."""
    table = form.table(positions)
    exact = replace_angles(form, torch.float64).table(positions, dtype=torch.float64)
    cos, sin = pairs_of(theirs.cos, table.pairing), pairs_of(theirs.sin, table.pairing)
    for ours, their, right in ((table.cos, cos, exact.cos), (table.sin, sin, exact.sin)):
        assert torch.equal(ours[0], their)
        largest = positions.abs().max()
        assert (their.double() - right[0]).abs().max() <= (2 + 2 * largest) * 2**-24
    for x, their in ((theirs.q, theirs.q_rot), (theirs.k, theirs.k_rot)):
        assert torch.equal(rotate(x, table, impl="eager"), their)
        size = x.abs().max() * 2
        right = rotate(x.double(), exact)
        assert (their.double() - right).abs().max() <= size * (3 + 2 * largest) * 2**-24


def pairs_of(whole: Tensor, pairing: str) -> Tensor:
    """One value for each pair, from cosines as wide as the rotated channels."""
    whole = whole.reshape(-1, whole.shape[-1])
    width = whole.shape[-1] // 2
    doubled = torch.equal(whole[:, :width], whole[:, width:])
    return whole[:, :width] if doubled or pairing == "half" else whole[:, ::2]


def replace_angles(form: Any, dtype: torch.dtype) -> Any:
    if isinstance(form, MRope):
        return replace(form, rope=replace(form.rope, angle_dtype=dtype))  # pyright: ignore
    return replace(form, angle_dtype=dtype)


def some_positions(num_axes: int) -> Tensor:
    """Text, an image, text, a video, text; then far positions with nothing in common."""
    near = multimodal([Text(4), Image(4, 6), Text(4), Video(2, 2, 2), Text(3)])
    far = torch.tensor([[0, 4095, 100_000], [100_000, 7, 1000], [31, 30_000, 2]])
    positions = torch.cat((near, far))
    if num_axes == 4:
        positions = torch.cat((torch.arange(len(positions))[:, None], positions), 1)
    return positions[:, -num_axes:]


def mrope_equals_transformers(name: str) -> None:
    family = MROPE[name]
    _, config, _ = modules(name, family)
    assert_read(name, config, family.form(config))
    form = replace_angles(family.form(config), torch.float32)
    positions = some_positions(form.num_axes)
    theirs = their_mrope(name, family, positions)
    if name not in NOT_EQUAL:
        assert_equal_to_theirs(form, positions, theirs)
        return
    text = on_axes(sequence(9), form.num_axes)  # where coordinates agree, so do we
    assert_equal_to_theirs(form, text, their_mrope(name, family, text))
    assert not torch.allclose(theirs.q_rot.norm(dim=-1), theirs.q.norm(dim=-1), rtol=1e-2)
    ours = rotate(theirs.q, form.table(positions))
    assert_roundings(ours.norm(dim=-1), theirs.q.norm(dim=-1), 8)


def axial_rotation_equals_transformers(name: str) -> None:
    family = VISION[name]
    _, config, _ = modules(name, family)
    assert_read(name, config, family.form(config))
    form = replace_angles(family.form(config), torch.float32)
    positions = grid(HEIGHT, WIDTH) if form.num_axes == 2 else volume(2, HEIGHT, WIDTH)
    positions = positions + (family.shift or 0)
    assert_equal_to_theirs(form, positions, their_axial(name, family, positions))


def assert_read(name: str, config: Any, form: Any) -> None:
    """scheme_from_config makes the same value of the model's own config."""
    model_type, _, part = name.partition("/")
    raw = json.loads(json.dumps(config.to_dict(), default=str))
    model = scheme_from_config({"nested": raw}, part="nested", model_type=model_type)
    kinds = model.layer_types or (None,) * len(model.layers)
    found = {
        layer.rotary
        for layer, kind in zip(model.layers, kinds, strict=True)
        if layer.rotary is not None and (part or "") in (kind or "")
    }
    assert form in found, f"{found} were read, not {form}"


def centred_coordinates_equal_transformers(name: str) -> None:
    modeling, config, rotary = modules(name)
    size = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
    cos, sin = rotary(config).eval()(torch.zeros(1, 3, HEIGHT * size, WIDTH * size))
    theta = getattr(config, "rope_theta", None) or theta_of(config)
    form = AxialRope(config.hidden_size // config.num_attention_heads, theta)
    assert_read(name, config, form)
    table = form.table(centred(HEIGHT, WIDTH, extent=2 * math.pi))
    num_prefix = 5
    q, k = (
        random(1, HEADS, num_prefix + len(cos), form.head_dim, seed=s, dtype=torch.float32)
        for s in (0, 1)
    )
    for x, their in zip((q, k), modeling.apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert torch.equal(their[:, :, :num_prefix], x[:, :, :num_prefix])
        ours = rotate(x[:, :, num_prefix:], table)
        assert_roundings(ours, their[:, :, num_prefix:].double(), 8)  # angles up to 2π in float32


def llama4_counts_from_1_with_the_class_token_at_rest() -> None:
    modeling, config, rotary = modules("llama4_vision_model", Family(lambda config: None, shift=0))
    config = type(config)(image_size=56, patch_size=14)
    width = config.hidden_size // config.num_attention_heads
    form = AxialRope(width, theta_of(config), pairing="adjacent", axis_order=(1, 0))
    assert_read("llama4_vision_model", config, form)
    positions = torch.cat((grid(4, 4) + 1, torch.zeros(1, 2, dtype=torch.int64)))
    q, k = (random(1, HEADS, 17, width, seed=s, dtype=torch.float32) for s in (0, 1))
    swapped = (x.transpose(1, 2).contiguous() for x in (q, k))
    theirs = modeling.vision_apply_rotary_emb(*swapped, rotary(config)(torch.zeros(1)))
    table = replace_angles(form, torch.float32).table(positions)
    for x, their in zip((q, k), theirs, strict=True):
        assert_roundings(rotate(x, table), their.transpose(1, 2).double(), 2)
        assert torch.equal(their.transpose(1, 2)[:, :, -1], x[:, :, -1])


def efficientloftr_rotates_all_heads_as_one() -> None:
    modeling, config, rotary = modules("efficientloftr")
    kernel, stride = config.q_aggregation_kernel_size, config.q_aggregation_stride
    pixels = (kernel + stride * (side - 1) for side in (HEIGHT, WIDTH))
    cos, sin = (part.flatten(1, 2) for part in rotary(config)(torch.zeros(1, 1, *pixels)))
    form = AxialRope(config.hidden_size, theta_of(config), pairing="adjacent", order="alternating")
    assert_read("efficientloftr", config, form)
    table = replace_angles(form, torch.float32).table(grid(HEIGHT, WIDTH) + 1)
    q, k = (
        random(1, 1, HEIGHT * WIDTH, form.head_dim, seed=s, dtype=torch.float32) for s in (0, 1)
    )
    theirs = modeling.apply_rotary_pos_emb(q, k, cos, sin)
    for x, their in zip((q, k), theirs, strict=True):
        assert torch.equal(rotate(x, table, impl="eager"), their)


def gemma4_is_a_rotation_of_each_half_of_the_head() -> None:
    """Pairs (i, i + d/4) inside each half: two partial rotations, one after the other."""
    modeling, config, rotary = modules("gemma4_vision", Family(lambda config: None, shift=0))
    assert FAMILIES["gemma4_vision"].refuse
    width, positions = head_dim_of(config), grid(HEIGHT, WIDTH)
    cos, sin = rotary(config)(torch.zeros(1, len(positions), 4), positions[None])
    x = random(1, HEADS, len(positions), width, dtype=torch.float32)
    theirs = modeling.apply_multidimensional_rope(x.transpose(1, 2), cos, sin, positions[None])
    for placement, axis in (("leading", 0), ("trailing", 1)):
        half = Rope(width, theta_of(config), "half", width // 2, None, torch.float32, placement)  # pyright: ignore[reportArgumentType]
        x = rotate(x, half.table(positions[:, axis]), impl="eager")
    assert torch.equal(x, theirs.transpose(1, 2))


# --- The list -------------------------------------------------------------------------------------


def said(form: MRope | AxialRope) -> str:
    """A form in a few words, for the page."""
    if isinstance(form, MRope):
        text = f"`MRope`, {form.order}, sections {', '.join(map(str, form.sections))}"
        return f"{text}, {form.pairing} pairs"
    kept = {"order": "blocks", "spectrum": "shared", "axis_order": tuple(range(form.num_axes))}
    changed = [
        f"{key}={getattr(form, key)!r}" for key, x in kept.items() if getattr(form, key) != x
    ]
    axes = "" if form.num_axes == 2 else f"{form.num_axes} axes, "
    return ", ".join([f"`AxialRope`, {axes}{form.pairing} pairs", *(f"`{x}`" for x in changed)])


def check(name: str, run: Callable[[str], None], family: Family) -> Check:
    form = family.form(modules(name, family)[1])
    shift = f" at positions from {family.shift}" if family.shift else ""
    return Check(name, said(form) + shift, lambda: run(name), NOT_EQUAL.get(name, ""))


def mrope_checks() -> list[Check]:
    """Every M-RoPE text model; a function, because it builds each one's config."""
    return [check(name, mrope_equals_transformers, family) for name, family in MROPE.items()]


def vision_checks() -> list[Check]:
    """Every vision encoder that rotates."""
    return [
        *(check(name, axial_rotation_equals_transformers, x) for name, x in VISION.items()),
        *(
            Check(name, "`AxialRope`, half pairs, at `centred(h, w, extent=2π)`",
                  lambda name=name: centred_coordinates_equal_transformers(name))
            for name in CENTRED
        ),
        Check("llama4_vision_model", "`AxialRope`, adjacent pairs, `axis_order=(1, 0)` at positions "
              "from 1, the class token at (0, 0)", llama4_counts_from_1_with_the_class_token_at_rest),
        Check("efficientloftr", "`AxialRope` over all heads as one, adjacent pairs, "
              "`order='alternating'` at positions from 1", efficientloftr_rotates_all_heads_as_one),
        Check("gemma4_vision", "two `Rope`s of half a head, one leading and one trailing; its config "
              "is refused, for no one value says so",
              gemma4_is_a_rotation_of_each_half_of_the_head),
    ]  # fmt: skip
