"""Tasks as problems: functions that make a task of `dynsim.classes`, with the layer on it."""

import functools
from collections.abc import Callable
from typing import ParamSpec

from dynsim.classes import synthetic, task, tasks
from dynsim.yz.layer import Layer, layer

Arguments = ParamSpec("Arguments")


def _layered(make: Callable[Arguments, task.Task]) -> Callable[Arguments, Layer]:
    # What a class has besides its docstring is none of a function's.
    @functools.wraps(make, updated=())
    def made(*args: Arguments.args, **options: Arguments.kwargs) -> Layer:
        return layer(make(*args, **options).build())

    return made


sequence_classes = _layered(task.sequence_classes)
load_task = _layered(tasks.TaskFile)
overlapping = _layered(tasks.Overlapping)
syn = _layered(synthetic.syn)
syn_medium = _layered(tasks.SynMedium)
syn_small = _layered(tasks.SynSmall)
