"""Broken input to inspect, extend, convert and detect: one line that says what, and nothing left."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from posenc.cli import run
from posenc.inspection import as_written, inspect
from posenc.interop.checkpoints import CheckpointError, convert
from posenc.interop.config_files import MAX_BYTES
from posenc.interop.hf import ConfigError, scheme_from_config
from posenc.records import beside, write_atomically

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "max_position_embeddings": 64, "rope_theta": 10_000.0,
}  # fmt: skip
TEXT = json.dumps(LLAMA).encode()
SHARD = "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"


def weights() -> dict[str, torch.Tensor]:
    rows = {"q_proj": 32, "k_proj": 16, "v_proj": 16}
    return {
        f"model.layers.{layer}.self_attn.{name}.weight": torch.randn(count, 32)
        for layer in range(2)
        for name, count in rows.items()
    }


def model(folder: Path, shard: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(TEXT)
    save_file(weights(), folder / shard)
    return folder


def everything(folder: Path) -> dict[str, bytes]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() or p.is_symlink())
    return {str(p): b"" if p.is_symlink() else p.read_bytes() for p in files}


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    """Run a command that must fail: its exit code, one line on stderr, nothing on stdout."""
    capsys.readouterr()
    assert run([str(x) for x in arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("posenc: ") and err.count("\n") == 1, (out, err)
    assert "Error:" not in err and "Errno" not in err
    return err


# --- configs that are none ---

NO_CONFIG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty: expected a JSON object"),
    "blank": (b" \n", "is empty"),
    "cut short": (TEXT[:40], "is not JSON"),
    "a list": (b"[]", "holds no JSON object: got []"),
    "a number": (b"3", "holds no JSON object: got 3"),
    "not a number": (b"NaN", "holds no JSON object: got nan"),
    "a name of a file": (b'"x.json"', "holds no JSON object: got 'x.json'"),
    "null": (b"null", "holds no JSON object: got None"),
    "nested too deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deep"),
    "lists nested too deep": (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
    "no UTF-8": (TEXT.decode().encode("utf-16"), "not UTF-8 text"),
    "with a byte order mark": (b"\xef\xbb\xbf" + TEXT, "byte order mark: expected UTF-8 without"),
    "a number of 5,000 digits": (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
    "a key twice": (b'{"rope_theta": 5e5, ' + TEXT[1:], "'rope_theta' twice: 500000.0 and 10000.0"),
    "a key twice inside": (b'{"a": {"b": 1, "b": 2}}', "says 'b' twice: 1 and 2"),
}


@pytest.mark.parametrize("name", NO_CONFIG)
def test_what_is_no_config_is_named_with_the_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, reason = NO_CONFIG[name]
    folder = model(tmp_path / "broken")
    (folder / "config.json").write_bytes(content)
    other, before = model(tmp_path / "whole"), everything(tmp_path)
    for command in (
        ("inspect", folder),
        ("inspect", folder / "config.json", "--json"),
        ("extend", folder, "--to", 128),
        ("extend", folder, "--to", 128, "--out", tmp_path / "new.json"),
        ("convert", folder, tmp_path / "out", "--to", "adjacent"),
        ("detect", folder),
        ("detect", other, "--config", folder / "config.json"),
        (
            "convert",
            other,
            tmp_path / "out",
            "--to",
            "adjacent",
            "--config",
            folder / "config.json",
        ),
    ):
        said = refused(capsys, *command)
        assert str(folder / "config.json") in said and reason in said, said
    assert everything(tmp_path) == before
    with pytest.raises(ConfigError, match=r"config\.json"):
        scheme_from_config(folder)


def test_a_key_twice_with_one_value_says_one_thing(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"rope_theta": 1e4, ' + TEXT[1:])
    assert scheme_from_config(path) == scheme_from_config(LLAMA)


@pytest.mark.parametrize("value", [[1e4], "1e4", {}, True, -1, 0])
def test_a_base_of_another_kind_is_told_what_it_should_be(value: object) -> None:
    with pytest.raises(ConfigError, match=r"rope_theta = .*: expected a finite number above 0"):
        scheme_from_config({**LLAMA, "rope_theta": value})


def test_a_file_too_long_for_a_config_is_not_read_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # takes no room
    assert "longer than" in refused(capsys, "inspect", path)


@pytest.mark.parametrize("command", [("inspect",), ("extend", "--to", 128), ("detect",)])
def test_paths_that_hold_nothing_are_repeated(
    command: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *options = command
    for path in (tmp_path / "none", tmp_path / "none" / "config.json"):
        said = refused(capsys, verb, path, *options)
        assert str(path) in said and "no such file" in said
    assert "no config.json" in refused(capsys, verb, tmp_path, *options) or verb != "detect"
    assert "an empty one" in refused(capsys, verb, "", *options)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert str(loop) in refused(capsys, verb, loop, *options)


def test_weights_are_no_config_and_are_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.safetensors", "pytorch_model.bin", "w.pt", "w.ckpt"):
        (tmp_path / name).write_bytes(b"\x80\x04")
        for command in (("inspect",), ("extend", "--to", 128)):
            said = refused(capsys, command[0], tmp_path / name, *command[1:])
            assert "holds weights: expected their folder or config.json" in said
    assert "is an address" in refused(capsys, "inspect", "https://huggingface.co/Qwen/Qwen2.5-7B")


def test_a_config_is_read_from_a_pipe_once(tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", 'printf %s "$0" > "$1"', TEXT.decode(), str(pipe)]):
        assert inspect(pipe).num_rotating == 2


# --- GGUF ---


def gguf_bytes(folder: Path) -> bytes:
    gguf: Any = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(str(folder / "made"), "qwen2")
    writer.add_block_count(2)
    writer.add_embedding_length(32)
    writer.add_head_count(4)
    writer.add_context_length(64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (folder / "made").read_bytes()


def numbered(whole: bytes, at: int, number: int, size: int) -> bytes:
    return whole[:at] + number.to_bytes(size, "little") + whole[at + size :]


def test_broken_gguf_files_say_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, path = gguf_bytes(tmp_path), tmp_path / "model.gguf"
    broken = [
        (b"", "is no GGUF file: it begins with b'', 0 bytes long"),
        (whole[:10], "is no GGUF file"),
        (b"GGML" + whole[4:], "begins with b'GGML'"),
        (numbered(whole, 4, 1, 4), "version 1: expected 2 or 3"),
        (numbered(whole, 4, 3 << 24, 4), "little-endian"),
        (numbered(whole, 8, 1 << 62, 8), "is damaged"),
        (numbered(whole, 16, 1 << 62, 8), "is damaged"),
        (numbered(whole, 24, 1 << 62, 8), "damaged or cut short"),
        *((whole[:length], "damaged") for length in range(24, len(whole) - 40, 7)),
    ]
    for content, reason in broken:
        path.write_bytes(content)
        said = refused(capsys, "inspect", path)
        assert str(path) in said and reason in said, said
    path.write_bytes(whole)
    assert inspect(path).num_layers == 2
    assert "is read by inspect alone" in refused(capsys, "extend", path, "--to", 128)
    assert "expected safetensors" in refused(
        capsys, "detect", path, "--config", model(tmp_path / "m") / "config.json"
    )
    assert "give a file in it, model.gguf" in refused(capsys, "inspect", tmp_path)


# --- weights ---


def header_of(entry: object, data: bytes = b"0000", **more: object) -> bytes:
    return raw_header(json.dumps({"a": entry, **more}).encode(), data)


def raw_header(header: bytes, data: bytes = b"0000") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


ENTRY: dict[str, Any] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
NO_WEIGHTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is no safetensors file"),
    "an absurd header": (b"\xff" * 8 + b"{}", "cannot be 18446744073709551615 bytes"),
    "a header cut short": (header_of(ENTRY)[:30], "is no safetensors file"),
    "tensors cut short": (header_of(ENTRY, b"000"), "take 4 bytes, the file holds 3"),
    "nested too deep": (raw_header(b'{"a":' * 200_000), "nested too deep"),
    "a tensor twice": (raw_header(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"I32"}}'), "twice"),
    "a shape of reals": (header_of({**ENTRY, "shape": [1.0]}), "whole numbers"),
    "a shape of truths": (header_of({**ENTRY, "shape": [True]}), "whole numbers"),
    "a shape in words": (header_of({**ENTRY, "shape": "1"}), "whole numbers"),
    "a dtype in a list": (header_of({**ENTRY, "dtype": ["F32"]}), "dtype ['F32']"),
    "three offsets": (header_of({**ENTRY, "data_offsets": [0, 4, 4]}), "offsets"),
    "metadata in a list": (header_of(ENTRY, __metadata__=[1]), "__metadata__ = [1]: expected"),
    "metadata of numbers": (
        header_of(ENTRY, __metadata__={"posenc.pairing": 3}), "from strings to strings"),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid", "pointer of Git"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_WEIGHTS)
def test_broken_weights_are_named_and_nothing_is_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, reason = NO_WEIGHTS[name]
    folder = model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(content)
    before = everything(tmp_path)
    for command in (
        ("detect", folder),
        ("convert", folder, tmp_path / "new" / "out", "--to", "adjacent"),
    ):
        said = refused(capsys, *command)
        assert str(folder / "model.safetensors") in said and reason in said, said
    assert everything(tmp_path) == before and not (tmp_path / "new").exists()
    facts = inspect(folder)  # a fault of the weights is none of the config
    assert facts.num_rotating == 2 and "weights were not looked at" in facts.notes[0]


@pytest.mark.parametrize("kind", ["a folder", "a link to nowhere", "pickles"])
def test_files_that_are_no_safetensors_are_not_opened(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model(tmp_path / "m")
    path = folder / "model.safetensors"
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a link to nowhere":
        path.symlink_to(tmp_path / "nowhere")
    else:
        (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
        said = refused(capsys, "convert", folder, tmp_path / "out", "--to", "adjacent")
        assert "pytorch_model.bin is not read: save the model as safetensors" in said
        path = folder / "pytorch_model.bin"
        assert "pickles" in refused(capsys, "detect", path)
    for source in (folder, path):
        said = refused(capsys, "convert", source, tmp_path / "out", "--to", "adjacent")
        assert "safetensors" in said or "no such file" in said
    assert not (tmp_path / "out").exists()


NAMES = tuple(weights())
HELD = dict.fromkeys(NAMES, SHARD)
NO_INDEX: dict[str, tuple[object, str]] = {
    "a missing shard": ({**HELD, "x": "model-2.safetensors"}, "not there: model-2.safetensors"),
    "a tensor that is nowhere": ({**HELD, "x": SHARD}, "'x' is in none of the shards"),
    "a shard above the folder": (dict.fromkeys(NAMES, "../out.safetensors"), "same folder"),
    "a shard by its whole path": (dict.fromkeys(NAMES, "/etc/passwd"), "same folder"),
    "the folder above": (dict.fromkeys(NAMES, ".."), "not there: .."),
    "a shard without a name": (dict.fromkeys(NAMES, ""), "not there"),
    "a number": (dict.fromkeys(NAMES, 3), "in 3: expected a file of the same folder"),
    "a list": ({**HELD, "x": ["a"]}, "in ['a']: expected a file"),
    "no map": (None, "weight_map = None: expected an object from tensors to files"),
    "a list for the map": ([SHARD], "expected an object"),
    "an empty map": ({}, "weight_map = {}: expected an object"),
}


@pytest.mark.parametrize("name", NO_INDEX)
def test_an_index_that_lies_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, reason = NO_INDEX[name]
    folder = model(tmp_path / "m", SHARD)
    (tmp_path / "out.safetensors").write_bytes((folder / SHARD).read_bytes())
    (folder / INDEX).write_text(json.dumps({"weight_map": content}))
    before = everything(tmp_path)
    for command in (("detect", folder), ("convert", folder, tmp_path / "out", "--to", "adjacent")):
        said = refused(capsys, *command)
        assert str(folder / INDEX) in said and reason in said, said
    assert everything(tmp_path) == before


def test_a_tensor_in_the_wrong_shard_or_in_two_is_refused(tmp_path: Path) -> None:
    folder, held = tmp_path / "m", weights()
    folder.mkdir()
    (folder / "config.json").write_bytes(TEXT)
    parts: Mapping[str, tuple[str, ...]] = {"a.safetensors": NAMES[:3], "b.safetensors": NAMES[3:]}
    for shard, names in parts.items():
        save_file({name: held[name] for name in names}, folder / shard)
    other = {"a.safetensors": "b.safetensors", "b.safetensors": "a.safetensors"}
    swapped = {name: other[shard] for shard, names in parts.items() for name in names}
    (folder / INDEX).write_text(json.dumps({"weight_map": swapped}))
    with pytest.raises(CheckpointError, match=r"in a\.safetensors, expected in b\.safetensors"):
        convert(folder, tmp_path / "out", to="adjacent")
    save_file(held, folder / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"in a\.safetensors and in b\.safetensors"):
        convert(folder, tmp_path / "out", to="adjacent")


def test_links_names_in_any_script_and_tensors_without_numbers_convert(tmp_path: Path) -> None:
    folder = model(tmp_path / "mödel 模型 x")
    real = tmp_path / "blob"
    held = weights() | {f"{NAMES[0][:-6]}bias": torch.zeros(32, 0)}
    save_file(held, real)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(real)
    target = tmp_path / "néw" / ("n" * 250)  # as long as a name may be
    assert run(["convert", str(folder), str(target), "--to", "adjacent"]) == 0
    assert not (target / "model.safetensors").is_symlink()
    back = tmp_path / "back"
    assert run(["convert", str(target), str(back), "--to", "half"]) == 0
    assert (back / "model.safetensors").stat().st_size > 0


# --- where to write ---


def test_targets_that_cannot_be_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = model(tmp_path / "m"), tmp_path / "file"
    file.write_bytes(b"")
    dangling, link = tmp_path / "dangling", tmp_path / "link"
    dangling.symlink_to(tmp_path / "nowhere")
    link.symlink_to(folder)
    before = everything(tmp_path)
    cases: list[tuple[Path, Path, str]] = [
        (folder, folder, "exists"),
        (folder, folder / "inside", "is inside"),
        (folder, link / "inside", "is inside"),
        (folder, folder / "config.json", "exists"),
        (folder, dangling, "exists"),
        (folder, file / "out", "file"),
        (folder, tmp_path / ("n" * 300), "too long"),
        (folder / "model.safetensors", folder / "model.safetensors", "exists"),
    ]
    for source, target, reason in cases:
        said = refused(capsys, "convert", source, target, "--to", "adjacent")
        assert reason in said, said
    for target in (folder / "config.json", folder, dangling, file / "out", tmp_path / ("n" * 300)):
        assert ".part" not in refused(capsys, "extend", folder, "--to", 128, "--out", target)
    assert everything(tmp_path) == before and not (tmp_path / "nowhere").exists()


def test_a_full_disk_is_the_machine_s_fault_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model(tmp_path / "m")
    before = everything(tmp_path)

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("posenc.interop.checkpoints.files._move", no_room)
    target = tmp_path / "new" / "out"
    said = refused(capsys, "convert", folder, target, "--to", "adjacent", code=1)
    assert said == f"posenc: {target}: No space left on device\n"
    monkeypatch.setattr(Path, "write_bytes", no_room)
    out = tmp_path / "new" / "config.json"
    said = refused(capsys, "extend", folder, "--to", 128, "--out", out, code=1)
    assert said == f"posenc: {out}: No space left on device\n"
    monkeypatch.undo()
    assert everything(tmp_path) == before and not (tmp_path / "new").exists()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt(), ValueError()])
def test_what_is_written_beside_goes_whatever_happens(tmp_path: Path, error: BaseException) -> None:
    def write() -> None:
        with beside(tmp_path / "a" / "b" / "out") as part:
            part.mkdir()
            (part / "one").write_text("1")
            raise error

    with pytest.raises(type(error)):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_comes_in_the_meantime_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out"

    def write() -> None:
        with beside(target) as part:
            part.write_text("ours")
            target.write_text("theirs")

    with pytest.raises(FileExistsError, match="exists"):
        write()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["out"]
    assert target.read_text() == "theirs"
    write_atomically(target, "over")
    assert target.read_text() == "over"


SLOW = """
import sys, time
from posenc import cli
from posenc.interop.checkpoints import conversion
def slow(*arguments):
    print("half-way", flush=True)
    time.sleep(60)
