"""Whether what a class says of a method still holds in a subclass that may have written the method anew."""

from __future__ import annotations


def speaks_for(kind: type, saying: str, method: str) -> bool:
    """Whether the class that last defines `saying` is, or comes after, the one that last defines `method`.

    Example:
        >>> from attnops.overrides import speaks_for
        >>> class Line:
        ...     straight = True
        ...     def draw(self): ...
        >>> class Curve(Line):
        ...     def draw(self): ...
        >>> speaks_for(Line, "straight", "draw"), speaks_for(Curve, "straight", "draw")
        (True, False)
    """
    sayer, writer = (next(each for each in kind.__mro__ if name in vars(each)) for name in (saying, method))
    return issubclass(sayer, writer)
