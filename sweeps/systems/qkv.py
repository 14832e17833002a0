"""The attention layer in ordinary parameters U, W_Q, W_K and W_V."""

from dynsim import QKV
from sweeps.systems.engines import of_infinite_length, system
from sweeps.systems.yz.layer import LABELS, LAYER

SYSTEM = system(QKV(LAYER), "qkv", engines=of_infinite_length, labels=LABELS, tile=8)