conversion._copy_others = slow
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_conversion_that_is_stopped_leaves_nothing(tmp_path: Path, number: int) -> None:
    folder = model(tmp_path / "m")
    before = everything(tmp_path)
    command = [sys.executable, "-c", SLOW, "convert", folder, tmp_path / "new" / "out"]
    with subprocess.Popen(
        [*map(str, command), "--to", "adjacent"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"half-way\n"
        assert list((tmp_path / "new").glob(".out.*.part/model.safetensors"))
        process.send_signal(number)
        assert process.wait(60) == 130
        assert process.stderr.read().strip() == b"posenc: stopped"
    assert everything(tmp_path) == before and not (tmp_path / "new").exists()


# --- what is printed ---


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    posenc = f'"{sys.executable}" -m posenc'
    return subprocess.run(
        ["sh", "-c", command.replace("posenc", posenc, 1)], capture_output=True, text=True,
        check=False, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip


def test_output_to_a_reader_that_leaves_and_closed_streams(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    assert shell(f"posenc inspect '{folder}' | true").stderr == ""
    closed = shell(f"posenc inspect '{folder}' <&-")
    assert closed.returncode == 0 and "2 of 2 layers rotate" in closed.stdout
    began = time.monotonic()
    assert shell(f"posenc inspect '{tmp_path}/none' <&-").returncode == 2
    assert time.monotonic() - began < 60


def test_output_has_no_colour_and_no_width_of_its_own_and_json_is_alone(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    plain = shell(f"posenc inspect '{folder}'").stdout
    for environment in ({"NO_COLOR": "1"}, {"COLUMNS": "20"}, {"FORCE_COLOR": "1"}):
        assert shell(f"posenc inspect '{folder}'", **environment).stdout == plain
    assert "\x1b" not in plain
    for command in (f"inspect '{folder}' --json", f"detect '{folder}' --json"):
        done = shell(f"posenc {command}")
        assert done.stderr == "" and isinstance(json.loads(done.stdout), dict)
    printed = shell(f"posenc extend '{folder}' --to 128")
    assert json.loads(printed.stdout)["max_position_embeddings"] == 128
    ascii_only = shell(f"posenc extend '{folder}' --to 128", PYTHONIOENCODING="ascii")
    assert ascii_only.returncode == 0 and "Traceback" not in ascii_only.stderr


def test_values_are_written_without_their_defaults() -> None:
    (rotation,) = inspect(LLAMA).rotations
    assert rotation.value == "Rope(head_dim=8, base=10000.0, rotary_dim=8)"
    assert as_written((1, 2)) == "(1, 2)"
