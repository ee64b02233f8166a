from __future__ import annotations

import ast

import pytest

from nopad import syntax


def test_a_clash_with_another_threads_parser_is_tried_again(monkeypatch):
    """SystemError as Python 3.11 raises it; thrice in a row, where once in thousands of files was seen."""
    real, calls = ast.parse, []

    def clashing(source):
        calls.append(source)
        if len(calls) <= 3:
            raise SystemError("AST constructor recursion depth mismatch (before=168, after=58)")
        return real(source)

    monkeypatch.setattr(ast, "parse", clashing)
    assert ast.dump(syntax.parse("x = [1]")) == ast.dump(real("x = [1]"))
    assert calls == ["x = [1]"] * 4


@pytest.mark.parametrize(("error", "times"), [(SystemError, syntax.ATTEMPTS), (SyntaxError, 1), (RecursionError, 1)])
def test_errors_that_stay_are_passed_on(monkeypatch, error, times):
    calls = []

    def failing(source):
        calls.append(source)
        raise error("of the source")

    monkeypatch.setattr(ast, "parse", failing)
    with pytest.raises(error, match="of the source"):
        syntax.parse("x")
    assert len(calls) == times
