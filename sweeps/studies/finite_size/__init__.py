"""How far theory of finite T and batch holds: its order, and its spread against that of runs."""
