"""The emergence of sparse attention: how long its plateau lasts, under which optimiser."""
