"""From what a user asks for to a `RematPlan`: baseline, plan of a function or of a step, and how it is carried out."""
