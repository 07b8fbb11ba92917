"""Tokenizers: text to pieces and back, and models of every kind that have one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snm.reference import tokenizers as reference
from snm.text.tokenizers import Bytes, Characters, Tokenizer

LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), max_size=40)
ODD = st.text(st.sampled_from("ab  ▁␉␋␌␍␛\t\v\f\rß漢🙂"), max_size=12)
PLAIN: list[tuple[Tokenizer, object]] = [(Characters(), reference.characters), (Bytes(), reference.byte_pieces)]


@pytest.mark.parametrize(("tokenizer", "slow"), PLAIN, ids=["characters", "bytes"])
class TestPlain:
    @given(st.lists(LINES | ODD, max_size=6))
    def test_pieces_are_those_of_the_reference_and_text_comes_back(self, tokenizer, slow, lines):  # type: ignore[no-untyped-def]
        block = "".join(line + "\n" for line in lines).encode()
        divided = tokenizer.divide(block).decode().split("\n")
        assert divided.pop() == ""
        assert [[piece for piece in line.split(" ") if piece] for line in divided] == list(map(slow, lines))
        for line in lines:
            blank = not line.strip(" \t\v\f\r")
            assert tokenizer.join(tokenizer.pieces(line)) == ("" if blank else line.removesuffix("\r"))
