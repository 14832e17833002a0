"""The commands on sweeps and single runs, a file each."""
