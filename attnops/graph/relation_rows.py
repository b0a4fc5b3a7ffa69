"""Nodes mapped by the relation of their edges: the pairs (relation, node) that edges use, in blocks of one relation.

A node is a different key in every relation that it sends by. Relations are data here: pairs are sorted by relation
and cut into blocks of one relation each, so that one batched product maps them all, however many relations there are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnops.coords import is_concrete

BLOCK = 64  # rows of one product; a relation's last block is filled up with copies of one of its rows


class RelationRows(NamedTuple):
    """One row for each (relation, node) pair that some edge uses; or for all of them, where edges cannot be read."""

    row: Tensor  # [E]: the row of each edge
    node: Tensor  # [rows]: the node of each row
    relation: Tensor | None  # [blocks]: the relation of each block of rows; None where rows are all pairs in order
    used: Tensor | None  # [pairs]: the rows that are not fillings; None where all are


def relation_rows(relation: Tensor, node: Tensor, num_relations: int, num_nodes: int) -> RelationRows:
    """The rows of edges with these relations and nodes, both `[E]`."""
    device, code = node.device, relation.long() * num_nodes + node.long()
    if not is_concrete(code) or num_relations * num_nodes <= code.shape[0]:
        return RelationRows(code, torch.arange(num_nodes, device=device).repeat(num_relations), None, None)
    pairs, inverse = torch.unique(code, return_inverse=True)
    of_pair, node_of_pair = pairs // num_nodes, pairs % num_nodes
    counts = torch.bincount(of_pair, minlength=num_relations)
    blocks = (counts + BLOCK - 1) // BLOCK
    first_pair, first_block = counts.cumsum(0) - counts, blocks.cumsum(0) - blocks
    of_block = torch.repeat_interleave(torch.arange(num_relations, device=device), blocks)
    used = first_block[of_pair] * BLOCK + torch.arange(len(pairs), device=device) - first_pair[of_pair]
    nodes = node_of_pair[first_pair[of_block]].repeat_interleave(BLOCK)
    nodes[used] = node_of_pair
    return RelationRows(used[inverse], nodes, of_block, used)


def map_rows(x: Tensor, weight: Tensor, rows: RelationRows, bias: Tensor | None = None) -> Tensor:
    """x_n W_r (+ b_r) for every row (r, n), in G groups of features.

    Args:
        x: `[N, G·D]`. weight: `[R, G, D, F]`. bias: `[R, G·F]`.

    Returns:
        `[rows, G·F]`.
    """
    num_relations, groups, dim, width = weight.shape
    if rows.relation is None:
        grouped = x.view(x.shape[0], groups, dim).transpose(0, 1)
        mapped = torch.matmul(grouped, weight).transpose(1, 2).flatten(2)  # [R, N, G·F]
        return (mapped if bias is None else mapped + bias.unsqueeze(1)).flatten(0, 1)
    blocks = F.embedding(rows.node, x).view(-1, BLOCK, groups, dim).transpose(1, 2)
    weights = F.embedding(rows.relation, weight.reshape(num_relations, -1)).view(-1, groups, dim, width)
    mapped = torch.matmul(blocks, weights).transpose(1, 2).flatten(2)  # [blocks, BLOCK, G·F]
    return (mapped if bias is None else mapped + F.embedding(rows.relation, bias).unsqueeze(1)).flatten(0, 1)
