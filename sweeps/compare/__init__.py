"""`dynsim compare`: theory against simulation."""
