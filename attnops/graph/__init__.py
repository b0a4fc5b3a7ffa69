"""Graph layers on the one operator: torch-geometric's attention layers, and one for heterogeneous graphs."""

from attnops.graph.gat_conv import GATConv as GATConv
from attnops.graph.gatv2_conv import GATv2Conv as GATv2Conv
from attnops.graph.hetero_attention import HeteroAttention as HeteroAttention
from attnops.graph.transformer_conv import TransformerConv as TransformerConv
