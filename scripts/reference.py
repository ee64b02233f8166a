"""Write the generated pages of the documentation: the API reference and that of the command line.

    python scripts/reference.py           # write what has changed; `make docs` does this first
    python scripts/reference.py --check   # only say which pages are not current; exit code 1 if there are any

The API pages list every public name of each package, with its first sentence, and leave the rest to mkdocstrings. The
page of the command line is made from the commands themselves.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from nopad.cli.app import app

DOCS = Path(__file__).resolve().parent.parent / "docs"
MARK = "<!-- written by scripts/reference.py: `make docs` writes it anew -->\n\n"

# Each package with a page, in the order of the navigation, and what one finds there.
PACKAGES = {
    "nopad": "Everything that most programs need: plan and pack lengths, pack a corpus, load batches, make a model "
    "pack-safe, audit it. Other pages have the packages behind these names.",
    "nopad.tasks": "What a record means: how it becomes sequences, what is learned from it, how that is measured, "
    "and what a prediction looks like.",
    "nopad.training": "transformers' and TRL's trainers on packs, hyper-parameters for packs, LAMB.",
    "nopad.loading": "Batches for every rank: the loader, mixtures of sources, ranks.",
    "nopad.losses": "Means with one denominator over a whole step, losses of pairs, metrics that add up over batches.",
    "nopad.model": "transformers models on packs.",
    "nopad.auditing": "Packed against alone: outputs, gradients, a whole training step.",
    "nopad.admitting": "Models that no table knows: proven on a small copy, admitted or refused.",
    "nopad.corpus": "Text, tables, datasets and arrays as sources of token sequences.",
    "nopad.store": "Packed datasets on disk: write, read, verify.",
    "nopad.planning": "Plans, their lower bounds and certificates.",
    "nopad.balance": "Which rank gets what: costs, drawing an epoch, dealing a step.",
    "nopad.serving": "Live requests packed: the packer behind `nopad.PackRunner`, without threads or a clock.",
}
# Classes of which a part is in a base class that has no page: the page shows its members too.
WITH_BASE = ("PackedBatch",)
TYPES = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}


def public(package: str) -> dict[str, Any]:
    """The public names of a package with what they stand for."""
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__}


def docstring(package: str, name: str, thing: Any) -> str:
    """The docstring of a public name; of a constant, the text that follows its definition."""
    if inspect.isclass(thing) or inspect.isroutine(thing):
        return inspect.getdoc(thing) or ""
    home, _, _ = where(package, name, thing).rpartition(".")
    body = ast.parse(Path(inspect.getfile(importlib.import_module(home))).read_text()).body
    for one, after in itertools.pairwise(body):
        named = getattr(one, "target", None) or getattr(one, "targets", [None])[0]
        if getattr(named, "id", None) == name and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return inspect.cleandoc(str(after.value.value))
    return ""


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    line = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.]) (?=[A-Z`])|(?<=[:]) (?=`` |>>>)", line)[0].replace("|", "\\|")


def where(package: str, name: str, thing: Any) -> str:
    """The path under which mkdocstrings finds a name: that of its definition."""
    home = getattr(thing, "__module__", None)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        return f"{home}.{thing.__qualname__}"
    for found in list(sys.modules.values()):  # a constant knows no module of its own
        inside = getattr(found, "__name__", "")
        named = inside.startswith("nopad.") and vars(found).get(name) is thing
        if named and re.search(rf"^{name}\b.*=", Path(inspect.getfile(found)).read_text(), re.MULTILINE):
            return f"{inside}.{name}"
    return f"{package}.{name}"


def page_of(package: str) -> str:
    """The file of a package's page."""
    return "reference/api/" + (package.removeprefix("nopad.") + ".md" if package != "nopad" else "nopad.md")


