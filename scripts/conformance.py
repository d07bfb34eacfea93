"""Compare every model type of transformers that rotates with posenc; write docs/conformance.md.

    python scripts/conformance.py             # all model types, about two minutes
    python scripts/conformance.py 'gemma*'    # some, printed and not written

Exit code 1 where a case is not equal and its list in tests/conformance does not say why.
"""

import logging
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

# pyright: reportMissingImports=false
from conformance.check import Check  # noqa: E402
from conformance.compare import Case, run  # noqa: E402
from conformance.groups import GROUPS  # noqa: E402
from conformance.peers import EXTRA, MODELS, VARIANTS, variants_of  # noqa: E402
from conformance.reasons import reason  # noqa: E402

PAGE = ROOT / "docs/conformance.md"
WORDS = {
    "equal": "equal",
    "differs": "not equal through a fault of transformers",
    "refused": "refused by posenc",
    "theirs": "that transformers itself cannot run",
}
MARKS = {"equal": "=", "differs": "≠", "refused": "✗", "theirs": "–"}


def main(patterns: list[str]) -> int:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    names = [x for x in MODELS if not patterns or any(fnmatch(x, p) for p in patterns)]
    cases = [run(name, variant) for name in names for variant in variants_of(name)]
    groups = {title: chosen(listed(), patterns) for title, listed in GROUPS.items()}
    unexplained = [
        f"{case.model_type} {case.variant}: {case.status}: {case.why}"
        for case in cases
        if not explained(case)
    ]
    unexplained += [fault for checks in groups.values() for x in checks if (fault := fault_of(x))]
    print(*unexplained, sep="\n", end="\n" if unexplained else "", file=sys.stderr)
    every = [*cases, *(check for checks in groups.values() for check in checks)]
    print(counted(every))
    if not patterns and not unexplained:
        PAGE.write_text(page(cases, groups), "utf-8")
    return 1 if unexplained else 0


def chosen(checks: list[Check], patterns: list[str]) -> list[Check]:
    return [x for x in checks if not patterns or any(fnmatch(x.case, p) for p in patterns)]


def fault_of(check: Check) -> str:
    """What is wrong with a case, or nothing."""
    try:
        check.run()
    except Exception as error:  # whatever the peer's own code raises
        return f"{check.case}: {type(error).__name__}: {error}"
    return ""


def counted(cases: Iterable[Case | Check]) -> str:
    """How many cases came out how."""
    counts = Counter(case.status for case in cases)
    return ", ".join(f"{counts[x]:,} {WORDS[x]}" for x in WORDS if counts[x])


def explained(case: Case) -> bool:
    return case.status in ("equal", "theirs") or reason(case.model_type, case.variant) is not None


def page(cases: list[Case], groups: dict[str, list[Check]]) -> str:
    """The whole page."""
    types = list(dict.fromkeys(case.model_type for case in cases))
    near = [name for name in types if all(x.status == "equal" for x in of(cases, name))]
    drift = max(case.drift for case in cases)
    return "\n".join([
        "# Conformance with transformers",
        "",
        "Written by `python scripts/conformance.py`; do not edit. "
        f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, CPU.",
        "",
        f"- **Rotary text models**: {len(cases):,} cases of {len(types)} model types: "
        f"{counted(cases)}.",
        *(f"- **{title}**: {len(x)} cases: {counted(x)}." for title, x in groups.items()),
        "",
        "What a group compares is said where it begins; a case that is not equal has its reason.",
        "",
        "## Rotary text models",
        "",
        "For every text model type that rotates queries and keys, the model's own rotary module and "
        "apply function run beside what `posenc.interop.hf.scheme_from_config` makes of the model's "
        "own config. Equal means: frequencies and amplitude within one float32 rounding, and every "
        "element of q and k within one rounding of its pair, at positions 0 … 63 and 0, 7, 1,000, "
        "4,095, 100,000, with float32 angles on both sides (`angle_dtype=torch.float32`). Outputs "
        "that a model leaves in another order (DeepSeek's) are put back into it first. Model types "
        "with several coordinates are compared at equal ones, as in text. Dynamic scaling is held to "
        "four roundings of the frequencies, because transformers stretches the base in float32 "
        "(modeling_rope_utils.py:341), and complex rotations (Llama 4, DeepSeek-V2) to two.",
        "",
        f"{len(near)} model types are equal in every variant.",
        "",
        f"With posenc's default float64 angles the same rotations differ from float32 ones by up to "
        f"{drift:.1e} of a pair: that is transformers' rounding. The last bit of a float32 angle of "
        f"100,000 radians is {2 ** (16 - 23):.1e}.",
        "",
        "### Not equal, and why",
        "",
        *reasons(cases),
        "",
        "### Not runnable in transformers",
        "",
        *theirs(cases),
        "",
        "### Every model type",
        "",
        "= equal · ≠ a fault of transformers · ✗ refused by posenc · – transformers raises",
        "",
        *table(cases, types),
        "",
        "Variants of single model types:",
        "",
        *extras(cases),
        "",
        *(line for title, checks in groups.items() for line in section(title, checks)),
    ])  # fmt: skip


def reasons(cases: list[Case]) -> Iterable[str]:
    found: dict[str, list[str]] = {}
    for case in cases:
        if case.status in ("differs", "refused"):
            why = reason(case.model_type, case.variant) or case.why
            found.setdefault(why, []).append(f"{case.model_type} ({case.variant})")
    for why, where in found.items():
        names = [name.rsplit(" (", 1)[0] for name in where]
        whole = len(set(names)) == 1 and len(names) > 1
        yield f"- {why}: {names[0] + ', all variants' if whole else ', '.join(where)}"


