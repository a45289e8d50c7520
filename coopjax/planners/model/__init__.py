"""The order with the least peak and its addresses, as two integer programs (MODeL)."""