def api_page(package: str) -> str:
    """One page: a table of the names, then each of them. Names of `nopad` itself are described on its page."""
    top, names = public("nopad"), public(package)
    rows, blocks = [], []
    for name, thing in names.items():
        shared = package != "nopad" and top.get(name) is thing
        target = f"nopad.md#nopad.{name}" if shared else f"#{package}.{name}"
        rows.append(f"| [`{name}`]({target}) | {first_sentence(docstring(package, name, thing))} |")
        if not shared:
            options = f"      heading: {package}.{name}\n      toc_label: {name}\n"
            options += "      inherited_members: true\n" if name in WITH_BASE else ""
            anchor = f'<span id="{package}.{name}"></span>\n\n'  # mkdocstrings' own is where the name is defined
            blocks.append(f"{anchor}::: {where(package, name, thing)}\n    options:\n{options}")
    table = "| name | |\n|---|---|\n" + "\n".join(rows)
    return f"# {package}\n\n{MARK}{PACKAGES[package]}\n\n{table}\n\n" + "\n".join(blocks)


def kind_of(option: Any) -> str:
    """What an option takes, as its help shows it; nothing for a flag."""
    annotation = option.type_descriptor.annotation
    inner = next(one for one in getattr(annotation, "__args__", None) or (annotation,) if one is not type(None))
    if option.metavar or inner is bool:
        return option.metavar or ""
    if inspect.isclass(inner) and issubclass(inner, enum.Enum):
        return "\\|".join(f"`{one.value}`" for one in inner)
    if isinstance(inner, str):  # a Literal
        return "\\|".join(f"`{one}`" for one in annotation.__args__)
    return TYPES.get(inner, "VALUE")


def plain(text: str | None) -> str:
    """Help text in one line, without rich's marks, safe in a table."""
    bare = re.sub(r"\[/?(?:bold|dim|italic|cyan|green|yellow|red)[^\]]*\]", "", text or "").replace("\\[", "[")
    return re.sub(r"(?<!\S)(--[\w-]+)", r"`\1`", " ".join(bare.split())).replace("|", "\\|").replace("<", "&lt;")


def option_row(option: Any) -> str:
    """One row of the table of options."""
    names = ", ".join(f"`{one}`" for one in (*option.opts, *option.secondary_opts))
    taken = kind_of(option)
    notes = [plain(option.help)]
    shown = option.default.value if isinstance(option.default, enum.Enum) else option.default
    if option.required:
        notes.append("Required.")
    elif option.show_default and shown is not None and shown is not False and shown not in ((), [], ""):
        notes.append("On by default." if shown is True else f"Default: `{shown}`.")
    return f"| {names} | {taken} | {' '.join(note for note in notes if note)} |"


def described(help_text: str) -> str:
    """The help of a command, its examples as code."""
    text, _, examples = inspect.cleandoc(help_text).replace("\b", "").partition("Examples:")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    code = "\n\n```bash\n" + "\n".join(lines) + "\n```" if lines else ""
    return re.sub(r"\n{3,}", "\n\n", text.replace("<", "&lt;")).strip() + code


def commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command below a group, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def cli_page() -> str:
    """The page of the command line: each command with its arguments and options."""
    parts = [
        f"# Every command and option\n\n{MARK}What `--help` prints, on one page. "
        "[Command line](../cli.md) says when to use what."
    ]
    for path, command in commands(typer.main.get_command(app), "nopad"):
        given = [one for one in command.params if not one.opts[0].startswith("-")]
        options = [one for one in command.params if one.opts[0].startswith("-") and not one.hidden]
        usage = " ".join(
            [path, *("[OPTIONS]" for _ in options[:1]), *((one.metavar or one.name.upper()) for one in given)]
        )
        rows = [f"| `{one.metavar or one.name.upper()}` | {plain(one.help)} |" for one in given]
        parts.append(f"## `{path}`\n\n```text\n{usage}\n```\n\n{described(command.help or '')}")
        if rows:
            parts.append("| argument | |\n|---|---|\n" + "\n".join(rows))
        if options:
            parts.append("| option | takes | |\n|---|---|---|\n" + "\n".join(option_row(one) for one in options))
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Every generated page: its file below `docs`, and its text."""
    made = {page_of(package): api_page(package) for package in PACKAGES}
    return {**made, "reference/cli-reference.md": cli_page()}


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` only compare; return the exit code."""
    stale = {}
    for name, text in pages().items():
        path = DOCS / name
        if not path.exists() or path.read_text() != text:
            stale[path] = text
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is not current: run `make docs`")
        return int(bool(stale))
    for path, text in stale.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
