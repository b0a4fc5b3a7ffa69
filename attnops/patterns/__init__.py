"""Who may interact with whom."""

from attnops.patterns.base import Full as Full
from attnops.patterns.base import Pattern as Pattern
from attnops.patterns.blocks import BlockMask as BlockMask
from attnops.patterns.blocks import GlobalTokens as GlobalTokens
from attnops.patterns.blocks import Mask as Mask
from attnops.patterns.edges import Edges as Edges
from attnops.patterns.intervals import Causal as Causal
from attnops.patterns.intervals import Chunked as Chunked
from attnops.patterns.intervals import Dilated as Dilated
from attnops.patterns.intervals import PrefixLM as PrefixLM
from attnops.patterns.intervals import SlidingWindow as SlidingWindow
from attnops.patterns.segments import Padding as Padding
from attnops.patterns.segments import SameSegment as SameSegment
