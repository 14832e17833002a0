"""Hidden nodes and attention (JoMA) on sequence classes."""

from dynsim import JoMA
from sweeps.systems.base import Labels
from sweeps.systems.engines import of_infinite_length, system
from sweeps.systems.yz.layer import LAYER

SYSTEM = system(
    JoMA(LAYER),
    "joma",
    engines=of_infinite_length,
    labels=Labels(
        about={
            "eta_y": ("learning rate of the MLP", "1/step"),
            "eta_z": ("learning rate of the attention logits", "1/step"),
            "scale": ("standard deviation of a starting weight", "1"),
            "temperature": ("temperature of the attention", "1"),
            "loss": ("population loss", "nat"),
        },
        inner_dims={
            **dict.fromkeys(("conserved", "weight"), ("token",)),
            "logits": ("query", "token"),
            "attended": ("class", "token"),
        },
    ),
    tile=32,
)
