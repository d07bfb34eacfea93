"""What a checkpoint allows, and what its keys and values weigh.

Position is part of the weights: projections trained under rotations do not work under a bias, nor the
other way round. So a checkpoint's family decides which options exist at all.
"""

from dataclasses import dataclass, replace

__all__ = ["CHECKPOINTS", "FAMILIES", "Checkpoint", "Option", "family_of"]


@dataclass(frozen=True)
class Checkpoint:
    """A model family, with the shape of one well-known member for estimates of memory."""

    name: str
    family: str
    member: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: str = ""  # what the family's Rope says beside its head_dim, as written in Python

    def shaped(self, text: str) -> "Checkpoint":
        """The same family in the shape "layers x key heads x channels"; ValueError if it is none.

        >>> CHECKPOINTS["llama"].shaped("80x8x128").num_layers
        80
        """
        parts = text.lower().split("x")
        if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
            wanted = "layers x key heads x channels of a head, like 32x8x128"
            raise ValueError(f"{text!r} is no shape of a model; expected {wanted}")
        layers, kv_heads, head_dim = map(int, parts)
        num_heads = max(self.num_heads, kv_heads)
        member = f"a model of shape {text}"
        return replace(self, member=member, num_layers=layers, num_heads=num_heads,
                       num_kv_heads=kv_heads, head_dim=head_dim)  # fmt: skip


@dataclass(frozen=True)
class Option:
    """A way to read further: its name in tables, what it asks for, how it is written here."""

    name: str
    title: str
    training: str  # "none", "fine-tuning" or "from scratch"
    how: str  # a Scheme or Rope expression; {factor}, {train}, {head_dim}, {heads} are filled in
    caveat: str = ""
    window: bool = False  # keys outside a window of the trained length are dropped
    stops: bool = False  # nothing exists past the trained length


_ROPE = "Rope({head_dim}{rope}"
_SCALED = {
    name: f"{_ROPE}, scaling={call})"
    for name, call in (
        ("linear", "Linear(factor={factor})"),
        ("ntk", "NTK(factor={factor})"),
        ("yarn", "Yarn(factor={factor}, original_length={train})"),
    )
}
_WINDOW = "forgets everything further back than the trained length"
_ZERO_SHOT = (
    Option("rope", "RoPE as it is", "none", f"{_ROPE})"),
    Option("rope+linear", "RoPE read with Linear", "none", _SCALED["linear"]),
    Option("rope+ntk", "RoPE read with NTK", "none", _SCALED["ntk"]),
    Option("rope+yarn", "RoPE read with YaRN", "none", _SCALED["yarn"]),
    Option(
        "rope+window", "RoPE with a sliding window", "none",
        "attention(..., mask=causal & window({train}))", _WINDOW, window=True,
    ),
)  # fmt: skip
_TUNED = (
    Option(
        "rope, tuned", "RoPE as it is, fine-tuned at the new length", "fine-tuning", f"{_ROPE})"
    ),
    Option("rope+linear, tuned", "Linear, fine-tuned", "fine-tuning", _SCALED["linear"]),
    Option("rope+ntk, tuned", "NTK or a raised base, fine-tuned", "fine-tuning", _SCALED["ntk"]),
    Option("rope+yarn, tuned", "YaRN, fine-tuned", "fine-tuning", _SCALED["yarn"]),
)
_LEARNED = Option(
    "learned", "Learned table", "from scratch", "Learned({train}, dim)", stops=True,
    caveat="past the table: Learned.resized(n), then fine-tuning; no table on length is published",
)  # fmt: skip
_SINUSOIDAL = Option("sinusoidal", "Sinusoids", "from scratch", "Sinusoidal(dim)")
_ALIBI = Option("alibi", "ALiBi", "from scratch", "Scheme(bias=Alibi({heads}))")
_T5 = Option("t5", "T5 bias", "from scratch", "Scheme(bias=T5Bias({heads}, bidirectional=False))")
_OTHERS = tuple(
    Option(name, title, "from scratch", f"Scheme({how})", caveat)
    for name, title, how, caveat in (
        ("kerple", "KERPLE", "bias=Kerple({heads})", ""),
        ("sandwich", "Sandwich", "bias=Sandwich({heads})", ""),
        ("fire", "FIRE", "bias=Fire({heads})", ""),
        ("xpos", "xPos", "rotary=XPos(Rope({head_dim}))",
         "the reach that its paper shows is that of its window: RoPE in one holds as well"),
        ("learned-scale-rope", "RoPE with a learned scale",
         "rotary=LearnedScaleRope(Rope({head_dim}))", ""),
        ("learned+rope", "Learned table and RoPE",
         "additive=Learned({train}, dim), rotary=Rope({head_dim})", "stops where its table does"),
        ("shaw", "Shaw vectors", "relative=Shaw({head_dim}, max_distance=16)", ""),
        ("transformer-xl", "Transformer-XL", "relative=TransformerXL({heads}, {head_dim})", ""),
        ("cope", "CoPE", "relative=Cope({head_dim}, max_positions=64)",
         "positions are counted from the logits: no linear memory"),
    )
)  # fmt: skip
_CELLS = tuple(
    Option(name, title, "from scratch", how, caveat)
    for name, title, how, caveat in (
        ("axial-rope", "Axial rotary", "AxialRope({head_dim})", ""),
        ("mixed-rope", "Mixed rotary", "MixedRope({head_dim}, num_heads={heads})", ""),
        ("axial-sinusoidal", "Axial sinusoids", "AxialSinusoidal(dim)", ""),
        ("axial-learned", "Axial learned tables", "AxialLearned((h, w), (dim // 2, dim // 2))",
         "nothing past the tables"),
        ("fourier", "Fourier features", "RandomFourier(dim)", ""),
        ("swinv2", "Swin v2's continuous bias", "SwinV2Bias({heads}, window=(h, w))",
         "made for windows that change"),
        ("beit", "BEiT's bias", "BeitBias({heads}, window=(h, w))", "with a class token"),
        ("decomposed", "Decomposed relative positions", "Decomposed({head_dim}, window=(h, w))",
         "added after the softmax scale, as SAM does"),
    )
)  # fmt: skip
_NONE = Option("none", "No encoding", "from scratch", "Scheme()")


