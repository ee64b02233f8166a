"""Sizes of the source: lines per file and per function, docstrings not counted, beside the budgets of docs/internals/design.md.

python benchmarks/sizes.py [FOLDER]     default: src/nopad
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def docstring_lines(node: ast.AST) -> int:
    """Lines of a node's own docstring."""
    body = getattr(node, "body", [])
    first = body[0] if body else None
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1 if isinstance(first.value.value, str) else 0


def measure(path: Path) -> tuple[int, list[tuple[int, str]]]:
    """Lines of a file and of each of its functions."""
    text = path.read_text()
    tree = ast.parse(text)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | FUNCTION)]
    lines = len(text.splitlines()) - sum(map(docstring_lines, nodes))
    functions = [
        (
            (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node),
            f"{path}:{node.lineno} {node.name}",
        )
        for node in nodes
        if isinstance(node, FUNCTION)
    ]
    return lines, functions


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "src/nopad")
    found = {path: measure(path) for path in sorted(folder.rglob("*.py"))}
    files = sorted(((lines, str(path)) for path, (lines, _) in found.items()), reverse=True)
    functions = sorted((one for _, inside in found.values() for one in inside), reverse=True)
    for what, sizes, limits in (("files", files, (150, 90, 350, 600)), ("functions", functions, (10, 95, 45, 100))):
        numbers = np.array([size for size, _ in sizes])
        median, share, high, most = limits
        print(
            f"{len(numbers):5,} {what:9}  median {np.median(numbers):4.0f} (budget {median})  "
            f"p{share} {np.percentile(numbers, share):4.0f} ({high})  largest {numbers.max():4} ({most})"
        )
        for size, name in sizes[:5]:
            print(f"        {size:4}  {name}")


if __name__ == "__main__":
    main()
