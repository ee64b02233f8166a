"""The documentation: generated pages are current, links lead somewhere, every public name has an example."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WITH_LINKS = [*PAGES, ROOT / "README.md", *sorted((ROOT / "benchmarks").glob("*.md"))]
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def load_script():
    """The script that writes the generated pages."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = made
    spec.loader.exec_module(made)
    return made


reference = load_script()
NAMES = [(package, name) for package in reference.PACKAGES for name in reference.public(package)]
CONSTANTS = [(p, n) for p, n in NAMES if not (inspect.isclass(t := reference.public(p)[n]) or inspect.isroutine(t))]


def entries(nav):
    """The files that a navigation names."""
    for entry in nav:
        for inner in entry.values() if isinstance(entry, dict) else [entry]:
            yield from [inner] if isinstance(inner, str) else entries(inner)


def prose(path):
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "`", re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE))


def anchors(path):
    """What a link into this page may name: its headings as slugs, and ids."""
    bare = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = set(re.findall(r'id="([^"]+)"', bare))
    for heading in re.findall(r"^#+ (.+)$", bare, re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())
        found.add(slug)
    return found


def test_generated_pages_are_current():
    stale = [name for name, text in reference.pages().items() if (DOCS / name).read_text() != text]
    assert stale == [], "run `make docs`, or python scripts/reference.py"


def test_every_page_is_in_the_navigation_once():
    text = (ROOT / "mkdocs.yml").read_text()
    named = list(entries(yaml.safe_load(text)["nav"]))
    assert sorted(named) == [str(page.relative_to(DOCS)) for page in PAGES]


@pytest.mark.parametrize("page", WITH_LINKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_a_page_and_a_heading(page):
    broken = []
    for target in (one or other for one, other in LINK.findall(prose(page))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_nothing_is_fetched_from_elsewhere():
    config = (ROOT / "mkdocs.yml").read_text()
    assert yaml.safe_load(config)["theme"]["font"] is False
    assert "http" not in config
    embedded = [url for page in PAGES for url in re.findall(r"!\[[^\]]*\]\((\S+?)\)", prose(page)) if ":" in url]
    assert embedded == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_examples_with_prompts_are_marked_as_such(page):
    """The copy button gives the code of a `pycon` block without prompts and output; of another, all that is there."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert [(kind, code[:60]) for kind, code in blocks if (">>> " in code) is not (kind == "pycon")] == []


def test_the_page_about_installing_names_what_the_project_has():
    page = (DOCS / "install.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for extra, wanted in project["project"]["optional-dependencies"].items():
        rows = [line for line in page.splitlines() if line.startswith("|")]
        named = [line for line in rows if f".[{extra}]'" in line or f"the extra `{extra}`" in line]
        assert len(named) == 1, extra
        for one in wanted:
            name, of_nopad = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", one).groups()
            parts = [f"`{part}`" for part in of_nopad.split(",")] if of_nopad else [name.removesuffix("-python")]
            assert all(part in named[0] for part in parts), (extra, one)
    tested = {re.match(r"[\w-]+", one)[0]: one for one in project["dependency-groups"]["test"]}
    assert all(f"pip install '{tested[name]}'" in page for name in ("trl", "lightning", "peft"))
    assert project["project"]["requires-python"] == ">=3.11"
    assert "Python 3.11 or newer (tested to 3.13)" in page


def with_members(package, name):
    """The docstring of a name, for a class with those of its public members."""
    thing = reference.public(package)[name]
    text = reference.docstring(package, name, thing)
    if inspect.isclass(thing):
        text += "".join(inspect.getdoc(member) or "" for key, member in vars(thing).items() if not key.startswith("_"))
    return text


def test_every_public_name_is_on_a_page():
    pages = {package: (DOCS / reference.page_of(package)).read_text() for package in reference.PACKAGES}
    assert [one for one in NAMES if f"[`{one[1]}`](" not in pages[one[0]]] == []


def test_every_public_name_has_a_description_and_an_example():
    texts = {f"{package}.{name}": with_members(package, name) for package, name in NAMES}
    assert len(texts) > 150
    assert [name for name, text in texts.items() if len(text.split("\n")[0].split()) < 2] == []
    assert [name for name, text in texts.items() if ">>> " not in text] == []


@pytest.mark.parametrize(("package", "name"), CONSTANTS, ids=".".join)
def test_examples_of_constants_hold(package, name):
    """Those of classes and functions are found by doctest itself."""
    thing = reference.public(package)[name]
    test = doctest.DocTestParser().get_doctest(reference.docstring(package, name, thing), {}, name, None, 0)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert test.examples
    assert doctest.DocTestRunner(optionflags=flags).run(test).failed == 0


def _files_of_design():
    """Every file that the tree of packages in docs/internals/design.md names, as a path."""
    text = (ROOT / "docs/internals/design.md").read_text()
    tree = text[text.index("src/nopad/\n") : text.index("\ntests/  ")].splitlines()
    here, found = [Path("src/nopad")], []
    for line in tree[1:]:
        depth = (len(line) - len(line.lstrip())) // 2
        if depth <= len(here):  # a deeper line goes on with the one before
            here = here[:depth]
        folder = re.match(r"\s+(\w+)/(?:\s|$)", line)
        if folder:
            here.append(here[-1] / folder[1])
        found += [here[-1] / name for name in re.findall(r"\w+\.py", line)]
    return found


def test_every_module_is_in_the_tree_of_the_design():
    """Each module has a place in the list of its package, so that a new one cannot be forgotten."""
    there = {path.relative_to(ROOT) for path in (ROOT / "src/nopad").rglob("*.py")}
    modules = {path for path in there if path.name not in ("__init__.py", "__main__.py")}
    named = set(_files_of_design())
    assert len(named) > 300
    assert sorted(map(str, modules - named)) == []
    assert sorted(map(str, named - there)) == []
