"""Texts for demos: docstrings and comments of Python's standard library, which every installation has.

There are about 48,000 texts in 12 MB of source, read in about 3 s on one core; two thirds of the time is parsing. A
regular expression finds comments. Where f-strings may nest their own quotes (from Python 3.12 on), a regular expression
would not be exact, so `tokenize` is used for files with f-strings.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from nopad.syntax import parse

SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})

# strings are matched too, so that a '#' inside a string is not taken for a comment
_COMMENT = re.compile(
    r'''(\#[^\n]*)
    | """[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""
    | \'\'\'[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*\'\'\'
    | "[^"\\\n]*(?:\\.[^"\\\n]*)*"
    | '[^'\\\n]*(?:\\.[^'\\\n]*)*\'''',
    re.DOTALL | re.VERBOSE,
)
_NESTABLE = re.compile(r"""\b(?:[ft]r?|r[ft])["']""", re.IGNORECASE)


class StdlibText(TypedDict):
    """One docstring or comment.

    Attributes:
        file: path of its file, relative to the folder that is read, with "/".
        line: 1-based number of the line on which it starts.
        text: the text.
    """

    file: str
    line: int
    text: str


def stdlib_texts(folder: Path | None = None, *, skipped: list[str] | None = None) -> Iterator[StdlibText]:
    """Yield the docstrings and comments of Python files as texts, ordered by file and line.

    Docstrings are cleaned as by `ast.get_docstring`. Comments lose their "#" and one space after it. Comments that are
    alone on adjacent lines make one text; a comment after code is a text by itself. Blank texts are left out. `folder`
    is the folder of Python files to read; None: the standard library. Folders in it that are named in
    `SKIPPED_FOLDERS`, such as ``tests``, are not read. Files that cannot be read or parsed are left out, and their
    names are appended to `skipped`, if it is given.

    >>> import pathlib, tempfile
    >>> from nopad.corpus import stdlib_texts
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "one.py").write_text("'A module.'")
    >>> [(found["file"], found["text"]) for found in stdlib_texts(folder)]
    [('one.py', 'A module.')]
    """
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    for name in sorted(_python_files(root), key=lambda name: name.encode("utf-8", "surrogateescape")):
        try:
            texts = _texts(root / name)
        except (SyntaxError, ValueError, RecursionError, OSError):
            if skipped is not None:
                skipped.append(name)
            continue
        for line, text in texts:
            yield {"file": name, "line": line, "text": text}


def _python_files(root: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        for name in files:
            if name.endswith(".py"):
                yield (Path(parent) / name).relative_to(root).as_posix()


def _texts(path: Path) -> list[tuple[int, str]]:
    """Return the docstrings and comments of one file that are not blank, as a list of (line, text), in order.

    Errors of reading the file and of `nopad.syntax.parse` are passed on.
    """
    with tokenize.open(path) as file:
        source = file.read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about invalid escapes in the library's strings
        tree = parse(source)
    found = [*_docstrings(tree), *_comments(source)]
    return [(line, text) for line, _, text in sorted(found) if text.strip()]


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Yield (line, column, text) of each docstring.

    Only statements are visited, a tenth of the nodes that `ast.walk` visits.
    """
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, node.body[0].col_offset, text
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, name, None)
            if isinstance(children, list):  # the body of a lambda is one expression
                stack += children


def _comments(source: str) -> Iterator[tuple[int, int, str]]:
    """Yield (line, column, text) for the comments of a source text.

    A comment after code is yielded by itself. Comments that are alone on adjacent lines are yielded as one text, with
    the line and column of the first.
    """
    run: list[str] = []
    first = (0, 0)
    last_line = -1
    for line, column, comment, own in _comment_tokens(source):
        text = comment[1:].removeprefix(" ")
        if own and line == last_line + 1:
            run.append(text)
        else:
            if run:
                yield *first, "\n".join(run)
            run, first = [text], (line, column)
        last_line = line if own else -1
    if run:
        yield *first, "\n".join(run)


def _comment_tokens(source: str) -> Iterator[tuple[int, int, str, bool]]:
    """Yield (line, column, comment with its '#', whether it is alone on its line) for each comment."""
    if sys.version_info >= (3, 12) and _NESTABLE.search(source):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield *token.start, token.string, not token.line[: token.start[1]].strip()
        return
    line, at = 1, 0
    for match in _COMMENT.finditer(source):
        if match.lastindex:
            line += source.count("\n", at, match.start())
            at = match.start()
            before = source[source.rfind("\n", 0, at) + 1 : at]
            yield line, len(before), match[1], not before.strip()
