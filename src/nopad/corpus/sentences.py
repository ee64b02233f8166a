"""Divide text into sentences by rules.

This needs no model and no download, gives the same sentences on every machine, and handles several MB/s.

A sentence ends

* at ``. ! ? …`` (and the marks of Devanagari, Urdu, Arabic and Armenian) before white space; closing quotes and
  brackets after the mark belong to the sentence;
* at the full stops, exclamation marks and question marks of Chinese and Japanese, even without white space;
* at an empty line, and before a line that begins like an entry of a list.

After a mark of the first kind, a sentence does not end

* before a lower-case letter: ``"Why?" he asked``, ``approx. five``;
* inside a word: ``3.14``, ``nopad.plan``, ``example.com``.

After a single full stop, it does not end in these cases either:

* after a title or another abbreviation that never ends a sentence (``Dr.``, ``e.g.``);
* after an abbreviation such as ``No.`` or ``Fig.``, if a number follows (``No. 5``);
* after the number or letter of a list entry, at the beginning of a sentence (``1. First``, ``a. First``);
* after an initial, an abbreviation with inner stops (``U.S.``, ``a.m.``), or one that may end a sentence (``etc.``,
  ``Inc.``), unless the next word usually begins a sentence (``The``, ``However``).

Where languages differ in these rules, those of English apply. Text without marks between sentences (such as Thai) gives
one sentence per paragraph. Runs of white space, line ends included, become one space.

Libraries with models (NLTK's Punkt, spaCy) need a download or are heavy; the rule-based pySBD is more careful but far
slower, and has had no release since 2021. Pre-training on sentence pairs needs speed and results that never change; an
occasional wrong division only moves the point at which a side of a pair begins.
"""

# ruff: noqa: RUF001 - the stops of other scripts are meant
from __future__ import annotations

import re
from typing import Literal, get_args

__all__ = ["SentenceUnit", "sentences_of"]

SentenceUnit = Literal["rules", "line"]

_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*|\n(?=[^\S\n]*(?:[-*+•‣–]|\(?\d{1,3}[.)])[^\S\n])")
_STOP = re.compile(
    r"[。！？｡]+[」』”’）】〉》]*\s*"
    r"|(?<![.!?…‽।॥؟۔։])(?P<stop>[.!?…‽।॥؟۔։]++)[\"'”’“‘»«›)\]}]*+(?:\s+|\Z)"
)  # a match begins only at the first of adjacent stops; otherwise many of them would take quadratic time
_OPENING = "\"'“‘«„‚(⟨[{¿¡*_`"
_BEFORE = re.compile(r"[^\s\"'“”‘’«»()\[\]{}]*\Z")
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]|ph\.d")
_ENTRY = re.compile(r"\(?(?:\d{1,3}|[A-Za-z])\Z")
_LEADING = re.compile(r"[ \t(]*+\Z")
_LONGEST = 40  # characters that are looked at before a stop


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Abbreviations that never end a sentence
_NEVER = _listed(
    "mr mrs ms dr prof st gen col capt cmdr lt sgt maj rev hon gov sen rep pres messrs mme mlle fr mt ft "
    "e.g i.e cf viz vs v approx ca resp incl esp dept"
)
# Abbreviations that do not end a sentence if a number follows
_NUMBERED = _listed("no nos fig figs p pp vol vols ch chap sec sect eq art para tab ver op n")
# Abbreviations that end a sentence if one of `_STARTERS` follows
_PERHAPS = _listed(
    "etc al inc ltd co corp llc jr sr bros est ed eds trans repr jan feb mar apr jun jul aug sep sept oct nov dec "
    "mon tue tues wed thu thurs fri sat sun ave blvd rd univ assn misc max min avg"
)
_STARTERS = _listed(
    "the a an this that these those it he she they we you i in on at as but and or if when while after before although "
    "however for from there here his her its their our my what why how who where which then so yet not no yes all some "
    "many most each both one two since because once also with by to see note use"
)


def sentences_of(text: str, unit: SentenceUnit = "rules") -> list[str]:
    """Return the sentences of a text, in order, each without white space at its ends; none of them is empty.

    With `unit` "rules", the rules of this module apply; with "line", each line is a sentence, as in BERT's input files.

    >>> sentences_of('Dr. J. Smith paid $3.50, e.g. for tea. "Why?" he asked. Nobody in the U.S. knew. The end...')
    ['Dr. J. Smith paid $3.50, e.g. for tea.', '"Why?" he asked.', 'Nobody in the U.S. knew.', 'The end...']
    >>> sentences_of("Ein Satz! 你好。再见。")
    ['Ein Satz!', '你好。', '再见。']
    """
    if unit == "line":
        return [" ".join(line.split()) for line in text.split("\n") if not line.isspace() and line]
    assert unit in get_args(SentenceUnit)
    found: list[str] = []
    for paragraph in _PARAGRAPH.split(text):
        begin = 0
        for match in _STOP.finditer(paragraph):
            end = match.end()
            if end < len(paragraph) and (match["stop"] is None or _ends(paragraph, begin, match)):
                found.append(paragraph[begin:end])
                begin = end
        found.append(paragraph[begin:])
    return [sentence for one in found if (sentence := " ".join(one.split()))]


def _ends(text: str, begin: int, match: re.Match[str]) -> bool:
    """Return whether the sentence that begins at index `begin` of `text` ends with the stop that `match` has found.

    `match` is a match of `_STOP`, and its group ``stop`` is the stop. There must be text behind the match; without it,
    IndexError is raised.
    """
    at = match.end()
    while at < len(text) - 1 and text[at] in _OPENING:
        at += 1
    if text[at].islower():
        return False
    if match["stop"] != ".":
        return True
    stop = match.start("stop")
    before = _BEFORE.search(text[max(begin, stop - _LONGEST) : stop])
    word = before[0] if before else ""
    if not word:
        return True
    if _ENTRY.fullmatch(word) and _LEADING.match(text, begin, stop - len(word)):
        return False  # the number of an entry
    plain = word.casefold()
    if plain in _NEVER:
        return False
    if plain in _NUMBERED:
        return not text[at].isdigit()
    if plain in _PERHAPS or (len(word) == 1 and word.isupper()) or _DOTTED.fullmatch(plain):
        return _starts(text, at)
    return True


def _starts(text: str, at: int) -> bool:
    """Return whether the word at index `at` of a text is one that usually begins a sentence, such as "The"."""
    end = at
    while end < len(text) and text[end].isalpha():
        end += 1
    return text[at:end].casefold() in _STARTERS
