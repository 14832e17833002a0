"""Two-stage dynamics (arXiv:2502.20681): its runs, and the verdicts on its claims."""

import xarray as xr

import dynsim
import odes
import sweeps

claims = odes.two_stage.claims


def training(run: sweeps.Experiment, seeds: int, times: int) -> sweeps.Sweep:
    """`seeds` runs that record everything at `times` times, a third of them in the first stage."""
    record = (*run.problem.observables(), "eta_time")
    return sweeps.Sweep(run, {"seed": {"range": seeds}}, "simulation", record, times)


def ode(run: sweeps.Experiment, times: int) -> sweeps.Sweep:
    """The reduced ODE at the same times."""
    return sweeps.Sweep(run, {"seed": [0]}, "ode", dynsim.Prompts.COMPARED, times)


def ended(data: xr.Dataset, run) -> xr.Dataset:
    """The runs that ended well; the attribute `switch` is the index of the end of stage 1."""
    switch = int(abs(data.time.values[0] - float(run.rule.stages.first)).argmin())
    return data.isel(seed=data.status.values == dynsim.Status.OK).assign_attrs(switch=switch)


def verdicts(experiments, runs, theory):
    """The claims by experiment, from runs and theory by experiment: all for the preset, the
    applicable ones for the joint loss."""
    tested = {}
    for name in ("preset", "joint"):
        these, task = runs[name], experiments[name].problem
        at = these.switch
        curves = [claims.truncations(task, these, each, largest=2) for each in (at, -1)]
        tested[name] = [*claims.stages(these, at, theory[name]), *claims.traces(these, at)]
        tested[name] += claims.directions(*curves)
    tested["preset"] += claims.large_rate_alone(runs["forever"])
    return tested
