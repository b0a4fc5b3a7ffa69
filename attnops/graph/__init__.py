"""Graph layers on the one operator."""

from attnops.graph.gatv2_conv import GATv2Conv as GATv2Conv
