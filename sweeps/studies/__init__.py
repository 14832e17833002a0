"""Tools that answer one question each about any problem."""
