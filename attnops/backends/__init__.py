"""Ways to run the operator, in the order in which ties are broken."""

from attnops.backends.blockwise import Blockwise
from attnops.backends.reference import Reference
from attnops.backends.sdpa import Sdpa
from attnops.problem import Backend

BACKENDS: tuple[Backend, ...] = (Sdpa(), Blockwise(), Reference())
