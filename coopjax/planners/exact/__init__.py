"""Optimal rematerialization of one order, as an integer program that is refined until its solution fits."""
