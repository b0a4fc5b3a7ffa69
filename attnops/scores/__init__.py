"""How similarity is computed."""

from attnops.scores.additive import Additive as Additive
from attnops.scores.additive import SeparableAdditive as SeparableAdditive
from attnops.scores.base import Score as Score
from attnops.scores.dot import DotProduct as DotProduct
