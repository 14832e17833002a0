"""`dynsim validate`: the tables of the docs."""
