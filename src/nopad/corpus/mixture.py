"""Several sources as one source: they are read one after the other.

In a mixture, each source has a name, and the records of each source are counted separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nopad.corpus.source import Block, Source, located
from nopad.errors import SourceError

__all__ = ["NAME", "JoinedSource", "MixtureSource"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class JoinedSource(Source):
    """Base class of sources that read other sources one after the other.

    Its attributes are those of a `Source`, for all sources together: `total_bytes` is a sum, for example. Subclasses
    set `ignored` and `folders`. The sources must all hold text, or all ready-made ids with the same column to mark
    padding (`mask`). They must also have the same `carried` columns.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._parts = tuple(sources)
        known = [part for part in self._parts if part.kind]  # a file without records may have none
        if known:
            shown = next((part for part in known if part.columns_known), known[0])
            self.kind, self.carried, self.mask = shown.kind, shown.carried, shown.mask
            self.columns_known = shown.columns_known
        sizes = [part.total_bytes for part in self._parts]
        self.total_bytes = None if None in sizes else sum(size for size in sizes if size is not None)
        self.left_out = tuple(dict.fromkeys(column for part in self._parts for column in part.left_out))
        self.divisible = all(part.divisible for part in self._parts)
        self.made_here = all(part.made_here for part in self._parts)
        self.text_unit = next((part.text_unit for part in self._parts if part.text_unit), None)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of each source in turn."""
        return self.blocks_from((0,))

    def blocks_from(self, at: tuple[int, ...]) -> Iterator[Block]:
        """Yield the blocks from a given place on.

        ``at[0]`` is the number of the source with which to begin, from 0. ``at[1:]`` says at which block of this source
        to begin, as the argument of its `blocks_from`; if it is (), at the first one.
        """
        return located(self._parts, at)


class MixtureSource(JoinedSource):
    """A mixture: several sources, each with a name, which are read in the order of the given dict.

    The sources must all hold text, or all ready-made ids with the same column to mark padding. They must also have the
    same columns to pack along. `open_source` checks this. The names of blocks and files begin with the name of their
    source, so the fingerprint depends on the names of sources.

    Raises:
        SourceError: a name is not a string, is empty, has characters other than ASCII letters, digits, ``_``, ``-`` and
            ``.``, or begins with ``-`` or ``.``.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        for name in sources:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise SourceError(f"{name!r} cannot name a source; choose letters, digits, _, - and .")
        super().__init__(tuple(sources.values()))
        self._sources = dict(sources)
        self.names = tuple(sources)
        self.ignored = tuple(f"{name}={file}" for name, source in sources.items() for file in source.ignored)
        self.folders = tuple(folder for source in sources.values() for folder in source.folders)

    def blocks_from(self, at: tuple[int, ...]) -> Iterator[Block]:
        """Yield the blocks from a given place on, as `JoinedSource.blocks_from` does; each block names its source.

        ``at[0]`` is the number of the source with which to begin, from 0. ``at[1:]`` says at which block of this source
        to begin, as the argument of its `blocks_from`; if it is (), at the first one.
        """
        for block in super().blocks_from(at):
            name = self.names[block.at[0]]
            yield replace(block, name=f"{name}={block.name}", source=name, path=block.path or block.name)

    def inventory(self) -> list[tuple[str, int]]:
        """Return (name, bytes) of each file, in reading order; a name is ``source=file``."""
        return [(f"{name}={file}", size) for name, source in self._sources.items() for file, size in source.inventory()]

    def settings(self) -> dict[str, Any]:
        """Return the settings of all sources by name, in one dict.

        If sources differ in a setting, the last one's value is returned; `open_source` makes sources that agree.
        """
        return {name: value for source in self._sources.values() for name, value in source.settings().items()}
