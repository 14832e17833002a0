"""Bad data: arrays, examples, tables, archives and texts that a user brings."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import dynsim
import odes
import sweeps
from dynsim import LanguageModel, Text, TextFile, TextFolder, numeric
from dynsim.classes import corpus, estimate_classes, load_corpus, synthetic_corpus
from dynsim.classes.overlap import owned
from dynsim.classes.tasks import TaskTable
from dynsim.decoding import Share
from dynsim.problem.base import FullBatch
from dynsim.transformer.network import Transformer
from dynsim.yz import sampling
from dynsim.yz.model import Examples
from tests.doors import refuses

pytestmark = pytest.mark.usefixtures("unchecked")
Rows = list[tuple[Callable[[Path], object], tuple[str, ...]]]
KEY, SGD = jax.random.key(0), dynsim.sgd(0.1)
Y, X = np.arange(1.0, 21.0), np.random.default_rng(0).normal(size=(20, 3))
WIDE = np.finfo(np.longdouble).eps < np.finfo(np.float64).eps
"""Whether long doubles have more digits than float64 on this machine."""

KEPT: dict[str, tuple[Any, Any]] = {
    "big-endian": (Y.astype(">f4"), "f4"),
    "big-endian integers": (Y.astype(">i8"), "i8"),
    "big-endian complex": ((Y + 1j).astype(">c16"), "c16"),
    "long doubles": (Y.astype(np.longdouble), "f8"),
    "half precision": (Y.astype("f2"), "f2"),
    "bfloat16": (Y.astype(ml_dtypes.bfloat16), ml_dtypes.bfloat16),
    "bools": (Y > 3, bool),
    "list": (Y.tolist(), "f8"),
    "largest integer": (np.array([2**31 - 1, -(2**31)]), "i8"),
    "largest without a sign": (np.array([2**32 - 1], np.uint64), "u8"),
    "nothing masked": (np.ma.masked_equal(Y, 0.5), "f8"),
    "largest of float32": (np.array([np.finfo("f4").max], float), "f8"),
    "nothing": (np.zeros((0, 3)), "f8"),
}


@pytest.mark.parametrize("name", KEPT)
def test_arrays_that_jax_can_hold_are_kept_exactly(name: str) -> None:
    given, dtype = KEPT[name]
    found = numeric.array("y", given)
    assert type(found) is np.ndarray
    assert (found.dtype, found.dtype.isnative) == (np.dtype(dtype), True)
    np.testing.assert_array_equal(np.asarray(jnp.asarray(found)), np.asarray(given))


def test_numbers_and_arrays_of_jax_stay_what_they_are() -> None:
    for given in (1.5, np.float32(1.5), jnp.arange(3.0), jax.random.key(0), np.arange(3.0)):
        assert numeric.array("y", given) is given
    tree = {"x": np.arange(3.0), "f": abs, "n": 3, "inf": float("inf"), "none": None}
    assert numeric.tree("data", tree) is tree
    assert jax.vmap(lambda y: numeric.array("y", y))(jnp.full(3, jnp.nan)).shape == (3,)
    numeric.array("y", np.array([1e200]), "float64")
    found = numeric.array("y", np.array([np.nan, -np.inf, 1.0]), finite=False)
    np.testing.assert_array_equal(found, [np.nan, -np.inf, 1.0])
    assert numeric.integers("tokens", [1, 2]).tolist() == [1, 2]


class Metres(np.ndarray):
    """An array with a unit, as other packages have them."""


WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "large": (np.where(Y == 4, 2**32 + 3, 7), ("y[3]", "4294967299", "largest", "1 of 20")),
    "negative": (np.array([[1, 2], [3, -(2**40)]]), ("y[1, 1]", "-1099511627776", "smallest")),
    "without a sign": (np.array([2**32], np.uint64), ("y[0]", "4294967296", "uint32")),
    "masked": (np.ma.masked_equal(Y, 5), ("y[4]", "masked", "1 of 20")),
    "structured": (np.zeros(3, [("a", int), ("b", float)]), ("y", "structured", "'a', 'b'")),
    "unit": (np.zeros(3).view(Metres), ("y", "Metres")),
    "ragged": ([[1.0, 2.0], [3.0]], ("y", "array of numbers")),
    "dates": (np.arange(3).astype("M8[ms]"), ("y", "datetime")),
    "text": (np.array(["1"]), ("y", "array of numbers")),
    "objects": (np.array([1, None]), ("y", "object")),
    "bytes": (np.zeros(2, "V8"), ("y", "array of numbers")),
    "nan": (np.where(Y > 18, np.nan, Y), ("y[18]", "nan", "finite", "2 of 20")),
    "infinite": (np.array([[0, -np.inf]]), ("y[0, 1]", "-inf", "finite")),
    "bfloat16": (np.array([1, np.nan], ml_dtypes.bfloat16), ("y[1]", "nan", "finite")),
    "imaginary": (np.array([1, 1 + 1j * np.nan]), ("y[1]", "nan", "finite")),
    "overflow": (np.where(Y == 2, 1e200, Y), ("y[1]", "1e+200", "float32", "1 of 20")),
    "just over": (np.array([3.4028236e38]), ("y[0]", "float32")),
    "imaginary overflow": (np.array([1 - 1e39j]), ("y[0]", "float32")),
    "single": (1e200, ("y", "1e+200", "float32")),
}
if WIDE:
    more = np.array([1, 1, np.longdouble(1) + np.finfo(np.longdouble).eps])
    WRONG["rounded"] = (more, ("y[2]", "1.0000", "float64"))
    WRONG["too large"] = (np.array([np.longdouble("1e400")]), ("y[0]", "1e+400", "float64"))


@pytest.mark.parametrize("name", WRONG)
def test_arrays_that_jax_would_change_are_errors(name: str) -> None:
    given, named = WRONG[name]
    refuses(lambda: numeric.array("y", given), *named)


class Mean(dynsim.Problem):
    """The number nearest to numbers: |w - y|^2 / 2, from w = 0."""

    y: Any

    def init(self, key: Any) -> Any:
        return jnp.zeros(())

    def numbers(self) -> Any:
        return self.y.train["y"] if isinstance(self.y, dynsim.Arrays) else jnp.asarray(self.y)

    def draw(self, key: Any, batch: int) -> Any:
        y = jnp.asarray(self.numbers())
        return y[jax.random.randint(key, (batch,), 0, len(y))]

    def loss(self, params: Any, data: Any) -> Any:
        return jnp.mean(jnp.abs(params - data) ** 2) / 2

    def population_loss(self, params: Any) -> Any:
        return self.loss(params, self.numbers())


class Fixed(Mean):
    def draw(self, key: Any, batch: int) -> Any:
        return np.full(batch, 2**40)


WAYS: dict[str, Callable[..., object]] = {
    "train": lambda problem, **more: dynsim.train(problem, SGD, KEY, **{"steps": 2} | more),
    "flow": lambda problem, **more: odes.flow(problem, SGD, **{"times": [0, 5]} | more, key=KEY),
    "sweep": lambda problem, **more: sweeps.run(
        sweeps.Sweep(sweeps.Experiment(problem, SGD, 5), {"eta": more.get("eta", [0.1])}),
        progress=False,
    ),
}
KINDS = {
    "integers": (np.full(20, 2**32 + 3), ("4294967299", "20 of 20")),
    "masked": (np.ma.masked_equal(Y, 2), ("[1]", "masked", "1 of 20")),
    "missing": (np.where(Y == 3, np.nan, Y), ("[2]", "nan", "finite")),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_arrays_are_errors_wherever_they_come_in(kind: str, way: str) -> None:
    y, named = KINDS[kind]
    refuses(lambda: WAYS[way](Mean(y)), ".y", *named)
    refuses(lambda: WAYS[way](Mean(dynsim.Arrays({"y": y}))), "arrays['y']", *named)
    if way == "train":
        at = [word.replace("[", "[0, ") for word in named]
        refuses(lambda: WAYS[way](Mean(Y), data={"y": y.reshape(2, 10)}), "data['y']", *at)
    if way != "sweep" and kind == "masked":
        times = np.ma.masked_equal([0, 1, 2], 1)
        refuses(lambda: WAYS[way](Mean(Y), times=times), "times")
        refuses(lambda: WAYS[way](Mean(Y), times=np.array([0, 1j])), "times")


TABLE = "query,0,1,2,3,prior,next_token\n0,0.5,0.5,0,0,0.25,2\n1,0.5,0.25,0.25,0,0.75,3\n"
GOOD = np.array([[0.5, 0.5, 0, 0], [0.5, 0, 0.25, 0.25]])
SMALL = dynsim.SynSmall().build()


class Pair(dynsim.Task):
    share: Share = eqx.field(static=True, default=0.5)

    def build(self) -> dynsim.SequenceClasses:
        return dynsim.sequence_classes([[self.share, 1 - self.share], [0, 1]], [0, 1])


def table(**change: Any) -> Callable[[Path], object]:
    return lambda _: dynsim.sequence_classes(**{"probs": GOOD, "query": [0, 1]} | change)


def csv(text: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        (path / "task.csv").write_text(text)
        return dynsim.TaskFile(path / "task.csv").build()

    return read


def npz(*files: dict[str, Any], build: Any = dynsim.ArrayFile) -> Callable[[Path], object]:
    """Read a folder of archives, or one of them."""

    def read(path: Path) -> object:
        for name, arrays in zip("ab", files, strict=False):
            np.savez(path / f"{name}.npz", **arrays)
        return build(path if len(files) != 1 else path / "a.npz").build()

    return read


def npz_claims(size: int) -> Callable[[Path], object]:
    """An entry whose size is forged in the directory at the end, at byte 24 of its record."""

    def read(path: Path) -> object:
        with zipfile.ZipFile(path / "task.npz", "w") as archive:
            archive.writestr("probs.npy", b"")
        content = bytearray((path / "task.npz").read_bytes())
        at = content.index(b"PK\x01\x02") + 24
        content[at : at + 4] = size.to_bytes(4, "little")
        (path / "task.npz").write_bytes(content)
        return dynsim.TaskFile(path / "task.npz").build()

    return read


def task_file(name: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        (path / "folder.npz").mkdir()
        return dynsim.TaskFile(path / name).build()

    return read


def recorded(tokens: Any, labels: Any) -> Callable[[Path], object]:
    read = sampling.examples_from_tokens
    return lambda _: read(SMALL, np.array(tokens), np.array(labels))


def layer(E: int, M: int, steps: int = 3) -> Callable[[Path], object]:
    data = lambda: Examples(np.zeros((steps, 1), int), np.ones((steps, E, M)))
    return lambda _: dynsim.train(dynsim.Layer(SMALL), SGD, KEY, steps=3, data=data())


def texts(path: Path) -> Path:
    lines = [f"{'a' * (i % 3 + 1)} b c" for i in range(50)]
    (path / "one.txt").write_text("\n".join(lines) + "\n")
    (path / "train.txt").write_text("x y x y x z x y\n" * 4)
    (path / "valid.txt").write_text("y x q z z y x\n")
    (path / "test.txt").write_text("c\n")
    (path / "short.txt").write_text("a a a\n")
    (path / "empty.txt").write_text("\n \n")
    (path / "latin.txt").write_bytes("café\n".encode("latin-1"))
    (path / "folder").mkdir()
    return path


def loaded(name: str = "", **options: Any) -> Callable[[Path], object]:
    return lambda path: load_corpus(texts(path) / name, **options)


def language(source: Callable[[Path], Any], **fields: Any) -> Callable[[Path], object]:
    sizes = {"width": 4, "mlp": 0, "length": 5, "num_held_out": 2} | fields
    return lambda path: LanguageModel(source(texts(path)), **sizes).build(SGD)


A, B, C, Q, R, X_, Y_ = 4, 5, 6, 0, 1, 2, 3
WORDS = ("q", "r", "x", "y", "a", "b", "c", "<unk>")
TEXT = [A, A, Q, X_, A, B, Q, X_, B, B, Q, Y_, C]


def estimated(text: Any = TEXT, words: Any = WORDS, **options: Any) -> Callable[[Path], object]:
    options = {"num_queries": 1, "classes_per_query": 1, "length": 3} | options
    return lambda _: estimate_classes(text, words, **options)


def transformed(**fields: Any) -> Callable[[Path], object]:
    sizes = {"vocabulary": 11, "length": 7, "width": 6, "heads": 2} | fields
    return lambda _: dynsim.TransformerSpec(**sizes)


def eight_tokens(_: Path) -> object:
    sizes = dynsim.TransformerSpec(11, 7, 1, 2, 6)
    model = jax.eval_shape(lambda: Transformer(sizes, KEY))
    return jax.eval_shape(Transformer.__call__, model, jnp.zeros(8, int))


ONE, TOKENS = lambda p: TextFile(p / "one.txt"), np.arange(60) % 9
TRAINED = {"steps": 1, "batch": float("inf")}
ROWS: Rows = [
    (lambda _: numeric.tree("data", {"x": [np.array([1, np.inf])]}), ("data['x'][0][1]", "inf")),
    (lambda _: numeric.array("y", np.array([np.nan, 1e200]), finite=False), ("y[1]", "1e+200")),
    (lambda _: numeric.integers("tokens", [1.5, 2.0]), ("tokens", "float64", "whole")),
    (lambda _: WAYS["train"](Fixed(Y)), ("Fixed.draw", "1099511627776")),
    (lambda _: WAYS["flow"](FullBatch(Mean(Y), [np.full(8, np.nan)])), ("data[0][0]", "nan")),
    (lambda _: dynsim.train(Mean(Y), dynsim.sgd(1e200), KEY, steps=1), ("eta", "1e+200")),
    (lambda _: WAYS["train"](Mean(Y), init=np.float64(1e200), **TRAINED), ("init", "1e+200")),
    (lambda _: WAYS["train"](Mean(Y), init=np.array(1j), **TRAINED), ("init", "real weights")),
    (lambda _: WAYS["sweep"](Mean(Y), eta=np.ma.masked_equal([0.1, 0.2], 0.2)), ("eta", "[1]")),
    (lambda _: dynsim.Arrays({"x": X, "y": Y[1:]}), ("arrays", "same number")),
    (lambda _: dynsim.Arrays({"x": np.ones(())}), ("arrays", "same number")),
    (lambda _: dynsim.Arrays({}), ("arrays", "same number")),
    (lambda _: dynsim.Arrays({"x": X}, test=0.99), ("at least one",)),
    (lambda _: dynsim.Arrays({"x": X}, test=1.0), ("test", "1.0", "[0, 1)")),
    (lambda _: dynsim.Arrays({"x": np.array(["a"])}), ("arrays['x']", "numbers")),
    (lambda _: dynsim.Arrays({"x": X}, replace=False).draw(KEY, 21), ("batch", "21", "20")),
    (lambda p: dynsim.ArrayFile(p / "none.npz").build(), ("none.npz", ".npz")),
    (npz(), (".npz",)),
    (npz({"x": X}, {"y": Y}), ("same names",)),
    # Joined with float32, the integers would be rounded.
    (npz({"y": np.array([2**53 + 1])}, {"y": np.ones(1, "f4")}), ("a.npz", "9007199254740993")),
    (lambda p: (p / "a.npz").write_text("x") and dynsim.ArrayFile(p / "a.npz").build(), (".npz",)),
    (table(probs=[[0.6, 0.5, -0.1, 0], GOOD[1]]), ("probs[0] (class 0), token 2", "-0.1")),
    (table(probs=[GOOD[0], [0.5, np.nan, 0.5, 0]]), ("probs[1] (class 1), token 1", "nan")),
    (table(probs=[[0.5, 0.5 + 1.1e-5, 0, 0], GOOD[1]]), ("probs[0] (class 0)",)),
    (table(probs=[[0.5, 0.5 - 1.1e-5, 0, 0], GOOD[1]]), ("probs[0] (class 0)",)),
    (table(probs=[[0, 0, 0, 0], GOOD[1]]), ("probs[0] (class 0)", "support")),
    (table(probs=np.full((5, 4), 0.25), query=[0] * 5), ("K = 5", "M = 4")),
    (table(probs=[0.5, 0.5]), ("probs", "(K, M)")),
    (table(probs=[[], []]), ("probs", "(K, M)")),
    (table(probs=[[1.0]], query=[0]), ("M = 1", "2 tokens")),
    (table(probs=[["a", "b"]]), ("probs", "real numbers")),
    (table(query=[0, 4]), ("query[1] (class 1)", "4", "[0, 4)")),
    (table(query=[0, -1]), ("query[1] (class 1)", "-1")),
    (table(query=[0, 1.5]), ("query[1] (class 1)", "1.5")),
    (table(query=[0]), ("query", "(2,)")),
    (table(next_token=[2, 2]), ("next_token[1] (class 1)", "2", "class 0")),
    (table(next_token=[2, 9]), ("next_token[1] (class 1)", "9")),
    (table(prior=[1.0]), ("prior", "(2,)", "(1,)")),
    (table(prior=[0.5, 0.6]), ("prior", "1.1")),
    (table(prior=[1.0, 0.0]), ("prior[1] (class 1)", "0", "positive")),
    (table(prior=[1.5, -0.5]), ("prior, class 1", "-0.5")),
    (lambda _: TaskTable([["a"]], [0, 1]), ("probs", "real numbers")),
    (lambda _: Pair(1.5), ("share", "1.5", "[0, 1]")),
    (lambda _: dynsim.SynSmall("other"), ("layout", "'other'", "authors, paper")),
    (lambda _: dynsim.SynMedium(0), ("num_queries", "0", ">= 1")),
    (lambda _: dynsim.Syn(classes_per_query=0), ("classes_per_query", "0", ">= 1")),
    (lambda _: dynsim.Syn(M=78), ("M", "78", ">= 79")),
    (lambda _: dynsim.Syn(num_common=0, num_distinct=0), ("at least one token",)),
    (lambda _: dynsim.Overlapping(overlap=1.0), ("overlap", "1.0", "[0, 1)")),
    (lambda _: dynsim.JoMAClasses("wide"), ("frequencies", "'wide'", "bumps, random")),
    *((lambda _, t=t: owned(SMALL, t), ("threshold", str(t), "(0.5, 1]")) for t in (0.5, 1.001)),
    (csv(TABLE.replace("0.25,2\n", "0.25\n")), ("task.csv", "line 2", "6 columns")),
    (csv(TABLE.replace("0.5,0.25", "0.5,half")), ("line 3, column '1'", "'half'")),
    (csv(TABLE.replace("\n", "\n\n", 1).replace("0.25,0.25", "half,0")), ("line 4, column '1'",)),
    (csv(TABLE.replace(",", ";")), ("line 1", "';'", "','")),
    (csv(TABLE.replace("prior", "query")), ("line 1", "two columns 'query'")),
    (csv(TABLE.splitlines()[0]), ("task.csv",)),
    (csv(""), ("task.csv",)),
    (csv(TABLE.replace("query", "quary")), ("task.csv", "query")),
    (csv(TABLE.replace("0.5,0.5", "0.5,0.4")), ("task.csv", "probs[0] (class 0)", "0.9")),
    (npz({"probs": np.eye(2)}, build=dynsim.TaskFile), ("a.npz", "query")),
    # Objects would be made by what is written in the file.
    (npz({"probs": np.array([[0.5, None]], object), "query": [0]}, build=dynsim.TaskFile),
     ("Object arrays",)),
    (npz_claims(2**31), ("task.npz", "lacks")),
    (npz_claims(2**31 + 1), (f"{2**31 + 1} bytes", f"{2**31}")),
    (task_file("absent.npz"), ("absent.npz", "no such file")),
    (task_file("task.txt"), ("task.txt", ".npz or .csv")),
    (task_file("folder.npz"), ("folder.npz", "file")),
    (lambda p: dynsim.save_task(p / "task.csv", SMALL), ("task.csv", ".npz")),
    (recorded([[[0, 1, 30]]], [[5]]), ("labels", "5")),
    (recorded([4 * [[0, 1, 30]]], [[32, 6, 33, 5]]), ("labels", "6")),
    (recorded([[[0, 1, 30]]], [[33]]), ("query",)),
    *((recorded([[[0, t, 30]]], [[32]]), ("tokens", str(t), "[0, 34)")) for t in (34, -1)),
    (recorded([[[30]]], [[32]]), ("tokens", "(1, 1, 1)", "T >= 2")),
    (recorded([[0, 1, 30]], [[32]]), ("tokens", "(1, 3)")),
    (layer(1, 34, steps=2), ("data.classes", "steps = 3")),
    (layer(1, 33), ("data.counts", "M = 34")),
    (layer(2, 34), ("data.counts", "M = 34")),
    (loaded(train="none.txt"), ("train", "none.txt", "no such file")),
    (loaded(valid="none.txt"), ("valid", "none.txt", "valid=None")),
    (loaded(train="empty.txt"), ("train", "empty.txt", "empty")),
    (loaded(train="latin.txt"), ("train", "latin.txt", "UTF-8")),
    (loaded(train="folder"), ("train", "folder", "file")),
    (loaded(min_count=99), ("vocabulary", "min_count = 99")),
    (loaded(min_count=0), ("min_count", "0", ">= 1")),
    (loaded(max_vocabulary=2), ("max_vocabulary", "2", ">= 3")),
    (loaded("nowhere"), ("path", "nowhere", "no such file")),
    (loaded("a\0b"), ("path", "readable")),
    (lambda p: load_corpus(texts(p)).ids("abc"), ("words", "'abc'")),
    (lambda p: load_corpus(texts(p), valid=None).held_out, ("validation",)),
    (lambda _: corpus.batches(TOKENS, 4, 0), ("batch", "0", ">= 1")),
    (lambda _: corpus.batches(TOKENS, 0, 2), ("length", "0", ">= 1")),
    (lambda _: corpus.batches(TOKENS[:8], 4, 2), ("tokens", "8", "9", "batch = 2")),
    (lambda _: corpus.sample_windows(TOKENS, KEY, 0, 4), ("batch", "0", ">= 1")),
    (lambda _: corpus.sample_windows(TOKENS[:4], KEY, 2, 4), ("tokens", "4", "5")),
    *((lambda _, n=n, v=v: synthetic_corpus(**{n: v}), (n, str(v), f">= {v + 1}"))
      for n, v in (("num_sentences", 19), ("words_per_sentence", 0), ("sentences_per_topic", 0),
                   ("seed", -1))),
    *((lambda _, s=s: synthetic_corpus(topic_share=s), ("topic_share", str(s), "(0, 1)"))
      for s in (0.0, 1.0)),
    (estimated(length=13), ("tokens", "13", "length = 13")),
    (estimated(num_queries=9), ("num_queries", "9", "only")),
    (estimated(classes_per_query=3), ("num_queries", "1", "only 0")),
    (estimated(num_queries=2, classes_per_query=2, exclude="ab"), ("num_queries", "2", "only 1")),
    (estimated(num_queries=0), ("num_queries", "0", ">= 1")),
    (estimated(rare="keep"), ("rare", "'keep'", "drop, merge")),
    (estimated(stop_words=8), ("stop_words", "8")),
    # The contexts of q x are stop words, those of q y are not.
    (estimated([A, A, Q, X_, A, A, Q, X_, B, A, Q, Y_], classes_per_query=2, stop_words=1),
     ("stop_words", "1")),
    (estimated(words=WORDS[:6]), ("tokens", "6", "[0, 6)")),
    (estimated(words=WORDS[:7], rare="merge"), ("rare", "'merge'", "<unk>")),
    (estimated([A, Q, X_, A, Q, X_, A, R, X_], num_queries=2, length=2, exclude="a"),
     ("classes_per_query", "1", "only 0")),
    (language(lambda p: "one.txt"), ("corpus", "'one.txt'", "dynsim")),
    (language(lambda p: TextFile("no.txt")), ("path", "no.txt", "no such file")),
    (language(TextFile), ("path", "file")),
    (language(lambda p: TextFolder("no")), ("train", "'train.txt'", "'no'")),
    (language(lambda p: TextFolder(p, held_out="no")), ("held_out", "'no'")),
    (language(lambda p: TextFile(p / "one.txt", min_count=0)), ("min_count", "0", ">= 1")),
    (language(lambda p: TextFile(p / "short.txt")), ("held-out",)),
    (language(ONE, prompt=6), ("prompt", "6", "length = 5", "10")),
    (language(ONE, prompt=-1), ("prompt", "-1", ">= 0")),
    (language(ONE, length=10), ("held_out", "10", "length = 10")),
    (language(ONE, heads=3), ("heads", "3", "width = 4")),
    (lambda _: LanguageModel().init(KEY), ("SyntheticText", "read")),
    (lambda _: dynsim.train(LanguageModel(Text(TOKENS, TOKENS, 9)), SGD, KEY, steps=2,
                            batch=float("inf")), ("batch", "inf", "LanguageModel")),
    (lambda _: Text(TOKENS + 1, TOKENS, 9), ("train", "9", "[0, vocabulary = 9)")),
    (lambda _: Text(TOKENS, TOKENS - 1, 9), ("held_out", "-1", "[0, vocabulary = 9)")),
    (lambda _: Text(TOKENS * 1.0, TOKENS, 9), ("train", "whole")),
    (lambda _: Text(TOKENS, TOKENS[None], 9), ("held_out", "1 axes")),
    (lambda _: Text(TOKENS, TOKENS, 9, np.full((1, 3), 9)), ("prompts", "9")),
    (lambda _: Text(TOKENS, TOKENS, 1), ("vocabulary", "1", ">= 2")),
    (lambda _: LanguageModel(Text(TOKENS, TOKENS, 9), length=60), ("train", "60", "length = 60")),
    (lambda _: LanguageModel(Text(TOKENS, TOKENS, 9, TOKENS[None, :5]), length=4),
     ("prompts", "5", "length = 4")),
    *((transformed(**{f: v}), (f, str(v), said)) for f, v, said in (
        ("vocabulary", 1, ">= 2"), ("length", 1, ">= 2"), ("layers", 0, "1"), ("layers", 7, "6"),
        ("heads", 4, "width = 6"), ("mlp", -1, "0"), ("width", 0, ">= 1"),
        ("positions", "sinusoidal", "learned"))),
    (eight_tokens, ("tokens", "8", "7")),
]  # fmt: skip


@pytest.mark.parametrize(("call", "named"), ROWS)
def test_examples_tables_and_texts(
    call: Callable[[Path], object], named: tuple[str, ...], tmp_path: Path
) -> None:
    refuses(lambda: call(tmp_path), *named)


def test_a_damaged_archive_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    want = dynsim.SynSmall("paper").build()
    dynsim.save_task(tmp_path / "task.npz", want)
    whole, damaged = (tmp_path / "task.npz").read_bytes(), tmp_path / "damaged.npz"
    rng, errors = np.random.default_rng(0), 0
    for trial in range(200):
        content = bytearray(whole)
        if trial % 4 == 0:
            del content[rng.integers(len(content)) :]
        else:
            content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        damaged.write_bytes(content)
        # What zip does not check, such as a time, changes nothing.
        read = lambda: dynsim.TaskFile(damaged).build()
        try:
            assert eqx.tree_equal(read(), want)
        except ValueError:
            refuses(read, str(damaged))
            errors += 1
    assert errors > 100
