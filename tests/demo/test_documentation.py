import pytest

from electra.demo.documentation import MIN_CHARACTERS, is_english, is_prose, plain_text, prose_of

OPENING = (
    "Compute the solution of a system of equations with one row for every unknown, and return it with all of "
    "the residuals that are left, so that the caller can judge whether the system was well conditioned."
)


def cleaned(body: str) -> list[str]:
    """The paragraphs that `body` adds to a docstring that is long enough by itself."""
    first, *others = prose_of(f"{OPENING}\n\n{body}").text.split("\n")
    assert first == OPENING
    return others


def test_wrapped_lines_become_one_paragraph() -> None:
    assert cleaned("This sentence goes\non over the end\nof its lines.\n\nThis is a new paragraph.") == [
        "This sentence goes on over the end of its lines.",
        "This is a new paragraph.",
    ]


def test_too_little_prose_is_none() -> None:
    assert len(OPENING) >= MIN_CHARACTERS
    assert prose_of(OPENING).text == OPENING
    assert prose_of(OPENING[: MIN_CHARACTERS - 1]).text == ""


def test_doctests_and_their_output_go() -> None:
    body = """
    Now the system is solved in the usual way:

    >>> x = solve(a, b)
    >>> print("this is the output of the call")
    this is the output of the call

    The result is in the order of the rows.
    """
    assert cleaned(body.replace("\n    ", "\n")) == [
        "Now the system is solved in the usual way:",
        "The result is in the order of the rows.",
    ]


def test_code_blocks_and_formulas_go() -> None:
    body = """
First come the words of the text::

    this is all code in the literal block

    and so is this after the blank line

.. code-block:: python
   :linenos:

   the body of the block is code

.. math::

   the body of the formula is not a text

```python
this is in the fence and is also code
```

Then comes the last of the sentences."""
    assert cleaned(body) == ["First come the words of the text:", "Then comes the last of the sentences."]


def test_admonitions_keep_their_words() -> None:
    body = """
.. note:: This is a thing that the reader should know.

.. versionchanged:: 1.2
   The order of the result is now that of the input.

.. _target: https://example.org/the/page/that/is/not/a/text"""
    assert cleaned(body) == [
        "This is a thing that the reader should know.",
        "The order of the result is now that of the input.",
    ]


def test_tables_and_headings_go() -> None:
    body = """
The Heading of the Next Section
===============================

======  =================================
name    the meaning of the name in a cell
======  =================================
a       this is also in the table

+------+-----------------------------------+
| name | the meaning of the name in a cell |
+------+-----------------------------------+

| name | the meaning of the name in a cell |
|------|-----------------------------------|

## Another heading of the text in Markdown

The table above is not a part of the prose."""
    assert cleaned(body) == ["The table above is not a part of the prose."]


def test_numpydoc_parameters_lose_their_types() -> None:
    body = """
Parameters
----------
a : (M, M) array_like
    The matrix of the coefficients,
    one row for each of the equations.
b, c : ndarray, optional
    The values that are on the right-hand side.

See Also
--------
other : Does the same thing for a list of systems.

Notes
-----
The method is an old one and is well known.

References
----------
.. [1] A. Author, "The Title of the Book", Press, 1999."""
    assert cleaned(body) == [
        "a: The matrix of the coefficients, one row for each of the equations.",
        "b, c: The values that are on the right-hand side.",
        "The method is an old one and is well known.",
    ]


def test_google_and_sphinx_parameters_lose_their_types() -> None:
    body = """
Args:
    a (Tensor): The matrix of the coefficients,
        one row for each of the equations.
    b (:obj:`int`, optional):
        The value that is on the right-hand side.

Returns:
    The solution of the system as a tensor.

:param int depth: How deep the search is allowed to go.
:type depth: int
:returns: The list of all that has been found."""
    assert cleaned(body) == [
        "a: The matrix of the coefficients, one row for each of the equations.",
        "b: The value that is on the right-hand side.",
        "The solution of the system as a tensor.",
        "depth: How deep the search is allowed to go.",
        "The list of all that has been found.",
    ]


def test_list_items_are_paragraphs_without_markers() -> None:
    body = """
- The first of the items goes
  on in the next line.
- The second of the items does not.

1. The third of them has a number."""
    assert cleaned(body) == [
        "The first of the items goes on in the next line.",
        "The second of the items does not.",
        "The third of them has a number.",
    ]


def test_a_signature_at_the_top_goes() -> None:
    assert prose_of(f"solve(a, b, *, check=True, shape=(1, 2)) -> Tensor\n{OPENING}").text == OPENING


def test_a_role_at_the_start_of_a_line_is_no_field() -> None:
    body = "This is passed to\n:class:`numpy.ndarray` and comes back in\n:attr:`value` at the end."
    assert cleaned(body) == ["This is passed to numpy.ndarray and comes back in value at the end."]


def test_a_remark_goes_on_in_the_next_line() -> None:
    assert cleaned("NB: This is the case for many of them (e.g.\nthe first one). But not for all.") == [
        "NB: This is the case for many of them (e.g. the first one). But not for all."
    ]
    assert cleaned("TODO: This is a thing that remains\n  to be done in the end.") == [
        "TODO: This is a thing that remains to be done in the end."
    ]


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
    assert plain_text(marked) == expected


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
    assert plain_text(f"The first stays, e.g. This one. {lost} The last stays.") == (
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
