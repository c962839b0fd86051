"""Files that Dynamo's frontend needs of a model: configuration, tokenizer and chat template."""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

#: Files that the frontend reads, if the model has them. It fails without the first two.
NAMES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)

# Constants of FORMAT.md.
_MAGIC = b"\x89NEST\r\n\x1a"
_HEADER_BYTES = 128
_INDEX_BYTES_MAX = 268435456
_ASSET_BYTES_MAX = 67108864
_HEAD = struct.Struct("<12I")
_GROUP = struct.Struct("<B3xIIIIIff")
_EXTENT = struct.Struct("<IIQQ16xfI")


class ModelFilesError(Exception):
    """A model without the files that the frontend needs."""


def frontend_folder(model: Path, cache: Path) -> Path:
    """Returns a folder with the files that the frontend needs.

    The folder of a checkpoint is returned as it is. The files of a `.nest` store are copied below `cache`, into a folder
    named by their hash: all workers of one model share it. Raises ModelFilesError for models that contain no such files,
    and OSError.
    """
    if str(model).startswith("hf:"):
        raise ModelFilesError(f"{model}: name the folder of its tokenizer with --tokenizer")
    if model.is_dir():
        _require(model, {name for name in NAMES if (model / name).is_file()})
        return model
    files = dict(_store_files(model))
    _require(model, set(files))
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    folder = cache / digest.hexdigest()[:32]
    if not folder.is_dir():
        _write(folder, files)
    return folder


def _require(model: Path, found: set[str]) -> None:
    for name in ("config.json", "tokenizer.json"):
        if name not in found:
            raise ModelFilesError(f"{model}: no {name} for the frontend; name a folder that has it with --tokenizer")


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Writes a folder of files; other processes see all of them or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as draft:
        for name, content in files.items():
            (Path(draft) / name).write_bytes(content)
        try:
            os.rename(draft, folder)
        except OSError:
            # Another worker of the same model was faster.
            if not folder.is_dir():
                raise


def _store_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields names and contents of a store's assets that are in NAMES.

    Hashes are not checked: the engine checks those of the same bytes when it opens the store.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES or header[:8] != _MAGIC:
            raise ModelFilesError(f"{path}: not a .nest store; name the folder of its tokenizer with --tokenizer")
        start, length = struct.unpack_from("<QQ", header, 48)
        if not 0 < length <= _INDEX_BYTES_MAX:
            raise ModelFilesError(f"{path}: not the first file of a store")
        try:
            extents = list(_assets(_read(file, start, length)))
        except (struct.error, UnicodeDecodeError) as error:
            raise ModelFilesError(f"{path}: damaged index: {error}") from error
        for name, offset, size in extents:
            if name in NAMES:
                if size > _ASSET_BYTES_MAX:
                    raise ModelFilesError(f"{path}: {name} is longer than {_ASSET_BYTES_MAX} bytes")
                yield name, _read(file, offset, size)


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    if offset + length > size:
        raise ModelFilesError(f"{file.name}: ends after {size} bytes, within an index or asset")
    file.seek(offset)
    return file.read(length)


def _assets(index: bytes) -> Iterator[tuple[str, int, int]]:
    """Yields name, offset and length in bytes of each asset in an index."""
    counts = _HEAD.unpack_from(index)
    _, names_bytes, shards, sections, codecs, parameters, groups, matrices, tensors, extents, measures, _ = counts
    groups_at = _HEAD.size + shards * 8 + sections * 16 + codecs * 8
    extents_at = groups_at + groups * _GROUP.size + matrices * 24 + tensors * 16
    names_at = extents_at + extents * _EXTENT.size + measures * 20 + parameters
    sections_at = groups_at - codecs * 8 - sections * 16
    at = names_at + sum(struct.unpack_from("<I", index, sections_at + 16 * i)[0] for i in range(sections))
    named: dict[int, str] = {}
    for group in range(groups):
        kind, _, _, name_bytes, *_ = _GROUP.unpack_from(index, groups_at + group * _GROUP.size)
        if kind == 0:
            named[group] = index[at : at + name_bytes].decode("ascii")
            at += name_bytes
    if at > names_at + names_bytes:
        raise ModelFilesError("damaged index: names are longer than their table")
    for extent in range(extents):
        group, _, offset, length, _, _ = _EXTENT.unpack_from(index, extents_at + extent * _EXTENT.size)
        if group in named:
            yield named[group], offset, length
