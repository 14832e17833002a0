"""Tasks as problems: the functions of `dynsim.classes` that make one, with the layer on it."""

import functools
from collections.abc import Callable
from typing import ParamSpec

from dynsim.classes import synthetic, task, tasks
from dynsim.yz.layer import Layer, layer

Arguments = ParamSpec("Arguments")


def _layered(make: Callable[Arguments, task.SequenceClasses]) -> Callable[Arguments, Layer]:
    @functools.wraps(make)
    def made(*args: Arguments.args, **options: Arguments.kwargs) -> Layer:
        return layer(make(*args, **options))

    return made


sequence_classes = _layered(task.sequence_classes)
load_task = _layered(tasks.load_task)
overlapping = _layered(synthetic.overlapping)
syn = _layered(synthetic.syn)
syn_medium = _layered(synthetic.syn_medium)
syn_small = _layered(synthetic.syn_small)
