"""Single changes to Python source that a test suite should notice: a sign, a factor, a dropped
term, a boundary, an index.

`mutations(path, name)` finds them on the syntax tree and describes each as a replacement of source
text, so that everything else in the file, line numbers included, stays as it was.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

OPERATORS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.Pow: ("**", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
PAIRS = [
    *(("minimum", "maximum"), ("min", "max"), ("floor", "ceil"), ("sum", "mean"), ("any", "all")),
    *(("zeros", "ones"), ("zeros_like", "ones_like"), ("argmin", "argmax"), ("sin", "cos")),
    *(("exp", "expm1"), ("log", "log1p"), ("tril", "triu")),
]
FUNCTIONS = dict(PAIRS) | {right: left for left, right in PAIRS}
# With text, lists and tuples the other operator raises, which shows nothing about the tests.
CONTAINERS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.Set)


class Mutation(NamedTuple):
    """Replace the characters from `start` to `end` of the file at `path` by `new`."""

    path: str
    line: int
    column: int
    start: int
    end: int
    old: str
    new: str
    context: str
    """The stripped line of source, which identifies a mutation when lines move."""
    first: int
    """Line on which the statement begins: Python may count all of it as executed there."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.old}  ->  {self.new}"

    def applied(self, source: str) -> str:
        """`source` with the mutation in it."""
        return source[: self.start] + self.new + source[self.end :]


class Source:
    """The text of a file, and where the nodes of its syntax tree stand in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def _offset(self, line: int, column: int) -> int:
        # Columns of the tree count bytes of UTF-8.
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr) -> tuple[int, int]:
        """First character of a node, and the one after its last."""
        end = self._offset(node.end_lineno or 0, node.end_col_offset or 0)
        return self._offset(node.lineno, node.col_offset), end

    def of(self, node: ast.expr) -> str:
        """Text of a node in brackets, which keep it one operand."""
        return "(" + self.text[slice(*self.span(node))] + ")"

    def find(self, word: str, after: int) -> int:
        """Where an operator stands after a position, past comments."""
        while not self.text.startswith(word, after):
            after = self.text.index("\n", after) if self.text[after] == "#" else after + 1
        return after

    def swapped(self, left: ast.expr, op: ast.AST) -> tuple[int, int, str]:
        """The change of the operator that follows `left` to its counterpart."""
        old, new = OPERATORS[type(op)]
        first, *_, last = [*old.split(), old.split()[-1]]
        start = self.find(first, self.span(left)[1])
        return start, self.find(last, start) + len(last), new


def mutations(path: Path, name: str) -> list[Mutation]:
    """All mutations of the file at `path`, in the order of its text; they carry `name` as path."""
    source = Source(path.read_text())
    tree = ast.parse(source.text)
    changes = {(*c, first) for first, node in _nodes(tree, 1) for c in _changes(node, source)}
    found = []
    for start, end, new, first in sorted(changes):
        line = source.text.count("\n", 0, start) + 1
        context = source.lines[line - 1].strip()
        column, old = start - source.starts[line - 1], source.text[start:end]
        found.append(Mutation(name, line, column, start, end, old, new, context, first))
    return found


def _nodes(tree: ast.AST, first: int) -> Iterator[tuple[int, ast.expr]]:
    """Expressions that run, without annotations, text and messages of errors, each with the line on
    which its statement begins."""
    for field, value in ast.iter_fields(tree):
        for child in value if isinstance(value, list) else [value]:
            if field in {"annotation", "returns"} or not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.JoinedStr | ast.Raise):
                continue
            if isinstance(child, ast.expr):
                yield first, child
            yield from _nodes(child, child.lineno if isinstance(child, ast.stmt) else first)


def _changes(node: ast.expr, source: Source) -> Iterator[tuple[int, int, str]]:
    """(start, end, new text) of each change at a node."""
    start, end = source.span(node)
    match node:
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            if _is_text(left) or _is_text(right):
                return
            yield source.swapped(left, op)
            if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow):
                yield start, end, source.of(left)
            if isinstance(op, ast.Add | ast.Mult):
                yield start, end, source.of(right)
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            yield start, end, source.of(operand)
        case ast.Compare(left, [op], _):
            yield source.swapped(left, op)
        case ast.BoolOp(op, [first, *_]):
            yield source.swapped(first, op)
        case ast.IfExp(_, body, orelse):
            yield start, end, source.of(body)
            yield start, end, source.of(orelse)
        case ast.Constant(bool() as value):
            yield start, end, repr(not value)
        case ast.Constant(int() as value):
            yield start, end, repr(value + 1)
        case ast.Constant(float() as value) if value:
            yield start, end, repr(2 * value)
        case ast.Call(ast.Attribute(_, name) as function) if name in FUNCTIONS:
            last = source.span(function)[1]
            yield last - len(name), last, FUNCTIONS[name]
        case ast.Call(ast.Name("min" | "max" | "any" | "all" as name) as function):
            yield *source.span(function), FUNCTIONS[name]


def _is_text(node: ast.expr) -> bool:
    literal = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return literal or isinstance(node, CONTAINERS)
