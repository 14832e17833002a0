"""`dynsim validate`: how accurate the theories are, as tables."""
