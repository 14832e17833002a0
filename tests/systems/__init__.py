"""Small systems that own the exact solution of each of their theories.

A system is a task with an optimiser and times. It knows what each theory says about it: the
theory's equations as printed, in NumPy, integrated by SciPy. So the test of a theory is a
`check`, and a new theory adds its equations here and its name to a test.
"""
