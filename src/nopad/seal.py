"""Add a checksum to JSON documents, so that damage is noticed.

The field ``sha256`` of such a sealed document is the SHA-256 of all its other fields as canonical JSON: keys sorted, no
spaces, ASCII. For example, the manifest of a dataset is sealed, and so are the description of a running job, each line
of its journals, and the stored proofs that models keep sequences apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nopad.notation import from_json

__all__ = ["SEAL", "sealed", "sealed_line", "sealed_lines", "unsealed"]

SEAL = "sha256"


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a document with the field ``sha256`` added: the checksum of all its other fields, in hex.

    A field ``sha256`` that is there already is replaced. So a sealed document that was changed can be sealed again.

    >>> unsealed(sealed({"a": 1}))
    {'a': 1}
    """
    return {**document, SEAL: _digest(_content(document))}


def unsealed(document: Any) -> dict[str, Any]:
    """Return a sealed document without its checksum.

    Raises:
        ValueError: the document is not a dict, or its content does not have the checksum that it states.
    """
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    content = _content(document)
    if document.get(SEAL) != _digest(content):
        raise ValueError(f"its content does not have the checksum {document.get(SEAL)!r} that it states")
    return content


def sealed_line(document: Mapping[str, Any]) -> bytes:
    """Return a document, sealed, as one line of a journal: JSON that ends in a newline."""
    return json.dumps(sealed(document)).encode() + b"\n"


def sealed_lines(path: Path) -> Iterator[tuple[dict[str, Any] | None, int]]:
    """Yield ``(document, end)`` for each line of a journal; ``end`` is where the line ends in the file, in bytes.

    The documents are without their checksums. The document of a damaged line is None. A file that does not exist has no
    lines.

    Raises:
        OSError: the file cannot be read.
    """
    end = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        end += len(line)
        try:
            yield (unsealed(from_json(line)) if line.endswith(b"\n") else None), end
        except ValueError:
            yield None, end


def _content(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields but the checksum."""
    return {name: value for name, value in document.items() if name != SEAL}


def _digest(document: Mapping[str, Any]) -> str:
    plain = from_json(json.dumps(document))  # the form in which it is read back: tuples become lists, keys strings
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
