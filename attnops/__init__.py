"""Attention as one operator, from sequences to graphs: who may interact is a pattern, what is preferred is a bias."""

from typing import Any

from attnops import testing as testing
from attnops.biases import ALiBi as ALiBi
from attnops.biases import Bias as Bias
from attnops.biases import Distance as Distance
from attnops.biases import EdgeBias as EdgeBias
from attnops.biases import EdgeTypePrior as EdgeTypePrior
from attnops.biases import LogPrior as LogPrior
from attnops.biases import RelativeBias as RelativeBias
from attnops.biases import RelativeKeys as RelativeKeys
from attnops.biases import Rotary as Rotary
from attnops.biases import RotaryScaling as RotaryScaling
from attnops.biases import Sink as Sink
from attnops.biases import TimeGap as TimeGap
from attnops.biases import TypePrior as TypePrior
from attnops.coords import Coords as Coords
from attnops.linear import linear_attend as linear_attend
from attnops.operator import attend as attend
from attnops.operator import available_backends as available_backends
from attnops.operator import plan as plan
from attnops.pairs import Pairs as Pairs
from attnops.patterns import BlockMask as BlockMask
from attnops.patterns import Causal as Causal
from attnops.patterns import Chunked as Chunked
from attnops.patterns import Dilated as Dilated
from attnops.patterns import Edges as Edges
from attnops.patterns import Full as Full
from attnops.patterns import GlobalTokens as GlobalTokens
from attnops.patterns import Mask as Mask
from attnops.patterns import Padding as Padding
from attnops.patterns import Pattern as Pattern
from attnops.patterns import PrefixLM as PrefixLM
from attnops.patterns import SameSegment as SameSegment
from attnops.patterns import SlidingWindow as SlidingWindow
from attnops.planner import Plan as Plan
from attnops.planner import trace as trace
from attnops.problem import UnsupportedError as UnsupportedError
from attnops.scores import Additive as Additive
from attnops.scores import DotProduct as DotProduct
from attnops.scores import Score as Score
from attnops.scores import SeparableAdditive as SeparableAdditive
from attnops.states import AttentionOutput as AttentionOutput
from attnops.states import merge as merge
from attnops.version import __version__ as __version__


def __getattr__(name: str) -> Any:
    """`attnops.viz` and `attnops.graph` are imported when first named: pictures need matplotlib."""
    if name in ("viz", "graph", "seq"):
        from importlib import import_module

        return import_module(f"attnops.{name}")
    raise AttributeError(f"module 'attnops' has no attribute {name!r}")
