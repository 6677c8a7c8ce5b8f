"""Powers and logarithms that have the same bits on every computer.

Those of `math` are the system's, whose libraries round differently. Here they are computed with 40 digits and
rounded once. That takes microseconds: use it where a model is loaded, not for each token.
"""

from decimal import Context, Decimal

_CONTEXT = Context(prec=40)


def power(base: float, exponent: float) -> float:
    """Return the base, above zero, to the power of the exponent."""
    return float(_CONTEXT.power(Decimal(base), Decimal(exponent)))


def natural_logarithm(x: float) -> float:
    """Return ln x of a number above zero."""
    return float(_CONTEXT.ln(Decimal(x)))


def exponential(x: float) -> float:
    """Return e to the power of x."""
    return float(_CONTEXT.exp(Decimal(x)))
