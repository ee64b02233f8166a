"""Several named sources as one source: they are read one after the other, and counted separately."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from nopad.corpus.source import Block, Source, located
from nopad.errors import SourceError

__all__ = ["NAME", "MixtureSource"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class MixtureSource(Source):
    """Named sources, in the order of the mapping.

    All sources must hold text, or all ready-made ids, with the same mask; and all must have the same carried columns.
    `open_source` checks this.
    The names of blocks and files begin with the name of their source, so the fingerprint depends on the names of
    sources.

    Raises:
        SourceError: a name is not a string, is empty, has characters other than ASCII letters, digits, ``_``, ``-`` and
            ``.``, or begins with ``-`` or ``.``.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        for name in sources:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise SourceError(f"{name!r} cannot name a source; choose letters, digits, _, - and .")
        self._sources = dict(sources)
        self.names = tuple(sources)
        self.kind = next((source.kind for source in sources.values() if source.kind), None)
        sizes = [source.total_bytes for source in sources.values()]
        self.total_bytes = None if None in sizes else sum(size for size in sizes if size is not None)
        self.ignored = tuple(f"{name}={file}" for name, source in sources.items() for file in source.ignored)
        self.folders = tuple(folder for source in sources.values() for folder in source.folders)
        self.carried = next((source.carried for source in sources.values() if source.kind), ())
        self.mask = next((source.mask for source in sources.values() if source.kind), None)
        self.divisible = all(source.divisible for source in sources.values())
        self.made_here = all(source.made_here for source in sources.values())
        self.text_unit = next((source.text_unit for source in sources.values() if source.text_unit), None)
        self.left_out = tuple(dict.fromkeys(column for source in sources.values() for column in source.left_out))

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of each source in turn."""
        return self.blocks_from((0,))

    def blocks_from(self, at: tuple[int, ...]) -> Iterator[Block]:
        """Yield the blocks from source number ``at[0]`` (from 0) on.

        ``at[1:]`` says at which block of that source to begin, as in `Source.blocks_from`; (): at its first block.
        """
        for block in located(tuple(self._sources.values()), at):
            name = self.names[block.at[0]]
            yield replace(block, name=f"{name}={block.name}", source=name, path=block.path or block.name)

    def inventory(self) -> list[tuple[str, int]]:
        """Return (name, bytes) of each file, in reading order; a name is ``source=file``."""
        return [(f"{name}={file}", size) for name, source in self._sources.items() for file, size in source.inventory()]

    def settings(self) -> dict[str, Any]:
        """Return how the bytes are read, by name: the settings of all sources in one dict.

        If sources differ in a setting, the last one's value is returned; `open_source` makes sources that agree.
        """
        return {name: value for source in self._sources.values() for name, value in source.settings().items()}
