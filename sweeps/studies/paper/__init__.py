"""The figures of Scan and Snap, one file each."""
