"""The cells of Fig. 6 of Scan and Snap that are published."""

import csv
from pathlib import Path


def published() -> dict[tuple[float, float, float], tuple[float, float]]:
    """Published mean and standard deviation over 10 seeds by (num_queries, eta_z, ratio), for the
    cells that are known."""
    with Path(__file__).with_name("published_fig6.csv").open() as file:
        rows = list(csv.DictReader(file))
    numbers = [{name: float(value) for name, value in row.items()} for row in rows]
    return {(n["num_queries"], n["eta_z"], n["ratio"]): (n["mean"], n["std"]) for n in numbers}
