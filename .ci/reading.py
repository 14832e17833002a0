"""How the source reads: counts of what makes a reader jump, by package.

    python .ci/reading.py                # dynsim, odes, sweeps and papers
    python .ci/reading.py --list         # also which functions, names and modules they are
    python .ci/reading.py --root ../old  # of another checkout

* single: functions whose name appears twice in the source, in its definition and in one call
* documented: private functions with a docstring, which a good name and signature may replace
* comments: share of lines with a comment
* participles: uses of names such as `found` or `given`, which do not say what they hold
* shared: names at the top level of several modules, private ones apart
* any: lines with `Any`
"""

import argparse
import ast
import collections
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("dynsim", "odes", "sweeps", "papers")
PARTICIPLES = frozenset(["found", "told", "asked", "made", "given", "kept", "placed", "held"])
COLUMNS = (
    "lines",
    "functions",
    "single",
    "of lines",
    "private",
    "documented",
    "comments",
    "participles",
    "shared",
    "any",
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A file of the source, its tree and its tokens."""

    path: Path
    tree: ast.Module
    tokens: list[tokenize.TokenInfo]

    def names(self) -> Iterator[str]:
        """Names in code, also those in strings such as "sweeps.systems.base:System"."""
        for token in self.tokens:
            if token.type == tokenize.NAME:
                yield token.string
            elif token.type == tokenize.STRING and " " not in token.string:
                yield from token.string.strip("\"'").replace(":", ".").split(".")

    def functions(self) -> Iterator[Function]:
        """All functions, methods among them."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def top(self) -> set[str]:
        """Names that are defined, not imported, at the top level."""
        names = set[str]()
        for node in self.tree.body:
            if isinstance(node, Function | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
        return names


def modules(root: Path, package: str) -> list[Module]:
    """Read all modules of a package."""
    read = []
    for path in sorted((root / package).rglob("*.py")):
        text = path.read_text()
        tokens = [*tokenize.generate_tokens(io.StringIO(text).readline)]
        read.append(Module(path.relative_to(root), ast.parse(text), tokens))
    return read


def is_plain(function: Function) -> bool:
    """Whether only a call by name reaches a function: no decorator or protocol of Python does."""
    return not function.decorator_list and not function.name.startswith("__")


def report(root: Path, listed: bool) -> None:
    """Print the table, and what it counts."""
    source = {package: modules(root, package) for package in PACKAGES}
    every = [module for package in source.values() for module in package]
    uses = collections.Counter(name for module in every for name in module.names())
    tops = collections.Counter(
        name for module in every for name in module.top() if not name.startswith("_")
    )
    total = collections.Counter[str]()
    print(f"{'':<8}" + "".join(f"{column:>13}" for column in COLUMNS))
    for package, files in source.items():
        functions = [(module, each) for module in files for each in module.functions()]
        single = [(m, f) for m, f in functions if is_plain(f) and uses[f.name] == 2]
        private = [
            f for _, f in functions if f.name.startswith("_") and not f.name.startswith("__")
        ]
        tokens = [token for module in files for token in module.tokens]
        counts = collections.Counter(
            {
                "lines": sum(
                    len((root / module.path).read_text().splitlines()) for module in files
                ),
                "functions": len(functions),
                "single": len(single),
                "of lines": sum((f.end_lineno or 0) - f.lineno + 1 for _, f in single),
                "private": len(private),
                "documented": sum(ast.get_docstring(f) is not None for f in private),
                "comments": sum(token.type == tokenize.COMMENT for token in tokens),
                "participles": sum(
                    token.type == tokenize.NAME and token.string in PARTICIPLES for token in tokens
                ),
                "shared": sum(tops[name] > 1 for module in files for name in module.top()),
                "any": len(
                    {(m.path, t.start[0]) for m in files for t in m.tokens if t.string == "Any"}
                ),
            }
        )
        total += counts
        print(_line(package, counts))
        if listed:
            for module, function in single:
                print(f"    single      {module.path}:{function.lineno} {function.name}")
            for module in files:
                for name in sorted(name for name in module.top() if tops[name] > 1):
                    print(f"    shared      {module.path} {name}")
    print(_line("all", total))


def _line(package: str, counts: collections.Counter[str]) -> str:
    cells = [f"{counts[column]}" for column in COLUMNS]
    cells[COLUMNS.index("comments")] = f"{counts['comments'] / counts['lines']:.1%}"
    return f"{package:<8}" + "".join(f"{cell:>13}" for cell in cells)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name what is counted")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="a checkout")
    arguments = parser.parse_args()
    report(arguments.root, arguments.list)
