"""Why a case is not equal: a fault of transformers, or something that posenc refuses. With the place.

Every case that `compare.run` calls "differs" or "refused" must have a reason here; a reason that no
case needs any more is an error too.
"""

from fnmatch import fnmatch

# (model type, variant): why. The first that matches counts.
REASONS: dict[tuple[str, str], str] = {
    ("neucodec", "*"): "refused: rotates by the index of the head, not of the token "
    "(modeling_neucodec.py), which is no encoding of position",
    ("xcodec2", "*"): "refused: rotates by the index of the head, not of the token "
    "(modeling_xcodec2.py), which is no encoding of position",
    ("qwen2_5_omni_dit", "*"): "refused: rotates the first head alone (modeling_qwen2_5_omni.py)",
    ("phimoe", "longrope mscale"): "theirs: long_factor never reaches cos and sin "
    "(modeling_phimoe.py:90 asks for frequencies without the length)",
    ("minimax_m3_vl_text", "proportional"): "refused: the class's rotary_dim = 64, which its own "
    "rotation does not read (configuration_minimax_m3_vl.py:108), contradicts a share of all 128",
    ("deepseek_v4", "proportional"): "refused: the config keeps partial_rotary_factor = 0.125 "
    "beside the section's 0.25",
    ("*", "yarn truncate"): "theirs: with one section for each layer type truncate = false is "
    "looked up beside the sections, where it is not (modeling_rope_utils.py:475)",
}


def reason(model_type: str, variant: str) -> str | None:
    """The reason of a case, or None."""
    found = (why for (name, kind), why in REASONS.items()
             if fnmatch(model_type, name) and fnmatch(variant, kind))  # fmt: skip
    return next(found, None)