def theirs(cases: list[Case]) -> Iterable[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        if case.status == "theirs":
            found.setdefault((case.model_type, short(case.why)), []).append(case.variant)
    for (name, why), variants in found.items():
        yield f"- {name} ({', '.join(variants)}): {why}"


def short(why: str) -> str:
    """The last sentence of a long validation error, as code."""
    text = why.rsplit("validator ", maxsplit=1)[-1] if "validator " in why else why
    text = text.replace("`", "'")
    return f"`{text if len(text) <= 110 else text[:107] + '…'}`"


def table(cases: list[Case], types: list[str]) -> Iterable[str]:
    yield "| model type | " + " | ".join(VARIANTS) + " |"
    yield "|---" * (len(VARIANTS) + 1) + "|"
    for name in types:
        marks = {case.variant: MARKS[case.status] for case in of(cases, name)}
        yield f"| {name} | " + " | ".join(marks[variant] for variant in VARIANTS) + " |"


def extras(cases: list[Case]) -> Iterable[str]:
    for case in cases:
        if case.variant in EXTRA.get(case.model_type, {}):
            yield f"- {case.model_type}, {case.variant}: {MARKS[case.status]}"


ABOUT = {
    "Checkpoints in the other pairing": "A tiny random model of every causal family that rotates, "
    "converted by `posenc convert` and run in the other pairing. Equal means the same logits within "
    "the rounding of float32 and, converted back, the same bytes.",
    "M-RoPE": "Text, an image, text, a video, text, and far positions whose coordinates have nothing "
    "in common. Equal means that the cosines, the sines and the turned q and k are the model's own "
    "bit for bit with float32 angles, that float64 angles are within the rounding of those, and "
    "that `scheme_from_config` reads the same value from the model's own config.",
    "Vision encoders": "A grid of 4 × 6 patches (two frames of it, where there are three axes). "
    "Equal means the same as for M-RoPE, but for DINOv3's kin (8 roundings: angles up to 2π in "
    "float32) and Llama 4 (two: complex rotation).",
    "Positions of text, images and videos": "The ids of the model's own `get_rope_index` for text, "
    "for images among text, and for a video (as one grid, or frame by frame with text between), "
    "element by element.",
    "ALiBi": "Slopes and biases of 24 head counts, padded on either side, against what "
    "`scheme_from_config` reads. Equal means within 8 roundings of the row: theirs are powers of a "
    "root that is rounded to float32.",
    "Buckets of distance": "Seven sizes of bucket tables, distances from −300 to 300, each class and "
    "side. Equal means bit for bit, sums and quotients within one rounding.",
    "Tables of windows": "Every layer of a small model, and windows that are not square. Equal means "
    "bit for bit where a module gives its bias, else attention weights within one rounding (four "
    "for Swin v2, whose coordinates are float32).",
    "Disentangled vectors": "The model's own attention over 70 tokens in float64, random weights "
    "in it, beside `attention` of the same queries, keys and values under what the config is read "
    "as. Equal means every output within one rounding of float32, and every bucket.",
    "Transformer-XL and its kin": "The same over up to 31 tokens, memory and pooled positions among "
    "them, within four roundings: their angles are float32 (eight where scores are too).",
    "Vectors of clipped distances": "The same as for disentangled vectors.",
    "Decomposed vectors of rows and columns": "The model's own attention in a window, over the whole "
    "image and over images of two other sizes, as for disentangled vectors (two roundings where "
    "tables are resized). Pooled: its vectors for fewer queries than keys, fewer keys than queries.",
    "Queries scaled by position": "Factors at positions from 0 to 100,000 within two roundings, or "
    "the output of the model's own attention within one.",
    "Other rotations, and keys that code and weights read differently": "Not for queries and keys "
    "alone, or not by the token's number; and single keys where the model's code and what it was "
    "trained with say different things: there posenc reads what it was trained with.",
    "Sinusoids": "The model's own module gives the vectors of 64 positions, at an odd width, behind "
    "a cache and of padded ids where it takes them. Equal means one float32 rounding where it "
    "computes in float64, and up to six of the angle more where it rounds frequency and angle.",
    "Sinusoids of several coordinates": "Cells of a grid, of padded images (real ones), or boxes. "
    "Equal means the same as for sinusoids.",
    "Learned tables": "The model's module with random vectors, for tokens padded on either side and "
    "behind a cache. Equal means the same rows, bit for bit.",
    "Learned tables of several coordinates": "The same for rows and columns, or lines and places.",
    "Tables of cells for images of another size": "The model's own `interpolate_pos_encoding`, from "
    "5 × 5 cells to four other grids, larger, smaller and not square. Equal means that class tokens "
    "are the same bit for bit and cells within 8 float32 roundings of the largest: theirs are sums "
    "of up to 16 products.",
    "Fourier features": "Random frequencies at random points, and even bands. Equal means the same "
    "as for sinusoids.",
    "Diffusion times": "Features of three times, before the network that reads them. Equal means "
    "the same as for sinusoids.",
}


def section(title: str, checks: list[Check]) -> Iterable[str]:
    yield from (f"## {title}", "", ABOUT[title], "")
    faults = [check for check in checks if check.why]
    yield from (f"- {check.case}: {check.why}" for check in faults)
    yield from ([""] if faults else [])
    yield from ("| case | in posenc | |", "|---|---|---|")
    yield from (f"| {x.case} | {x.said or 'none'} | {MARKS[x.status]} |" for x in checks)
    yield ""


def of(cases: list[Case], name: str) -> list[Case]:
    return [case for case in cases if case.model_type == name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
