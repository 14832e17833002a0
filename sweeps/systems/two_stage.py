"""Normalised-ReLU attention on P/Q prompts (two-stage dynamics): training and the reduced ODE."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

import annotated_types as at
import numpy as np
from jaxtyping import Array, Float

from dynsim import Rule, checks
from dynsim.decoding import Count, NotNegative, Positive, Share, Size, Tokens
from dynsim.precision import DType
from dynsim.training.run_checks import check_step_times
from dynsim.two_stage.annealing import Annealing, Control, noisy_sgd
from dynsim.two_stage.presets import PRESETS, Preset, starting_noise
from dynsim.two_stage.task import Core, Prompts
from odes.two_stage import LADDER
from sweeps.systems.base import Fields, Labels, Run, Settings, Times
from sweeps.systems.problems.options import problem_system
from sweeps.systems.problems.parts import Taken, replaced
from sweeps.systems.problems.run import Fixed, ProblemRun

TASK_NUMBERS = ("gamma0", "s1", "s2", "r", "coupling")
RATES = ("eta_1", "eta_2", "decay", "tau", "stage_2")
SIZES = ("d", "length", "batch", "pool", "num_test")
Tests = Annotated[int, at.Ge(2), at.Le(2**31 - 1)]
"""How many prompts a loss is measured on."""


@dataclasses.dataclass(frozen=True)
class TwoStage(ProblemRun):
    """Two-stage training on prompts. Omitted numbers are those of the preset.

    Attributes:
        task: prompts.
        preset: default (each component has its own loss), fast (smaller and quicker) or joint (one
            loss of the summed outputs, with a larger r).
        control: none; forever (keep the large rate to the end); small (use the small rate from the
            start); or smallinit (small, with starting weights stationary for that rate).
        d: size of each of the two blocks of a token.
        length: prompt length L including the query.
        gamma0: margin of component P.
        s1: standard deviation of the Gaussian part of P.
        s2: standard deviation of the Gaussian part of Q.
        r: length of the shift that marks the negative class of Q.
        coupling: c of the loss (1 - c)(K1 + K2) + c J, in [0, 1].
        decay: weight decay lambda.
        tau: stationary standard deviation of a weight's noise at eta_1.
        tau_0: standard deviation of the starting weights; tau if omitted, unless the control sets
            it.
        eta_1: learning rate of the first stage, which lasts 1/(4 lambda) in eta-time.
        eta_2: learning rate of the second stage.
        stage_2: length of the second stage in eta-time, in units of 1/lambda.
        batch: prompts per step.
        pool: number of training prompts.
        num_test: number of fresh prompts to measure losses and accuracies on.
        core: Gaussian part of Q: fresh for every token, or one fixed vector.
        bias: also train a scalar that is added to the output of component Q.
        dtype: precision of training; the theory is solved in float64.
    """

    NAME: ClassVar = "two_stage"
    AXES: ClassVar = Fields(
        traced=(*TASK_NUMBERS, *RATES[:-1], "tau_0", "stage_2"),
        static=(*SIZES, "control", "core"),
        whole=SIZES,
        words={"control": get_args(Control), "core": get_args(Core)},
    )

    task: Literal["prompts"] = "prompts"
    preset: Preset = "default"
    control: Control = "none"
    d: Size | None = None
    length: Tokens | None = None
    gamma0: NotNegative | None = None
    s1: NotNegative | None = None
    s2: NotNegative | None = None
    r: Positive | None = None
    coupling: Share | None = None
    decay: Positive | None = None
    tau: NotNegative | None = None
    tau_0: NotNegative | None = None
    eta_1: Positive | None = None
    eta_2: Positive | None = None
    stage_2: Positive | None = None
    batch: Count | None = None
    pool: Count | None = None
    num_test: Tests = 2048
    core: Core = "fresh"
    bias: bool = False
    dtype: DType = "float32"

    def value(self, name: str) -> Any:
        """The field `name`, or that of the preset where it is left out."""
        checks.choice("preset", self.preset, tuple(PRESETS))
        given = getattr(self, name)
        return PRESETS[self.preset].get(name) if given is None else given

    @property
    def rule(self) -> Rule:
        """The schedule and the noise."""
        rates = {name: self.value(name) for name in RATES}
        return noisy_sgd(**rates, control=self.control)

    @property
    def problem(self) -> Any:
        """The prompts."""
        own = {name: self.value(name) for name in (*TASK_NUMBERS, "d", "length", "pool")}
        start = self.tau_0
        if start is None:
            start = starting_noise(self.rule, self.value("tau"), self.control)
        more = {"tau_0": start, **{n: getattr(self, n) for n in ("num_test", "core", "bias")}}
        return replaced(Prompts(), {**own, **more})

    @property
    def stages(self) -> Annealing:
        """The same, stage by stage."""
        return Annealing.of(self.rule)

    @property
    def parts_of_problem(self) -> Taken:
        """As of every problem; but the coupling 0 is no number that is traced, so that the theory
        leaves out what only J needs."""
        found, coupling = super().parts_of_problem, self.value("coupling")
        if np.ndim(coupling) or coupling != 0:
            return found
        leaves = tuple((0.0,) if leaf == "coupling" else leaf for leaf in found.template.leaves)
        numbers = {name: value for name, value in found.numbers.items() if name != "coupling"}
        return found._replace(template=found.template._replace(leaves=leaves), numbers=numbers)

    def fixed(self) -> Fixed:
        """What its program takes for granted; the number of steps is not part of it."""
        problem, rule = self.parts_of_problem.template, self.parts_of_rule.template
        return Fixed(problem, rule, None, self.value("batch"), spread)

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        Run.check(self)
        self.numbers()

    def check_whole(self) -> None:
        """Nothing: the schedule ends with the run."""

    def own_system(self) -> None:
        """None: it is registered, by its name."""

    def check_axes(self, axes: Mapping[str, Sequence[Any]]) -> None:
        """Raise `ValueError` for axes that these runs do not read."""
        if "eta_2" in axes and not self.reads("eta_2", axes):
            raise ValueError("axes.eta_2: control = 'forever' does not read it")

    def reads(self, field: str, axes: Mapping[str, Sequence[Any]]) -> bool:
        """Whether the numbers of a sweep over `axes` depend on the value of `field` here."""
        controls = axes.get("control", (self.control,))
        return field != "eta_2" or set(controls) != {"forever"}

    def steps_recorded(self, times: Times) -> tuple[int, ...] | int:
        """The steps if they are given, else their number: they follow from the rates."""
        if times == "end":
            return 1
        if isinstance(times, int):
            return checks.integer("times", times, 2)
        check_step_times(times, np.iinfo(np.int32).max)
        return times

    @staticmethod
    def stiffness(numbers: Mapping[str, Float[np.ndarray, " P"]]) -> Float[np.ndarray, " P"]:
        """The rate at which Q grows without noise, which rises with r."""
        return numbers["r"]

    def as_json(self) -> dict[str, object]:
        """The fields as JSON values, those of the preset written out."""
        preset = PRESETS[self.preset]
        plain = super().as_json()
        del plain["preset"]
        return {n: preset.get(n) if value is None else value for n, value in plain.items()}


def spread(rule: Rule, num: int) -> Float[Array | np.ndarray, " S"]:
    """As `Annealing.spread`."""
    return Annealing.of(rule).spread(num)


SYSTEM = problem_system(
    Prompts(),
    "two_stage",
    task="prompts",
    theories=(theory for theory in LADDER.built_in.values() if not theory.needs),
    registered=LADDER.registered,
    tile=1,
    run=TwoStage,
    labels=Labels(
        about={
            "eta_time": ("sum of the learning rates so far", "1"),
            "K1": ("logistic loss of component P", "nat"),
            "K2": ("logistic loss of component Q", "nat"),
            "J": ("logistic loss of the sum of the components", "nat"),
            "auc_Q": ("area under the ROC curve of component Q", "1"),
            "W_trace": ("trace of the signal part of W", "1"),
            "loss": ("joint logistic loss", "nat"),
            "K1_signal": ("logistic loss of component P by the signal part alone", "nat"),
            "K2_signal": ("logistic loss of component Q by the signal part alone", "nat"),
            "K2_gated": ("logistic loss of component Q by the signal part, gated by all", "nat"),
            "K2_pos": ("logistic loss of component Q on positive labels", "nat"),
            "K2_neg": ("logistic loss of component Q on negative labels", "nat"),
            "V_trace": ("trace of the signal part of V", "1"),
            "tau": ("stationary noise of a weight at eta_1", "1"),
            "r": ("shift of the negative class of component Q", "1"),
            "decay": ("weight decay", "1/eta-time"),
        },
        inner_dims={
            "W_singular": ("rank",),
            "V_singular": ("rank",),
            "W_signal": ("row", "column"),
            "V_signal": ("row", "column"),
            "state": ("reduced",),
        },
    ),
)
NUMBERS = 2**15
"""Bytes of an adaptive solver of a few numbers, and of what it observes by quadrature."""


def _bytes(task: Prompts, settings: Settings[Any]) -> int:
    del task, settings
    return NUMBERS


SYSTEM = SYSTEM._replace(
    # Runs go from record to record, and leave no checkpoint. Adaptive solves of a few numbers wait
    # for the stiffest of a batch.
    engines={
        name: engine._replace(goes_on=False)
        if engine.trains
        else engine._replace(tile=32, bytes_per_run=_bytes)
        for name, engine in SYSTEM.engines.items()
    },
    compare="sweeps.studies.two_stage.compare:CompareTwoStage",
)
