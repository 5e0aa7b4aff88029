"""Texts, a template and options -> token ids in which each option stands in its sentence, and its places.

    Template("It was {}.")              # {} is the option; the sentence follows the text
    Template("A {} story: {text}")      # or has a place for it

Text and sentence are read as one segment, as they would stand on a page. A text that is too long for a row
loses its end, or is read window by window; the sentence is always there, and so is as much of the text beside
each option as beside the others. Which tokens are the option's is known by their characters.

T tokens of a prompt, without special tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.text.spans import Ids, Span, check_texts
from electra.text.tokenizer import Tokenizer
from electra.text.windows import Window, windows

OPTION, TEXT = "{}", "{text}"
DEFAULT_TEMPLATE = "It was {}."
PROMPTS_AT_ONCE = 4096
"""Texts with an option that are tokenized together."""
SHORTEST_TEXT = 1
"""Tokens of a text that must have room beside the sentence."""


class Filled(NamedTuple):
    """A template with a text and an option in it, and the characters of both."""

    whole: str
    text: Span
    option: Span


@dataclass(frozen=True)
class Template:
    """A sentence with a place for an option and, if it does not follow the text, one for the text."""

    written: str

    def __post_init__(self) -> None:
        if not isinstance(self.written, str):
            raise InputError(f"template is of type {type(self.written).__name__}, expected a string")
        if self.written.count(OPTION) != 1 or self.written.count(TEXT) > 1:
            raise InputError(
                f"template is {self.written[:80]!r}, expected {OPTION} once, where the option goes, and "
                f"{TEXT} at most once, such as {DEFAULT_TEMPLATE!r} or {f'{TEXT} {DEFAULT_TEMPLATE}'!r}"
            )

    def fill(self, text: str, option: str) -> Filled:
        """The whole text."""
        template = self.written if TEXT in self.written else f"{TEXT} {self.written}"
        values, places = {TEXT: text.strip(), OPTION: option.strip()}, {}
        whole, rest = "", template
        for mark in sorted(values, key=template.index):
            before, _, rest = rest.partition(mark)
            whole += before
            places[mark] = (len(whole), len(whole) + len(values[mark]))
            whole += values[mark]
        return Filled(whole + rest, places[TEXT], places[OPTION])


class Prompt(NamedTuple):
    """The tokens of a text with an option in its sentence, and which of them are of which."""

    ids_T: Ids
    text: slice
    option: slice

    @property
    def text_length(self) -> int:
        """Tokens of the text."""
        return len(range(self.text.start, self.text.stop))

    @property
    def sentence_length(self) -> int:
        """All others."""
        return len(self.ids_T) - self.text_length

    def showing(self, window: Window) -> tuple[Ids, slice]:
        """The prompt with a part of its text, and where the option then is."""
        kept = self.ids_T[self.text][window.start : window.stop]
        ids_T = np.concatenate([self.ids_T[: self.text.start], kept, self.ids_T[self.text.stop :]])
        lost = self.text_length - len(kept) if self.option.start >= self.text.stop else 0
        return ids_T, slice(self.option.start - lost, self.option.stop - lost)


class Shown(NamedTuple):
    """Which text a row shows, or a window of it, with which option, by their places in the lists."""

    text: int
    option: int
    weight: int
    """Tokens of the text that are judged here; 0 if it has none."""


class OptionRow(NamedTuple):
    """A text, or a window of it, with an option in its sentence."""

    shown: Shown
    ids_T: Ids
    place: slice
    """The tokens of the option."""


@dataclass(frozen=True, kw_only=True)
class OptionPrompts:
    """Options to choose from, in a template; checked with a tokenizer, for rows of a length."""

    options: tuple[str, ...]
    template: Template
    tokenizer: Tokenizer
    room: int
    """Tokens of a row without [CLS] and [SEP]."""

    @classmethod
    def check(
        cls,
        options: Iterable[str],
        template: str,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        names: Sequence[str] | None = None,
    ) -> "OptionPrompts":
        """Refuse what cannot be chosen from; `names`: what to call each option in a message."""
        found = check_texts(options, name="options")
        if len(found) < 2:
            raise InputError(f"options has {len(found)} texts, expected two or more to choose from")
        named = names or [f"options[{number}]" for number in range(len(found))]
        made = cls(
            options=tuple(found), template=Template(template), tokenizer=tokenizer, room=max_length - 2
        )
        (prompts,) = made._prompts([""])
        seen: dict[bytes, str] = {}
        for name, option, prompt in zip(named, found, prompts, strict=True):
            ids = prompt.ids_T[prompt.option]
            if (ids == tokenizer.unk_id).all():
                problem = "unknown to the tokenizer" if len(ids) else "nothing to the tokenizer"
                raise InputError(f"{name} is {option[:80]!r}, {problem}: use other words")
            same = seen.setdefault(ids.tobytes(), name)
            if same != name:
                raise InputError(
                    f"{name} is {option[:80]!r}, to the tokenizer the same as {same}: expected each once"
                )
            if prompt.sentence_length + SHORTEST_TEXT > made.room:
                raise InputError(
                    f"{name} is {option[:80]!r}, in its template {prompt.sentence_length} tokens, and a row "
                    f"of the model has room for {made.room} with the text: shorten the option or the template"
                )
        return made

    def rows(self, texts: Sequence[str], *, cut: bool) -> Iterator[OptionRow]:
        """Text after text, window after window, all options; a long text is cut or read to its end."""
        step = max(1, PROMPTS_AT_ONCE // len(self.options))
        for first in range(0, len(texts), step):
            for number, prompts in enumerate(self._prompts(texts[first : first + step]), start=first):
                room = max(SHORTEST_TEXT, self.room - max(prompt.sentence_length for prompt in prompts))
                # Where a text touches its sentence, an option may change how many tokens it has.
                length = min(prompt.text_length for prompt in prompts)
                found = windows(length, room=room) or (Window(0, 0, 0, 0),)
                for window in [Window(0, min(length, room), 0, length)] if cut else found:
                    for option, prompt in enumerate(prompts):
                        ids_T, place = prompt.showing(window)
                        yield OptionRow(Shown(number, option, window.num_judged), ids_T, place)

    def _prompts(self, texts: Sequence[str]) -> list[list[Prompt]]:
        filled = [self.template.fill(text, option) for text in texts for option in self.options]
        located = self.tokenizer.encode_with_offsets([one.whole for one in filled])
        prompts = iter(
            prompt_of(one, ids_T, offsets_T2)
            for one, (ids_T, offsets_T2) in zip(filled, located, strict=True)
        )
        return [[next(prompts) for _ in self.options] for _ in texts]


def prompt_of(filled: Filled, ids_T: Ids, offsets_T2: NDArray[np.int64]) -> Prompt:
    """Which tokens have characters of the text and of the option; what has of both is the option's."""
    option, text = (tokens_within(span, offsets_T2) for span in (filled.option, filled.text))
    if filled.text < filled.option:
        text = slice(text.start, max(text.start, min(text.stop, option.start)))
    else:
        text = slice(min(text.stop, max(text.start, option.stop)), text.stop)
    return Prompt(ids_T, text, option)


def tokens_within(span: Span, offsets_T2: NDArray[np.int64]) -> slice:
    """The tokens that have a character of these; without one, an empty slice where they would be."""
    start, end = span
    has_T = (offsets_T2[:, 0] < end) & (offsets_T2[:, 1] > start)
    places = np.flatnonzero(has_T)
    if not len(places):
        place = int((offsets_T2[:, 0] < start).sum())
        return slice(place, place)
    return slice(int(places[0]), int(places[-1]) + 1)
