import pytest

from electra.demo.documentation import is_english, is_prose, plain


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("Calls :func:`~os.path.join` and ``open(x)``.", "Calls os.path.join and open(x)."),
        (
            "See :ref:`the guide <guide>` or `this page <https://a.b/c>`_ first.",
            "See the guide or this page first.",
        ),
        ("A **bold** and an *emphasised* word, *args kept.", "A bold and an emphasised word, *args kept."),
        ("Read [the manual](https://a.b/c) now.", "Read the manual now."),
        ("A fast method [1]_ , well known [2, 3].", "A fast method, well known."),
        ("The option `verbose' is set; `quiet' is not.", "The option 'verbose' is set; 'quiet' is not."),
        ("The ``module`` 's and `a` don't change.", "The module 's and a don't change."),
        (r"A size of :math:`(n \times \text{out}_{i})` or $\alpha$.", "A size of (n × out_i) or alpha."),
        (r"With :math:`2^{{\text{{width}}}} \leq x`.", "With 2^width ≤ x."),
        (r"The ``NaN``\ s are replaced.", "The NaNs are replaced."),
    ],
)
def test_plain_takes_the_markup_and_leaves_the_words(marked: str, expected: str) -> None:
    assert plain(marked) == expected


@pytest.mark.parametrize(
    "lost",
    [
        "See https://example.org/page for details.",
        r"It equals :math:`\frac{a}{b}` here.",
        "The definition is given in [1]_.",
        "Args are {input} and others.",
        "Write to A. Author <author@example.org> about it.",
        "The grammar is comparison ::= or_expr (comp_operator or_expr)*.",
        "It holds a lone \udc80 surrogate.",
    ],
)
def test_plain_drops_only_the_sentence_that_cannot_be_read(lost: str) -> None:
    assert plain(f"The first stays, e.g. This one. {lost} The last stays.") == (
        "The first stays, e.g. This one. The last stays."
    )


@pytest.mark.parametrize(
    "paragraph",
    [
        "Return the sum of the elements over the given axis.",
        "If (h, c) is not provided, both of the states default to zero (see the notes below).",
        "keys: If True, return edge keys with each edge, creating 3-tuples (u, v, k).",
    ],
)
def test_technical_english_is_prose(paragraph: str) -> None:
    assert is_prose(paragraph)


@pytest.mark.parametrize(
    "paragraph",
    [
        "import numpy as np from the other package",
        "result = compute the value of the function",
        "for item in the_list: print(item) and then go on",
        "hann_window(window_length, periodic=True, dtype=None) -> Tensor",
        "c0 = 0.814 c1 = 1.06 c2 = 0.162 c3 = 0.0633 of the a",
        "Licensed under the Apache License, you may not use this file except in compliance.",
        "background borderwidth cursor height relief takefocus visual width",
        "Esta función devuelve la suma de los elementos del arreglo.",
        "Too short a line",
    ],
)
def test_code_licences_lists_and_other_languages_are_not_prose(paragraph: str) -> None:
    assert not (is_prose(paragraph) and is_english(paragraph))
