"""Show the examples of docstrings as code: griffe takes only those of an `Examples:` section for code by itself."""

from __future__ import annotations

import re
from typing import Any

import griffe

# From the first prompt of an example to the next empty line
_EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    """Put a fence around each example, joining those that only an empty line divides."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of anything that has one."""
        if obj.docstring and ">>> " in obj.docstring.value:
            fenced = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = fenced.replace("```\n\n```pycon\n", "\n")
