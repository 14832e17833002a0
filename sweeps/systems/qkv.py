"""The attention layer in ordinary parameters U, W_Q, W_K and W_V."""

import dataclasses
import math

from dynsim import QKV
from odes.qkv import LADDER
from sweeps.systems.engines import system
from sweeps.systems.yz.labels import LABELS
from sweeps.systems.yz.memory import LAYER

SYSTEM = system(
    QKV(LAYER),
    "qkv",
    descends=lambda problem: dataclasses.replace(problem, length=math.inf),
    theories=LADDER.built_in.values(),
    registered=LADDER.registered,
    labels=LABELS,
    tile=8,
)
