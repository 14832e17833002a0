"""Text as a task: what is trained on, what is held out, and prompts to look at attention on."""

import abc

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike, Int

from dynsim import checks
from dynsim.precision import AnyArray


class TextSource(eqx.Module):
    """What a language model is trained on: a text, or where to read it."""

    @abc.abstractmethod
    def build(self, length: int, prompt: int) -> "Text":
        """The text.

        Args:
            length: tokens T of a window.
            prompt: position in the held-out text where a prompt of that length starts.
        """

    def contents(self) -> dict[str, str]:
        """Hashes of what was read, by name, to recognise results of other texts."""
        return {}


class Text(TextSource):
    """Token ids of a text. Build it with `text`.

    Attributes:
        train: (N,) tokens from which windows are drawn.
        held_out: (E,) tokens on which loss and attention are measured.
        prompts: (P, T) sequences whose attention maps can be recorded; P may be 0.
        vocabulary: number of tokens M.
    """

    train: Int[AnyArray, " N"]
    held_out: Int[AnyArray, " E"]
    prompts: Int[AnyArray, "P T"]
    vocabulary: int = eqx.field(static=True)

    def build(self, length: int, prompt: int) -> "Text":
        """The text itself, which has its own prompts."""
        del length, prompt
        return self


def text(
    train: Int[ArrayLike, " N"],
    held_out: Int[ArrayLike, " E"],
    vocabulary: int,
    prompts: Int[ArrayLike, "P T"] | None = None,
) -> Text:
    """A text of tokens in [0, vocabulary).

    Raises:
        ValueError: for an array of another number of axes, without entries, of other than whole
            numbers, or with tokens outside the vocabulary.
    """
    checks.integer("vocabulary", vocabulary, 2)
    given = {"train": (train, 1), "held_out": (held_out, 1)}
    if prompts is not None:
        given["prompts"] = (prompts, 2)
    found = {}
    for name, (tokens, ndim) in given.items():
        array = np.asarray(tokens)
        if array.ndim != ndim or not array.size or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(
                f"{name}: has shape {array.shape} and dtype {array.dtype}, must be whole numbers "
                f"with {ndim} axes, not empty"
            )
        bad = array[(array < 0) | (array >= vocabulary)]
        if bad.size:
            raise ValueError(
                f"{name}: has token {bad[0]}, must be in [0, vocabulary = {vocabulary})"
            )
        found[name] = array.astype(np.int32)
    found.setdefault("prompts", np.zeros((0, 2), np.int32))
    return Text(**found, vocabulary=int(vocabulary))
