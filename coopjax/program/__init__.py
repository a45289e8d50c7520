"""The step program: ops, values and an order, with what follows from them. NumPy only."""
