"""Nodes mapped by the relation of their edges: the pairs (relation, node) that edges use, in blocks of one relation.

A node is a different key in every relation that it sends by. Relations are data here: pairs are sorted by relation
and cut into blocks of one relation each, so that one batched product maps them all, however many relations there are.
Where most pairs are used, all of them are mapped, by a product as wide as all relations together: nothing is gathered.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnops.coords import is_concrete

BLOCK = 64  # rows of one product; a relation's last block is filled up with copies of one of its rows
PAIRS_A_USED = 3  # up to so many pairs for each that is used, mapping all of them is the quicker way


class RelationRows(NamedTuple):
    """One row for each (relation, node) pair that some edge uses; or for all of them, where edges cannot be read."""

    row: Tensor  # [E]: the row of each edge
    node: Tensor  # [rows]: the node of each row
    relation: Tensor | None  # [blocks]: the relation of each block of rows; None where rows are all pairs, node by node
    used: Tensor | None  # [N]: whether some edge uses a node; None where all nodes of the rows are used


def relation_rows(relation: Tensor, node: Tensor, num_relations: int, num_nodes: int) -> RelationRows:
    """The rows of edges with these relations and nodes, both `[E]`."""
    device, relation, node = node.device, relation.long(), node.long()
    code = relation * num_nodes + node
    if not is_concrete(code):
        return _all_pairs(relation, node, num_relations, num_nodes)
    pairs, inverse = torch.unique(code, return_inverse=True)
    if num_relations * num_nodes <= PAIRS_A_USED * pairs.shape[0]:
        return _all_pairs(relation, node, num_relations, num_nodes)
    of_pair, node_of_pair = pairs // num_nodes, pairs % num_nodes
    counts = torch.bincount(of_pair, minlength=num_relations)
    blocks = (counts + BLOCK - 1) // BLOCK
    first_pair, first_block = counts.cumsum(0) - counts, blocks.cumsum(0) - blocks
    of_block = torch.repeat_interleave(torch.arange(num_relations, device=device), blocks)
    row = first_block[of_pair] * BLOCK + torch.arange(pairs.shape[0], device=device) - first_pair[of_pair]
    nodes = node_of_pair[first_pair[of_block]].repeat_interleave(BLOCK)
    nodes[row] = node_of_pair
    return RelationRows(row[inverse], nodes, of_block, None)


def _all_pairs(relation: Tensor, node: Tensor, num_relations: int, num_nodes: int) -> RelationRows:
    nodes = torch.arange(num_nodes, device=node.device).repeat_interleave(num_relations)
    used = torch.zeros(num_nodes, dtype=torch.bool, device=node.device).index_fill(0, node, True)
    all_used = is_concrete(node) and bool(used.all())
    return RelationRows(node * num_relations + relation, nodes, None, None if all_used else used)


def map_rows(x: Tensor, weight: Tensor, rows: RelationRows, bias: Tensor | None = None) -> Tensor:
    """x_n W_r (+ b_r) for every row (r, n), in G groups of features.

    Args:
        x: `[N, G·D]`, dense or sparse. weight: `[R, G, D, F]`. bias: `[R, G·F]`.

    Returns:
        `[G, rows, F]`; of a node that no edge uses, the map of 0, whatever its features.
    """
    if x.layout != torch.strided:
        x = x.to_dense()
    if rows.used is not None:  # a NaN that nothing reads must not reach the gradient of the weight
        x = torch.where(rows.used.unsqueeze(1), x, 0.0)
    num_relations, groups, dim, width = weight.shape
    grouped = x.view(x.shape[0], groups, dim).transpose(0, 1)
    if rows.relation is None:
        wide = torch.matmul(grouped, weight.permute(1, 2, 0, 3).reshape(groups, dim, -1))  # [G, N, R·F]
        if bias is not None:
            wide = wide + bias.view(num_relations, groups, width).transpose(0, 1).reshape(groups, 1, -1)
        return wide.view(groups, -1, width)
    blocks = F.embedding(_in_groups(rows.node, groups, x.shape[0]), grouped.reshape(-1, dim))
    relation = _in_groups(rows.relation, groups, num_relations)
    weights = F.embedding(relation, weight.transpose(0, 1).reshape(groups * num_relations, -1))
    mapped = torch.matmul(blocks.view(groups, -1, BLOCK, dim), weights.view(groups, -1, dim, width))
    if bias is not None:
        mapped = mapped + F.embedding(rows.relation, bias).view(-1, groups, width).transpose(0, 1).unsqueeze(2)
    return mapped.flatten(1, 2)  # of [G, blocks, BLOCK, F]


def spread_to_rows(x: Tensor, rows: RelationRows) -> Tensor:
    """x_n for every row (r, n): `[N, *]` to `[rows, *]`."""
    if rows.relation is None:
        num_relations = rows.node.shape[0] // max(1, x.shape[0])
        return x.unsqueeze(1).expand(-1, num_relations, *x.shape[1:]).flatten(0, 1)
    return F.embedding(rows.node, x.flatten(1)).view(-1, *x.shape[1:])


def sum_of_rows(x: Tensor, rows: RelationRows, num_nodes: int) -> Tensor:
    """The sum over the rows of each node: `[rows, *]` to `[N, *]`."""
    if rows.relation is None:
        return x.view(num_nodes, x.shape[0] // max(1, num_nodes), *x.shape[1:]).sum(1)
    return x.new_zeros(num_nodes, *x.shape[1:]).index_add(0, rows.node, x)


def _in_groups(index: Tensor, groups: int, size: int) -> Tensor:
    """An index into each of `groups` tables of `size` rows that lie one below the other."""
    return index + torch.arange(0, groups * size, max(1, size), device=index.device)[:groups].unsqueeze(1)
