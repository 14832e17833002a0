"""Read a compiled program, and count its operations at each step of its loops."""

import collections
import re
from collections.abc import Iterator
from typing import NamedTuple

FREE = frozenset(
    [
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "partition-id",
        "while",
        "call",
        "conditional",
    ]
)
"""Operations that launch nothing themselves."""


class Loop(NamedTuple):
    """The body of a loop.

    Attributes:
        kernels: operations of its own that run on the device, one launch each.
        conditionals: branches, for which an accelerator waits for its host.
        open_ended: inner loops whose length is unknown at compile time, so that the device waits
            for the host at each turn.
    """

    kernels: int
    conditionals: int
    open_ended: int


class Program(NamedTuple):
    """Summary of a compiled program.

    Attributes:
        step: the body of the loop with the most kernels; None for a program without loops.
        callbacks: number of calls of the host's Python in the whole program.
    """

    step: Loop | None
    callbacks: int


def read(text: str) -> Program:
    parts = dict(_computations(text))
    bodies = set(re.findall(r"\bbody=(%[\w.\-]+)", text))
    loops = [_loop(parts, body) for body in bodies]
    callbacks = len(re.findall(r'custom_call_target="[^"]*callback', text))
    return Program(max(loops, default=None), callbacks)


def _computations(text: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", []
    for line in text.splitlines():
        opened = re.match(r"(?:ENTRY )?(%[\w.\-]+) \(.*\{$", line)
        if opened:
            name, lines = opened[1], []
        elif line.startswith("}") and name:
            yield name, lines
            name = ""
        elif name:
            lines.append(line.strip())


def _loop(parts: dict[str, list[str]], body: str) -> Loop:
    found, open_ended = _operations(parts, body)
    kernels = sum(number for operation, number in found.items() if operation not in FREE)
    return Loop(kernels, found["conditional"], open_ended)


def _operations(parts: dict[str, list[str]], name: str) -> tuple[collections.Counter[str], int]:
    """Count the operations of a computation and of those it calls, but not of inner loops."""
    found: collections.Counter[str] = collections.Counter()
    open_ended = 0
    for line in parts.get(name, []):
        operation = re.match(r"(?:ROOT )?%[\w.\-]+ = (?:\(.*?\)|\S+) ([a-z][\w\-]*)\(", line)
        if operation is None:
            continue
        found[operation[1]] += 1
        if operation[1] == "while":
            open_ended += "known_trip_count" not in line
        called = re.search(r"to_apply=(%[\w.\-]+)", line)
        if operation[1] == "call" and called:
            inner, more = _operations(parts, called[1])
            found += inner
            open_ended += more
    return found, open_ended
