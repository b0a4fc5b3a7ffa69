"""Graph layers on the one operator: torch-geometric's attention layers, and one for heterogeneous graphs."""

from attnops.graph.distances import shortest_paths as shortest_paths
from attnops.graph.exphormer import ExphormerAttention as ExphormerAttention
from attnops.graph.exphormer import ExphormerGraph as ExphormerGraph
from attnops.graph.exphormer import expander_edges as expander_edges
from attnops.graph.gat_conv import GATConv as GATConv
from attnops.graph.gatv2_conv import GATv2Conv as GATv2Conv
from attnops.graph.graphormer import CentralityEncoding as CentralityEncoding
from attnops.graph.graphormer import GraphormerBias as GraphormerBias
from attnops.graph.graphormer import all_pairs as all_pairs
from attnops.graph.hetero_attention import HeteroAttention as HeteroAttention
from attnops.graph.hgt_conv import HGTConv as HGTConv
from attnops.graph.local_global import LocalGlobal as LocalGlobal
from attnops.graph.models import GAT as GAT
from attnops.graph.models import GATv2 as GATv2
from attnops.graph.models import GraphTransformer as GraphTransformer
from attnops.graph.node_attention import NodeAttention as NodeAttention
from attnops.graph.node_attention import NodeBlock as NodeBlock
from attnops.graph.positional import LaplacianEncoding as LaplacianEncoding
from attnops.graph.positional import add_encodings as add_encodings
from attnops.graph.rgat_conv import RGATConv as RGATConv
from attnops.graph.transformer_conv import TransformerConv as TransformerConv
