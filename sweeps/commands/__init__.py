"""The commands on sweeps and single runs, one module each."""
