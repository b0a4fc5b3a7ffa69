"""Graphs larger than memory on one machine: rows and edges in mapped files, a few blocks in memory at a time."""

from attnops.distributed.out_of_core.attention import attend as attend
from attnops.distributed.out_of_core.mapped_edges import MappedEdges as MappedEdges
from attnops.distributed.out_of_core.mapped_rows import MappedRows as MappedRows
from attnops.distributed.out_of_core.mapped_rows import rows_within as rows_within
from attnops.distributed.out_of_core.row_functions import map_rows as map_rows
from attnops.distributed.out_of_core.row_functions import sum_rows as sum_rows
