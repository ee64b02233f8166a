"""Parse source code of Python, also while other threads do."""

from __future__ import annotations

import ast

__all__ = ["parse"]

ATTEMPTS = 20  # two threads that parsed without a pause and switched often clashed once in thousands of files


def parse(source: str) -> ast.Module:
    """Return the syntax tree of a module's source text: what `ast.parse` returns.

    Python 3.11 counts in one variable how deep the parsers of all threads are. If a thread parses while another does,
    `ast.parse` can therefore raise SystemError, though the source is right. It is then called again, up to 20 times in
    all; a SystemError of the last call is passed on. Other errors of `ast.parse` are passed on at once (SyntaxError,
    ValueError, RecursionError).

    >>> import ast
    >>> from nopad.syntax import parse
    >>> ast.unparse(parse("x=1"))
    'x = 1'
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return ast.parse(source)
        except SystemError:
            continue
    return ast.parse(source)
