"""Config files on disk: which file a path means, and the JSON object in it, read strictly."""

import json
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from posenc.interop.errors import ConfigError
from posenc.interop.keys import shown

__all__ = ["CONFIGS", "OTHER_WEIGHTS", "HasDict", "config_path", "parse_object", "read_object"]

CONFIGS = ("config.json", "params.json")
# Weights in forms that nothing here reads: pickles run code, the others have layouts of their own.
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".h5", ".msgpack", ".onnx")
MAX_BYTES = 100_000_000  # a longer file is no config: say so before it fills the memory
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@runtime_checkable
class HasDict(Protocol):
    """A config as an object, `model.config` of transformers for one."""

    def to_dict(self) -> dict[str, Any]:
        """The config as plain values."""
        ...


def config_path(path: Path) -> Path:
    """The config of a model's folder, or the file itself.

    >>> config_path(Path("llama")).name
    'config.json'
    """
    if path.is_dir():
        for name in CONFIGS:
            if (path / name).is_file():
                return path / name
        inside = ", ".join(sorted(found.name for found in path.glob("*.gguf")))
        hint = f": give a file in it, {inside}" if inside else ""
        raise ConfigError(f"{path} holds none of {', '.join(CONFIGS)}{hint}")
    if path.suffix in (".safetensors", *OTHER_WEIGHTS) and path.suffix != ".gguf":
        raise ConfigError(f"{path} holds weights: expected their folder or {' or '.join(CONFIGS)}")
    return path


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file. Raises ConfigError: the file, and why it holds none."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"no such file: {path}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is no config: it is longer than {MAX_BYTES} bytes")
    return parse_object(data, str(path))


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in some bytes; `where` begins the message of a ConfigError.

    >>> parse_object(b'{"rope_theta": 1e4}', "config.json")
    {'rope_theta': 10000.0}

    Refused besides what is no JSON: a byte order mark, which other readers stumble over, and a key
    that is there twice with two values, of which readers take either one.
    """
    if data.startswith(BYTE_ORDER_MARK):
        raise ConfigError(f"{where} begins with a byte order mark: expected UTF-8 without one")
    if not data.strip():
        raise ConfigError(f"{where} is empty: expected a JSON object")
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        reason = f"{error.reason} at byte {error.start}"
        raise ConfigError(f"{where} is not JSON: it is not UTF-8 text, {reason}") from error
    except RecursionError as error:
        raise ConfigError(f"{where} is not JSON of a config: it is nested too deep") from error
    except ConfigError as error:
        raise ConfigError(f"{where} {error}") from error
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{where} holds no JSON object: got {shown(content)}")
    return content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content and content[key] != value:
            raise ConfigError(f"says {key!r} twice: {shown(content[key])} and {shown(value)}")
        content[key] = value
    return content
