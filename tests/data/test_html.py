"""Of a page, what somebody would read."""

from __future__ import annotations

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data.html import text_of


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("plain &amp; simple", "plain & simple"),
        ("<p>One.</p><p>Two\nlines.</p>", "One.\nTwo lines."),
        ("a<b>b</b>c <i>d</i><br/>e<br>f", "abc d\ne\nf"),
        ("<table><tr><td>Hb</td><td>9.1</td></tr><tr><th>Na<th>140</table>", "Hb 9.1\nNa 140"),
        ("<pre>a\n  b</pre>c\nd", "a\nb\nc d"),
        ("<title>T</title><style>p{}</style><script>if(a<b){}</script>seen", "seen"),
        ("<!-- no --><div xmlns='http://www.w3.org/1999/xhtml'>in a div</div>", "in a div"),
        ("<ul><li>one<li>two</ul>&eacute;&#8364;", "one\ntwo\né€"),
        ("5 < 6 and a & b", "5 < 6 and a & b"),
        ("</pre></b>closed twice", "closed twice"),
        ("<template>no<template/>no</template>seen", "seen"),
        ("10<sup>9</sup>/l, H<sub>2</sub>O, <SUP><b>99m</b></SUP>Tc", "10^9/l, H_2O, ^99mTc"),
        ("<s>10 mg</s> 5 mg, <strike>a</strike>b<p/>", "5 mg, b"),
        ("<del>not <b>at</b> all</del> allergic to <ins>nuts</ins>", "allergic to nuts"),
        ("<s>10<sup>9</sup> <del>a</del> b<p>c</s>d<sup/>e", "de"),
        ("<p>a <del>b</p><p>c</p>", "a\nc"),  # a block ends what was not closed in it
        ("<table><tr><td><s>x</td><td>y</td></tr></table>z", "y\nz"),
        ("<s>a<s>b</s>c</s>d<del><p>e</p><p>f</p></del>g", "d\ng"),
        ("", ""),
    ],
)
def test_tags_go_and_lines_stay(page: str, text: str) -> None:
    assert text_of(page) == text


@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1))
def test_a_text_that_is_escaped_comes_back(text: str) -> None:
    assert text_of(f"<html><body><p>{html.escape(text)}</p></body></html>") == text


@given(st.text("<>/!-&;abpre \n'\"="))
def test_nothing_is_refused(page: str) -> None:
    text_of(page)
