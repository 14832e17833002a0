"""Tasks as problems: functions that make a task of `dynsim.classes`, with the layer on it."""

import inspect
from collections.abc import Callable
from typing import ParamSpec

from dynsim.classes import synthetic, task, tasks
from dynsim.yz.layer import Layer, layer

Arguments = ParamSpec("Arguments")


def _layered(name: str, make: Callable[Arguments, task.Task]) -> Callable[Arguments, Layer]:
    def made(*args: Arguments.args, **options: Arguments.kwargs) -> Layer:
        return layer(make(*args, **options).build())

    # The docstring and the arguments are those of what it calls.
    made.__name__ = made.__qualname__ = name
    made.__doc__ = (make.__doc__ or "").replace("Attributes:", "Args:")
    signature = inspect.signature(make).replace(return_annotation=Layer)
    setattr(made, "__signature__", signature)  # noqa: B010  (no type of a function has it)
    return made


sequence_classes = _layered("sequence_classes", task.sequence_classes)
load_task = _layered("load_task", tasks.TaskFile)
overlapping = _layered("overlapping", tasks.Overlapping)
syn = _layered("syn", synthetic.syn)
syn_medium = _layered("syn_medium", tasks.SynMedium)
syn_small = _layered("syn_small", tasks.SynSmall)
