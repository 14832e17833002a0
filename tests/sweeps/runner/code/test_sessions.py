"""Code that changes while a session lives: `python -i`, in which what a function reads or calls
becomes another one while the function stays the same object."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import functools, json, types
import dynsim, equinox as eqx, jax, jax.numpy as jnp, sweeps
F = 1.0
class Net(dynsim.Problem):
    def init(self, key):
        return jax.random.normal(key, (3,))
    def draw(self, key, batch):
        return jax.random.normal(key, (batch, 3))
    def loss(self, params, data):
        return scale() * jnp.mean((data @ params) ** 2)

def scale():
    return 1.0

def run(problem, out, record):
    axes = {"eta": [1e-5, 2e-5], "seed": [0, 1]}
    run = sweeps.Experiment(problem, dynsim.sgd(0.1), 2, 4)
    try:
        sweep = sweeps.Sweep(run, axes, record=record)
        return float(sweeps.run(sweep, out, progress=False)[sweep.names[0]].mean())
    except ValueError as error:
        return str(error).splitlines()[0]

def show(row, problem=None, record="batch_loss"):
    print(json.dumps([row, *(run(problem or Net(), out, record) for out in (row, None))]))

"""
ROWS = {
    "global": ("", "F"),
    "scan": ("def body(c, _): return c * F, None", "jax.lax.scan(body, 1.0, None, 1)[0]"),
    "cond": ("def body(c): return c * F", "jax.lax.cond(jnp.array(True), body, body, 1.0)"),
    "switch": ("def body(c): return c * F", "jax.lax.switch(jnp.array(0), [body, body], 1.0)"),
    "while_loop": (
        "def less(c): return c[0] < 1\ndef body(c): return c[0] + 1, c[1] * F",
        "jax.lax.stop_gradient(jax.lax.while_loop(less, body, (0, 1.0))[1])",
    ),
    "fori_loop": ("def body(i, c): return c * F", "jax.lax.fori_loop(0, 1, body, 1.0)"),
    "piecewise": (
        "def body(c): return c * F",
        "jnp.piecewise(jnp.ones(()), [jnp.array(True)], [body])",
    ),
    "jit": ("@jax.jit\ndef body(): return 1.0 * F", "body()"),
    "filter_jit": ("@eqx.filter_jit\ndef body(c): return c * F", "body(jnp.ones(()))"),
    "checkpoint": ("@jax.checkpoint\ndef body(c): return c * F", "body(jnp.ones(()))"),
    "lru_cache": ("@functools.lru_cache\ndef body(): return F", "body()"),
    # Not named by anybody before.
    "helper_of_a_cache": (
        "def helper(): return [F for _ in range(1)][0]\n"
        "@functools.cache\ndef body(x): return x * helper()",
        "body(1.0)",
    ),
    "jit_of_a_method": (
        "class Body:\n    @functools.partial(jax.jit, static_argnums=0)\n"
        "    def at(self, c): return c * F\n"
        "BODY = Body()",
        "BODY.at(1.0)",
    ),
    "associative_scan": (
        "def body(a, b): return a * b * F",
        "jax.lax.associative_scan(body, jnp.ones(2))[1]",
    ),
    "custom_gradient": (
        "@jax.custom_vjp\ndef body(c): return c * F\n"
        "body.defvjp(lambda c: (body(c), None), lambda kept, g: (g * F,))",
        "body(jnp.ones(()))",
    ),
    "jit_in_a_jit": (
        "@jax.jit\ndef inner(c): return c * F\n@jax.jit\ndef body(c): return inner(c)",
        "body(1.0)",
    ),
}
"""Definitions, and the scale of the loss, which reads `F` by way of them."""
OTHERS = {
    "class": (
        "class Other(Net):\n"
        "    def loss(self, params, data, f=F): return f * jnp.mean((data @ params) ** 2)\n",
        "Other()",
        "'batch_loss'",
    ),
    # Whose modules are said to be Python's, or JAX's.
    "new_class": (
        "class Loss:\n"
        "    def loss(self, params, data): return F * jnp.mean((data @ params) ** 2)\n",
        "types.new_class('Other', (Loss, Net))()",
        "'batch_loss'",
    ),
    "module_types": (
        "module = types.ModuleType('types')\n"
        "vars(module).update(Net=Net, jnp=jnp, F=F)\n"
        "exec('class Other(Net):\\n    def loss(self, params, data):\\n'\n"
        "     '        return F * jnp.mean((data @ params) ** 2)\\n', vars(module))\n",
        "module.Other()",
        "'batch_loss'",
    ),
    "wrapper_of_jnp": (
        "@functools.wraps(jnp.sum)\ndef seen(problem, params): return F * jnp.sum(params**2)\n",
        "Net()",
        "[{'seen': seen}]",
    ),
}
"""Definitions that are made again, problem and `record`."""
FEW = ("global", "class", "scan", "jit", "lru_cache", "new_class", "wrapper_of_jnp")


def lines(row: str) -> list[str]:
    """What somebody types, each a single line."""
    if row in ROWS:
        code, scale = ROWS[row]
        define, show = f"exec({code!r})", f"show({row!r})"
        return [f"scale = lambda: {scale}", "F = 1.0", define, show, "F = 100.0", show]
    code, problem, record = OTHERS[row]
    define, show = f"exec({code!r})", f"show({row!r}, {problem}, {record})"
    return ["scale = lambda: 1.0", "F = 1.0", define, show, "F = 100.0", define, show]


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.more
def test_what_a_function_reads_changes_and_the_function_does_not(few: bool, tmp_path: Path) -> None:
    """In memory the numbers are the new ones, and a store is not resumed."""
    rows = [row for row in (*ROWS, *OTHERS) if (row in FEW) == few]
    head = f"import sys; sys.path.insert(0, {sys.path[0]!r}); exec({HEAD!r})"
    found = subprocess.run(
        [sys.executable, "-i", "-q", "-c", head],
        cwd=tmp_path,
        input="\n".join([*(line for row in rows for line in lines(row)), ""]),
        capture_output=True,
        text=True,
        check=False,
    )
    printed = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("[")]
    assert [row for row, *_ in printed] == [row for row in rows for _ in range(2)], found.stderr
    for (row, *first), (_, stored, memory) in zip(printed[::2], printed[1::2], strict=True):
        assert first[0] == first[1], row
        assert stored == f"{row}: the stored runs were computed by different code"
        # Two small steps change the loss by 1 %.
        assert memory == pytest.approx(100 * first[1], rel=0.1), row
