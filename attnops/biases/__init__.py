"""What is preferred before any content is seen."""

from attnops.biases.alibi import ALiBi as ALiBi
from attnops.biases.base import Bias as Bias
from attnops.biases.base import BiasSum as BiasSum
from attnops.biases.base import TensorBias as TensorBias
from attnops.biases.edges import EdgeBias as EdgeBias
from attnops.biases.edges import EdgeTypePrior as EdgeTypePrior
from attnops.biases.priors import Distance as Distance
from attnops.biases.priors import LogPrior as LogPrior
from attnops.biases.priors import TimeGap as TimeGap
from attnops.biases.relative import RelativeBias as RelativeBias
from attnops.biases.relative import RelativeKeys as RelativeKeys
from attnops.biases.rotary import Rotary as Rotary
from attnops.biases.rotary_scaling import RotaryScaling as RotaryScaling
from attnops.biases.sink import Sink as Sink
from attnops.biases.type_prior import TypePrior as TypePrior
