"""Figures: options, the sweeps behind them, the drawing, and what is printed, in one class.

`dynsim figure NAME` runs the classes that the entry points `dynsim.figures` name: those of
`papers`, and those of your own package.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, dataclass_transform

import xarray as xr

from sweeps import output
from sweeps.runner.cluster import begin
from sweeps.runner.run import run
from sweeps.runner.spec import Sweep

if TYPE_CHECKING:
    from matplotlib import figure as mpl


class Picture(NamedTuple):
    """What a figure draws, and the numbers behind it.

    Attributes:
        figure: the Matplotlib figure.
        arrays: what is drawn, for the .npz file: arrays and datasets by name, which may be nested.
        text: what is printed.
        table: rows of a CSV file, the first with the names of the columns; or a dataset, with a row
            for each point of its dimensions and a column for each variable.
        report: what the JSON file holds.

    Example:
        >>> figure, ((ax,),) = sweeps.drawing.panels(1, 1)
        >>> picture = sweeps.Picture(figure, {"loss": np.ones(3)}, "the loss is 1")
    """

    figure: "mpl.Figure"
    arrays: Mapping[str, Any]
    text: str = ""
    table: Iterable[Sequence[Any]] | xr.Dataset | None = None
    report: Any = None


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure. Each subclass is a frozen dataclass, whose fields are the options of the command.

    Attributes:
        NAME: name of the files, such as "fig6", and of their folder in out/.
        out: folder for the figure, its data and the stored sweeps, from which the command resumes.

    Example:
        >>> class LossCurve(sweeps.Figure):
        ...     NAME = "loss"
        ...     seeds: int = 4
        ...
        ...     def sweeps(self):
        ...         run = sweeps.experiment("saxe", steps=100)
        ...         axes = {"eta": [0.05, 0.1], "seed": {"range": self.seeds}}
        ...         return {"training": sweeps.Sweep(run, axes, record=["loss"], times=20)}
        ...
        ...     def draw(self, data):
        ...         loss = data["training"].loss.mean("seed")
        ...         figure, ((ax,),) = sweeps.drawing.panels(1, 1)
        ...         loss.plot.line(x="time", ax=ax)
        ...         return sweeps.Picture(figure, {"loss": loss})
        >>> LossCurve(seeds=1).sweeps()["training"].dims[0].size
        2
    """

    NAME: ClassVar[str]
    out: Path = dataclasses.field(default=Path("out"), kw_only=True)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "out" not in cls.__annotations__:
            # The inherited field, with a default of its own.
            cls.__annotations__["out"] = Path
            cls.out = dataclasses.field(default=Path("out", cls.NAME), kw_only=True)
        dataclasses.dataclass(frozen=True)(cls)

    def sweeps(self) -> Mapping[str, Sweep]:
        """The sweeps behind the figure, by the name of their folder in `out`; none by default."""
        return {}

    def draw(self, data: Mapping[str, xr.Dataset]) -> Picture:
        """Draw the results of `sweeps`, which have the same names. Runs that failed are in them:
        `sweeps.valid` masks these."""
        raise NotImplementedError

    def computed(self) -> dict[str, xr.Dataset]:
        """Run or resume the sweeps, each in its own folder, after checking all of them.

        Raises:
            ValueError: naming the option, its value and what is allowed, before anything runs.
        """
        begin(self)
        sweeps = self.sweeps()
        # All of them, so that no error comes after hours of the first one.
        for sweep in sweeps.values():
            sweep.check()
        return {name: run(sweep, self.out / name).load() for name, sweep in sweeps.items()}

    def save(self) -> list[Path]:
        """Compute, draw, print and write the figure; return the paths of its files."""
        picture = self.draw(self.computed())
        if picture.text:
            print(picture.text)
        match picture.table:
            case None:
                text = None
            # One row for each point of its dimensions.
            case xr.Dataset() as table:
                frame = table.to_dataframe(dim_order=[*table.sizes])[[*table.data_vars]]
                text = {"csv": frame.to_csv(lineterminator="\n")}
            case rows:
                text = {"csv": output.as_csv(rows)}
        return output.write(
            self.out,
            self.NAME,
            figure=picture.figure,
            arrays=picture.arrays,
            report=picture.report,
            text=text,
        )
