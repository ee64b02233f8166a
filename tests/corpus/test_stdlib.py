from __future__ import annotations

import ast
import io
import sys
import sysconfig
import tokenize
from pathlib import Path

import pytest

from nopad.corpus import stdlib_texts
from nopad.corpus.stdlib import _comment_tokens

SOURCE = '''#!/usr/bin/env python
#  two spaces
"""The module's
   docstring."""

x = 1  # behind code
y = "# no comment"  # "quoted"
z = """
# nor this"""; w = 'it\\'s # not'

# own
    # line

#
def f():  # doc
    """Of f."""
    # a
    # b
    x = 2  # c
    # d
    if x:
        class C:
            r"""Of \\d C."""
        async def g(): "Of g."
    return lambda: 1
'''

EXPECTED = [
    (1, "!/usr/bin/env python\n two spaces"),
    (3, "The module's\ndocstring."),
    (6, "behind code"),
    (7, '"quoted"'),
    (11, "own\nline"),
    (15, "doc"),
    (16, "Of f."),
    (17, "a\nb"),
    (19, "c"),
    (20, "d"),
    (23, "Of \\d C."),
    (24, "Of g."),
]


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_docstrings_and_comments_in_order_of_lines(tmp_path):
    write(tmp_path, {"m.py": SOURCE})
    found = list(stdlib_texts(tmp_path))
    assert [(text["line"], text["text"]) for text in found] == EXPECTED
    assert {text["file"] for text in found} == {"m.py"}


def test_functions_are_found_in_every_kind_of_block(tmp_path):
    blocks = [
        "if x:\n {}\nelif y:\n {}\nelse:\n {}",
        "try:\n {}\nexcept E:\n {}\nelse:\n {}\nfinally:\n {}",
        "try:\n {}\nexcept* E:\n {}",
        "for x in y:\n {}\nelse:\n {}",
        "while x:\n {}\nelse:\n {}",
        "with x:\n {}",
        "match x:\n case 1:\n  {}\n case _:\n  {}",
        "async def f():\n async for x in y:\n  {}\n async with x:\n  {}",
        "class C:\n {}",
    ]
    source = "\n".join(blocks)
    count = source.count("{}")
    write(tmp_path, {"m.py": source.format(*(f"def f(): 'doc {i}'" for i in range(count)))})
    assert [text["text"] for text in stdlib_texts(tmp_path)] == [f"doc {i}" for i in range(count)]


def test_files_are_sorted_and_test_folders_left_out(tmp_path):
    names = ["b.py", "a/z.py", "a.py", "test/x.py", "a/tests/x.py", "site-packages/x.py", "idle_test/x.py", "c.txt"]
    write(tmp_path, dict.fromkeys(names, "# hi\n"))
    assert [text["file"] for text in stdlib_texts(tmp_path)] == ["a.py", "a/z.py", "b.py"]


def test_files_that_do_not_parse_are_counted(tmp_path):
    write(tmp_path, {"bad.py": "def (\n", "good.py": "# hi\n", "nul.py": "\0"})
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    skipped: list[str] = []
    assert [text["file"] for text in stdlib_texts(tmp_path, skipped=skipped)] == ["good.py"]
    assert skipped == ["bad.py", "latin.py", "nul.py"]


def test_declared_encodings_are_read(tmp_path):
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = 1  # caf\xe9\n")
    assert [text["text"] for text in stdlib_texts(tmp_path)] == ["-*- coding: latin-1 -*-", "café"]


def test_invalid_escapes_do_not_warn(tmp_path):
    write(tmp_path, {"m.py": "x = '\\d'  # hi\n"})
    assert len(list(stdlib_texts(tmp_path))) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="f-strings nest their own quotes from Python 3.12 on")
def test_nested_quotes(tmp_path):
    write(tmp_path, {"m.py": 'x = f"{d["#"]}"  # hi\ny = rf"{d["a # b"]}"  # ho\n'})
    assert [text["text"] for text in stdlib_texts(tmp_path)] == ["hi", "ho"]


def by_tokenize(source: str) -> list[tuple[int, int, str, bool]]:
    return [
        (*token.start, token.string, not token.line[: token.start[1]].strip())
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]


@pytest.mark.slow
def test_the_standard_library_as_ast_and_tokenize_see_it():
    """The real input: every comment where `tokenize` finds it, every docstring that `ast.walk` finds."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped: list[str] = []
    found = list(stdlib_texts(skipped=skipped))
    assert len(found) > 40_000
    assert skipped == []
    assert [(t["file"], t["line"]) for t in found] == sorted((t["file"], t["line"]) for t in found)
    files = sorted({text["file"] for text in found})
    lines = {(text["file"], text["line"], text["text"]) for text in found}
    for name in files[::10]:
        with tokenize.open(root / name) as file:
            source = file.read()
        assert list(_comment_tokens(source)) == by_tokenize(source)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                assert not text or (name, node.body[0].lineno, text) in lines
