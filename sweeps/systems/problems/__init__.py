"""Any `dynsim.Problem` as a system: its settings, runs and engines."""
