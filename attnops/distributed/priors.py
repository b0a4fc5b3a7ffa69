"""Pattern, biases and score of a whole sequence, each kind apart, as a divided call uses them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnops.biases.base import Bias, BiasSum, TensorBias
from attnops.biases.rotary import Rotary
from attnops.biases.sink import Sink
from attnops.patterns.base import Full, Pattern
from attnops.patterns.blocks import Mask
from attnops.scores.base import Score


@dataclass(eq=False)
class Priors:
    """Pattern, biases and score of a call, for the whole sequence, each kind apart."""

    pattern: Pattern
    bias: Bias | None
    rotations: tuple[Bias, ...]
    sinks: tuple[Sink, ...]
    score: Score | None

    @staticmethod
    def of(pattern: Pattern | Tensor | None, bias: Bias | Pattern | Tensor | None, score: Score | None) -> Priors:
        """Read as `attend` reads them.

        Raises:
            TypeError: what is neither.
            ValueError: edge lists; a rotation that depends on the length beside a bias that binds.
        """
        if pattern is None:
            pattern = Full()
        elif isinstance(pattern, Tensor):
            pattern = Mask(pattern)
        elif not isinstance(pattern, Pattern):
            raise TypeError(f"pattern is {type(pattern).__name__}; it must be a Pattern, a bool tensor or None")
        terms: tuple[Bias, ...] = ()
        if isinstance(bias, Pattern):
            pattern = pattern & bias
        elif isinstance(bias, Tensor):
            if not bias.is_floating_point():
                raise TypeError(f"bias is {bias.dtype}; it must be a real floating dtype")
            terms = (TensorBias(bias, per_edge=False),)
        elif isinstance(bias, Bias):
            terms = bias.terms
            if bias.pattern is not None:
                assert isinstance(bias.pattern, Pattern)
                pattern = pattern & bias.pattern
        elif bias is not None:
            raise TypeError(f"bias is {type(bias).__name__}; it must be a Bias, a tensor or None")
        if any(leaf.edges is not None for leaf in pattern.leaves):
            raise ValueError("pattern holds an edge list; a graph is divided by its nodes, not as a sequence")
        sinks = tuple(term for term in terms if isinstance(term, Sink))
        terms = tuple(term for term in terms if not isinstance(term, Sink))
        rotations = tuple(term for term in terms if term.rotates and not term.adds and not term.binds)
        if any(term.binds for term in terms):  # it sees the vectors before rotation
            if any(isinstance(term, Rotary) and term.depends_on_length for term in rotations):
                raise ValueError("bias joins a rotation whose law depends on the length with a bias that binds")
            rotations = ()
        rest = tuple(term for term in terms if term not in rotations)
        return Priors(pattern, BiasSum(rest, None) if rest else None, rotations, sinks, score)

    def __str__(self) -> str:
        bias = "none" if self.bias is None else " + ".join(str(term) for term in self.bias.terms)
        return f"{bias} + {self.rotations} + {self.sinks}"
