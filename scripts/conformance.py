"""Compare every text model type of transformers with posenc; write docs/conformance.md.

    python scripts/conformance.py             # all model types, about two minutes
    python scripts/conformance.py 'gemma*'    # some, printed and not written

Exit code 1 where a case is not equal and tests/conformance/reasons.py does not say why.
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
from conformance.compare import Case, run  # noqa: E402
from conformance.peers import EXTRA, MODELS, VARIANTS, variants_of  # noqa: E402
from conformance.reasons import reason  # noqa: E402

PAGE = ROOT / "docs/conformance.md"
UNREACHED = (
    "dbrx: `attn_config.rope_theta` (500,000 in DBRX's config.json) is ignored and 10,000 used "
    "(modeling_dbrx.py:73)",
    "hunyuan_vl_text: once coordinates differ it is no rotation, because each section is doubled "
    "where the original repeats the list (modeling_hunyuan_vl.py:186); equal in text",
    "minimax_m3_vl_text: the class's rotary_dim = 64 is not read by its rotation, which turns all "
    "128 channels unless partial_rotary_factor says otherwise "
    "(configuration_minimax_m3_vl.py:108); the cases above set that key",
    "dynamic scaling depends on which positions came before (modeling_rope_utils.py:83); each case "
    "asks a fresh module",
)
MARKS = {"equal": "=", "differs": "≠", "refused": "✗", "theirs": "–"}


def main(patterns: list[str]) -> int:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    names = [x for x in MODELS if not patterns or any(fnmatch(x, p) for p in patterns)]
    cases = [run(name, variant) for name in names for variant in variants_of(name)]
    unexplained = [case for case in cases if not explained(case)]
    for case in unexplained:
        print(f"{case.model_type} {case.variant}: {case.status}: {case.why}", file=sys.stderr)
    print(
        ", ".join(f"{count} {status}" for status, count in Counter(x.status for x in cases).items())
    )
    if not patterns:
        PAGE.write_text(page(cases), "utf-8")
    return 1 if unexplained else 0


def explained(case: Case) -> bool:
    return case.status in ("equal", "theirs") or reason(case.model_type, case.variant) is not None


def page(cases: list[Case]) -> str:
    """The whole page."""
    counts = Counter(case.status for case in cases)
    types = list(dict.fromkeys(case.model_type for case in cases))
    near = [name for name in types if all(x.status == "equal" for x in of(cases, name))]
    drift = max(case.drift for case in cases)
    return "\n".join([
        "# Conformance with transformers",
        "",
        "Written by `python scripts/conformance.py`; do not edit. "
        f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, CPU.",
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
        f"{len(cases):,} cases of {len(types)} model types: **{counts['equal']:,} equal**, "
        f"{counts['differs']} not equal through a fault of transformers, {counts['refused']} refused "
        f"by posenc, {counts['theirs']} that transformers itself cannot run. "
        f"{len(near)} model types are equal in every variant.",
        "",
        f"With posenc's default float64 angles the same rotations differ from float32 ones by up to "
        f"{drift:.1e} of a pair: that is transformers' rounding. The last bit of a float32 angle of "
        f"100,000 radians is {2 ** (16 - 23):.1e}.",
        "",
        "## Not equal, and why",
        "",
        *reasons(cases),
        "",
        "Faults that no case above reaches, where posenc reads what the model was trained with:",
        "",
        *(f"- {line}" for line in UNREACHED),
        "",
        "## Not runnable in transformers",
        "",
        *theirs(cases),
        "",
        "## Every model type",
        "",
        "= equal · ≠ a fault of transformers · ✗ refused by posenc · – transformers raises",
        "",
        *table(cases, types),
        "",
        "Variants of single model types:",
        "",
        *extras(cases),
        "",
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


def of(cases: list[Case], name: str) -> list[Case]:
    return [case for case in cases if case.model_type == name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
