"""Equations of the documentation site: TeX as a code forge reads it ($...$, $$...$$, ```math) becomes MathML.

It is a Markdown extension. KaTeX does the work when the site is built, so a reader's browser has nothing to run or to
fetch, and TeX that KaTeX does not understand stops the build with a sentence.
"""

import html
import re
import unicodedata
from typing import Any

import pykatex
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

INLINE = r"(?<![\\$\w])(\${1,2})(?![\s$])((?:[^$\\`]|\\.)+?)(?<!\s)\1(?![\w$])"
AFTER_CODE = 185  # priority: code spans are taken out before (190), backslashes are read after (180)

# Browsers know alphabets by their characters, no longer by an attribute.
ALPHABETS = {"script": "SCRIPT", "double-struck": "DOUBLE-STRUCK", "bold": "BOLD", "fraktur": "FRAKTUR"}
DIGITS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")

# TeX puts a thin space beside the name of a function, unless a sign or a bracket is there; KaTeX's MathML does not.
THIN = '<mspace width="0.1667em"/>'
BEFORE_FUNCTION = re.compile(r"(</mi>|</mn>|</mfrac>|</msub>|</msup>)(<mi>[a-z]{2,}</mi><mo>\u2061</mo>)")
AFTER_FUNCTION = re.compile(r"(<mi>[a-z]{2,}</mi><mo>\u2061</mo>)(?=<m(?!o)|<mo[^>]*>[\u2211|])")

# Browsers draw half of a wide brace, and the bar over a letter through it: style.css draws a line, and lifts the bar.
UNDERBRACE = re.compile(r'<munder>((?:(?!munder).)*)<mo stretchy="true">\u23df</mo></munder>')
BAR = '<mo stretchy="false" class="bar">\u203e</mo>'


def mathml(tex: str, block: bool) -> str:
    """MathML of some TeX; ValueError, with what KaTeX says, if there is none."""
    try:
        made = pykatex.renderToString(tex.strip(), output="mathml", displayMode=block, throwOnError=True)
    except pykatex.ParseError as error:
        raise ValueError(f"KaTeX does not understand {tex!r}: {error}") from error
    inner = re.sub(r"<annotation.*?</annotation>|</?semantics>", "", re.search(r"<math.*</math>", made, re.S)[0])  # pyright: ignore
    letters = re.sub(r'<(m[ino]) mathvariant="([a-z-]+)">([^<]+)</\1>', _in_alphabet, inner)
    spaced = AFTER_FUNCTION.sub(rf"\1{THIN}", BEFORE_FUNCTION.sub(rf"\1{THIN}\2", letters))
    drawn = UNDERBRACE.sub(r'<mrow class="embraced">\1</mrow>', spaced).replace("<mo>\u02c9</mo>", BAR)
    return drawn.replace("<math ", f'<math aria-label="{_spoken(tex)}" ', 1)


def _spoken(tex: str) -> str:
    """The TeX itself, for those who have the page read to them, and for whoever copies it."""
    return html.escape(" ".join(tex.split()), quote=True).replace("|", "&#124;")


def _in_alphabet(match: re.Match[str]) -> str:
    tag, variant, text = match.groups()
    if variant not in ALPHABETS:
        return match[0]
    return f"<{tag}>{''.join(_letter(character, ALPHABETS[variant]) for character in text)}</{tag}>"


def _letter(character: str, alphabet: str) -> str:
    """A letter or digit of an alphabet, such as the script L; those that Unicode had early have a shorter name."""
    if character.isdigit():
        names = [f"DIGIT {DIGITS[int(character)]}"]
    else:
        names = [f"{'CAPITAL' if character.isupper() else 'SMALL'} {character.upper()}"]
    for prefix in ("MATHEMATICAL ", ""):
        for name in names:
            try:
                return unicodedata.lookup(f"{prefix}{alphabet} {name}")
            except KeyError:
                continue
    raise ValueError(f"Unicode has no {character!r} in the alphabet {alphabet.lower()}.")


def fence(source: str, language: str, css_class: str, options: Any, md: Markdown, **others: Any) -> str:
    """A block ```math, for pymdownx.superfences."""
    return f'<div class="equation">{mathml(source, block=True)}</div>'


class Equation(InlineProcessor):
    """$...$ in a line, and $$...$$ in a paragraph of its own."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # pyright: ignore
        made = mathml(m[2], block=m[1] == "$$")
        return self.md.htmlStash.store(made), m.start(0), m.end(0)


class Equations(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(Equation(INLINE, md), "equation", AFTER_CODE)


def makeExtension(**options: Any) -> Equations:
    return Equations(**options)
