"""Ways to run the operator, in the order in which ties are broken."""

from attnops.backends.blockwise import Blockwise
from attnops.backends.flex import Flex
from attnops.backends.native import Native
from attnops.backends.reference import Reference
from attnops.backends.scatter import Scatter
from attnops.backends.sdpa import Sdpa
from attnops.backends.triton_edges import Triton
from attnops.problem import Backend

BACKENDS: tuple[Backend, ...] = (Native(), Triton(), Scatter(), Sdpa(), Blockwise(), Flex(), Reference())