def _as_is(option: Option) -> Option:
    return Option(option.name, f"{option.title} as it is", "none", option.how, option.caveat,
                  option.window, option.stops)  # fmt: skip


FAMILIES: dict[str, tuple[Option, ...]] = {
    "scratch": (
        _ALIBI, _T5,
        Option("rope", "RoPE", "from scratch", f"{_ROPE})"),
        *(
            Option(o.name, o.title, "from scratch", o.how, o.caveat, o.window)
            for o in _ZERO_SHOT[1:]
        ),
        _NONE, _SINUSOIDAL, _LEARNED, *_OTHERS,
    ),
    "encoder": (
        Option("alibi", "Symmetric ALiBi", "from scratch", "Alibi({heads}, symmetric=True)"),
        Option("shaw", "Shaw vectors", "from scratch", "Shaw({head_dim}, max_distance=16)"),
        Option("rope", "RoPE", "from scratch", f"{_ROPE})"),
        Option("t5", "T5 bias", "from scratch", "T5Bias({heads}, bidirectional=True)"),
        _SINUSOIDAL, _LEARNED,
        Option("deberta", "DeBERTa's vectors", "from scratch", "Deberta({heads}, {head_dim})"),
        Option("transformer-xl", "Transformer-XL", "from scratch",
               "TransformerXL({heads}, {head_dim})"),
        Option("kerple", "KERPLE", "from scratch", "Kerple({heads})"),
    ),
    "vision": (
        Option(
            "swin", "Swin window bias", "from scratch", "SwinBias({heads}, window=(h, w))",
            "inside windows; for images of another size keep the window",
        ),
        *_CELLS, _LEARNED, _NONE,
    ),
    "rope": (*_ZERO_SHOT, *_TUNED),
    "alibi": (
        _as_is(_ALIBI),
        Option(
            "alibi+window", "ALiBi with a sliding window", "none",
            "attention(..., scheme=Scheme(bias=Alibi({heads})), mask=causal & window({train}))",
            _WINDOW, window=True,
        ),
    ),
    "t5": (
        Option(
            "t5", "T5 bias as it is", "none",
            "attention(..., scheme=Scheme(bias=T5Bias({heads}, bidirectional=False)), scale=1.0)",
        ),
    ),
    "learned": (_as_is(_LEARNED),),
    "sinusoidal": (_as_is(_SINUSOIDAL),),
    "nope": (_as_is(_NONE),),
}  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    checkpoint.name: checkpoint
    for checkpoint in (
        Checkpoint("none", "scratch", "a model of Llama-3-8B's shape", 32, 32, 8, 128),
        Checkpoint("llama", "rope", "Llama-3-8B", 32, 32, 8, 128, ", base=500_000.0"),
        Checkpoint("llama-2", "rope", "Llama-2-7B", 32, 32, 32, 128),
        Checkpoint("mistral", "rope", "Mistral-7B", 32, 32, 8, 128),
        Checkpoint("qwen", "rope", "Qwen2.5-7B", 28, 28, 4, 128, ", base=1_000_000.0"),
        Checkpoint("gemma", "rope", "Gemma-7B", 28, 16, 16, 256),
        Checkpoint("phi", "rope", "Phi-3-mini", 32, 32, 32, 96),
        Checkpoint("gpt-neox", "rope", "GPT-NeoX-20B", 44, 64, 64, 96, ", rotary_dim=24"),
        Checkpoint("pythia", "rope", "Pythia-6.9B", 32, 32, 32, 128, ", rotary_dim=32"),
        Checkpoint(
            "gpt-j", "rope", "GPT-J-6B", 28, 16, 16, 256, ", pairing='adjacent', rotary_dim=64"
        ),
        Checkpoint("bloom", "alibi", "BLOOM-7B1", 30, 32, 32, 128),
        Checkpoint("mpt", "alibi", "MPT-7B", 32, 32, 32, 128),
        Checkpoint("t5", "t5", "T5-large", 24, 16, 16, 64),
        Checkpoint("gpt2", "learned", "GPT-2", 12, 12, 12, 64),
        Checkpoint("opt", "learned", "OPT-6.7B", 32, 32, 32, 128),
        Checkpoint("bert", "learned", "BERT-base", 12, 12, 12, 64),
        Checkpoint("roberta", "learned", "RoBERTa-base", 12, 12, 12, 64),
        Checkpoint("marian", "sinusoidal", "Marian base", 6, 8, 8, 64),
    )
}


def family_of(checkpoint: str, task: str) -> str:
    """Which options exist: the checkpoint's own, or those of the task where there is none."""
    family = CHECKPOINTS[checkpoint].family
    return task if family == "scratch" and task in FAMILIES else family
