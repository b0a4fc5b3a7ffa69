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
        `[G, rows, F]`.
    """
    num_relations, groups, dim, width = weight.shape
    grouped, weight = x.view(x.shape[0], groups, dim).transpose(0, 1), weight.transpose(0, 1)
    if rows.relation is None:
        mapped = torch.matmul(grouped.unsqueeze(1), weight)  # [G, R, N, F]
        offset = None if bias is None else bias.view(num_relations, groups, width).transpose(0, 1)
    else:
        blocks = F.embedding(_in_groups(rows.node, groups, x.shape[0]), grouped.reshape(-1, dim))
        relation = _in_groups(rows.relation, groups, num_relations)
        weights = F.embedding(relation, weight.reshape(groups * num_relations, -1)).view(groups, -1, dim, width)
        mapped = torch.matmul(blocks.view(groups, -1, BLOCK, dim), weights)  # [G, blocks, BLOCK, F]
        offset = None
        if bias is not None:
            offset = F.embedding(rows.relation, bias).view(-1, groups, width).transpose(0, 1)
    return (mapped if offset is None else mapped + offset.unsqueeze(2)).flatten(1, 2)


def _in_groups(index: Tensor, groups: int, size: int) -> Tensor:
    """An index into each of `groups` tables of `size` rows that lie one below the other."""
    return index + torch.arange(0, groups * size, max(1, size), device=index.device)[:groups].unsqueeze(1)
