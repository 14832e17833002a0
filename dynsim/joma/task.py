"""The sequence classes of JoMA's Fig. 2 (arXiv:2310.00535), as its code makes them: 20 classes of
one query over 20 tokens. Only their law is known, not the draws that the paper used."""

from typing import Literal, get_args

import equinox as eqx
import numpy as np

from dynsim import checks
from dynsim.classes.task import SequenceClasses, Task, sequence_classes

Frequencies = Literal["bumps", "random"]
CLASSES = 20


def fig2(frequencies: Frequencies = "bumps") -> SequenceClasses:
    """20 classes over 20 tokens.

    Args:
        frequencies: "random" numbers, or "bumps" over the classes for the first ten tokens, which
            are then distinct.

    Raises:
        ValueError: naming the argument, its value and what is allowed.
    """
    checks.choice("frequencies", frequencies, get_args(Frequencies))
    X = np.random.default_rng(0).random((CLASSES, CLASSES)) / 2
    if frequencies == "bumps":
        tokens, classes = np.arange(10)[:, None], np.arange(CLASSES)[None]
        X[:10] = np.exp(-((tokens - 10 * classes / CLASSES) ** 2) / 30)
    return sequence_classes((X / X.sum(0)).T, [0] * CLASSES, range(CLASSES))


class JoMAClasses(Task):
    """The classes of JoMA's Fig. 2: 20 classes of one query over 20 tokens.

    Attributes:
        frequencies: random numbers, or bumps over the classes for the first ten tokens, which are
            then distinct.
    """

    frequencies: Frequencies = eqx.field(static=True, default="bumps")

    def build(self) -> SequenceClasses:
        return fig2(self.frequencies)

    @property
    def sizes(self) -> tuple[int, int]:
        return CLASSES, CLASSES
