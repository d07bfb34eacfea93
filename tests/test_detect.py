"""Which pairing a checkpoint was trained with: right where it is clear, undecided where it is not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from posenc.interop.checkpoints import (
    CheckpointError,
    compare_pairings,
    convert,
    detect,
    permute,
)
from tiny_lm import CONFIG, DATA, trained

PAIRINGS = ("half", "adjacent")


def saved(path: Path, weights: dict[str, Tensor]) -> Path:
    save_file(weights, path)
    return path


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_weights_trained_here_tell_their_pairing(pairing: str) -> None:
    found = detect(DATA / f"trained-{pairing}.safetensors", config=CONFIG)
    assert found.pairing == pairing
    assert abs(found.score) > 8 and found.p_value < 0.005
    assert (found.score > 0) == (pairing == "half")
    assert found.num_heads == 8
    assert found.evidence[pairing] > 2 * min(found.evidence.values())
    assert str(found).startswith(f"{pairing}: ")


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_converted_weights_tell_the_other_one(tmp_path: Path, pairing: Any) -> None:
    """The weights speak, not the config: a Llama config says half of both."""
    other: Any = "adjacent" if pairing == "half" else "half"
    source = DATA / f"trained-{pairing}.safetensors"
    out = tmp_path / "out.safetensors"
    convert(source, out, to=other, source_pairing=pairing, config=CONFIG)
    assert detect(out, config=CONFIG).pairing == other


def test_random_weights_are_undecided(tmp_path: Path) -> None:
    names = load_file(DATA / "trained-half.safetensors")
    for seed in range(6):
        torch.manual_seed(seed)
        weights = {name: torch.randn_like(weight) * 0.02 for name, weight in names.items()}
        found = detect(saved(tmp_path / "random.safetensors", weights), config=CONFIG, seed=seed)
        assert found.pairing is None
        assert abs(found.score) < 4
        assert str(found).startswith("undecided: ")


def test_p_values_are_those_of_random_weights() -> None:
    """Calibrated: where there is nothing to tell, small p-values are as rare as they say."""
    values = [
        compare_pairings(torch.randn(12, 32, 64).norm(dim=-1), num_permutations=49).p_value
        for _ in range(60)
    ]
    assert sum(value <= 0.1 for value in values) <= 14  # 6 expected; more than 14 once in 2,000
    assert sum(value <= 0.02 for value in values) <= 6


def test_a_clear_case_for_each_pairing_from_its_definition() -> None:
    """Norms that fall with the frequency, in both orders, with noise of a quarter of the fall."""
    falling = torch.linspace(2.0, 1.0, 16).repeat(6, 2) * torch.exp(0.25 * torch.randn(6, 32) / 4)
    assert compare_pairings(falling).pairing == "half"
    adjacent = permute(falling.T, num_heads=1, head_dim=32, to="adjacent").T
    assert compare_pairings(adjacent).pairing == "adjacent"
    assert compare_pairings(falling[:, torch.randperm(32)]).pairing is None


def test_the_same_seed_gives_the_same_answer() -> None:
    source = DATA / "trained-half.safetensors"
    assert detect(source, config=CONFIG) == detect(source, config=CONFIG)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e4m3fn])
def test_every_floating_dtype_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = load_file(DATA / "trained-adjacent.safetensors")
    path = saved(tmp_path / "w.safetensors", {name: x.to(dtype) for name, x in weights.items()})
    assert detect(path, config=CONFIG).pairing == "adjacent"


def test_a_folder_with_other_tensors_is_read(tmp_path: Path) -> None:
    weights = load_file(DATA / "trained-half.safetensors")
    weights |= {"model.embed_tokens.weight": torch.randn(9, 64), "unheard.of": torch.randn(3)}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    saved(tmp_path / "model.safetensors", weights)
    assert detect(tmp_path).pairing == "half"


def test_nothing_to_go_by_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors", {"model.norm.weight": torch.ones(64)})
    with pytest.raises(CheckpointError, match="no query or key weights"):
        detect(path, config=CONFIG)
    with pytest.raises(ValueError, match="norm zero or all alike"):
        compare_pairings(torch.ones(3, 16))
    with pytest.raises(ValueError, match=r"even rotary_dim of at least 8, got \[3, 6\]"):
        compare_pairings(torch.ones(3, 6))


@pytest.mark.slow
@pytest.mark.parametrize("pairing", [*PAIRINGS, None])
@pytest.mark.parametrize("seed", [1, 2])
def test_fresh_training_tells_its_pairing(tmp_path: Path, pairing: str | None, seed: int) -> None:
    """Trained here and now, both ways and without rotation, which must stay undecided."""
    weights = trained(pairing, steps=300, seed=seed)
    found = detect(saved(tmp_path / "w.safetensors", weights), config=CONFIG)
    assert found.pairing == pairing, str(found)


def test_weights_that_have_learned_nothing_say_so() -> None:
    torch.manual_seed(0)
    flat = compare_pairings((0.02 * torch.randn(64, 128, 256)).norm(dim=-1))
    assert flat.pairing is None and max(flat.evidence.values()) == 0
    assert str(flat).endswith("64 heads; nothing learned yet to tell by")
    told = str(detect(DATA / "trained-half.safetensors", config=CONFIG))
    assert told.endswith("8 heads")
