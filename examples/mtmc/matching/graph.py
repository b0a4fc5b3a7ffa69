"""The heterogeneous graph: cameras, tracklets and nobody; who sees whom, who lies beside whom, who may follow whom.

camera   –sees→      tracklet    the camera that a tracklet was seen by
camera   –adjacent→  camera      directed links, with their prior and typical delay
tracklet –candidate→ tracklet    only along a link and within its window; with link prior, log ratios of travel, zones
                                 and places, the cosine of their looks, the slots that it would fill, and the
                                 candidates that it may have as companions
nobody   –starts→    tracklet    one nobody a camera: a tracklet may come from nowhere, in each of its slots
tracklet –ends→      nobody      and go nowhere
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import HeteroData

from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.matching.companions import companions
from examples.mtmc.matching.prior import Prior, Rates, arrival_rates
from examples.mtmc.matching.slots import KINDS, kinds, slots_of
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Recording

CAMERA_DIM, ADJACENT_DIM, EXTRA_DIM = 5, 2, 2


def build_graph(
    recording: Recording,
    pairs: Candidates,
    prior: Prior,
    looks: NDArray[np.float64],
    network: Network | None = None,
    rates: Rates | None = None,
) -> HeteroData:
    """The graph of a recording, by what ``network`` (default: the recording's own) believes about cameras and links.

    ``rates`` are those of the recording unless given.
    """
    network = network or recording.network
    tracklets, names = recording.tracklets, list(recording.network.cameras)
    number = {name: n for n, name in enumerate(names)}
    between = [x for x in network.links if x.source != x.target]
    leaving, coming = Counter(x.source for x in between), Counter(x.target for x in between)
    data = HeteroData()

    seconds = np.array([t.time_out - t.time_in for t in tracklets], dtype=np.float64)
    boxes = np.array([len(t.frames) for t in tracklets], dtype=np.float64)
    data["tracklet"].x = torch.as_tensor(np.log1p(np.stack([seconds, boxes], 1)) - 2.5, dtype=torch.float32)
    data["tracklet"].camera = torch.tensor([number[t.camera] for t in tracklets], dtype=torch.int64)
    one = np.ones((len(tracklets), 1))
    data["tracklet"].looks = torch.as_tensor(np.concatenate([looks, one], 1), dtype=torch.float32)

    rate = rates.camera if rates else arrival_rates(recording)
    data["camera"].x = torch.tensor(
        [
            [
                math.log(rate[name]) + 3,
                network.cameras[name].starts,
                network.cameras[name].ends,
                leaving[name] / 3,
                coming[name] / 3,
            ]
            for name in names
        ],
        dtype=torch.float32,
    ).reshape(-1, CAMERA_DIM)

    data["camera", "sees", "tracklet"].edge_index = torch.stack([data["tracklet"].camera, torch.arange(len(tracklets))])
    adjacent = data["camera", "adjacent", "camera"]
    adjacent.edge_index = torch.tensor(
        [[number[x.source] for x in between], [number[x.target] for x in between]], dtype=torch.int64
    )
    centre, share = np.array([x.density.centre for x in between]), np.array([x.prior for x in between])
    typical = np.sign(centre) * np.log1p(np.abs(centre)) / 4
    known = np.stack([np.log(np.maximum(share, 1e-6)) / 4, typical], 1)
    adjacent.edge_attr = torch.as_tensor(known.reshape(-1, ADJACENT_DIM), dtype=torch.float32)

    kind = kinds(recording, pairs)
    slots = slots_of(recording, pairs.source, pairs.target)
    candidate = data["tracklet", "candidate", "tracklet"]
    candidate.edge_index = torch.as_tensor(np.stack([pairs.source, pairs.target]))
    for name in ("travel", "zone", "place"):
        candidate[name] = torch.as_tensor(getattr(prior, name), dtype=torch.float32)
    candidate.prior = torch.as_tensor(prior.link, dtype=torch.float32)
    candidate.delay = torch.as_tensor(pairs.delay, dtype=torch.float32)
    candidate.type = torch.as_tensor(kind)
    candidate.kind_of = torch.nn.functional.one_hot(candidate.type, len(KINDS)).float()
    candidate.alike = torch.as_tensor(cosines(looks, pairs), dtype=torch.float32)[:, None] * candidate.kind_of
    candidate.into, candidate.out_of = torch.as_tensor(slots.into), torch.as_tensor(slots.out_of)
    together = companions(recording, pairs, kind != KINDS.index("fragment"))
    candidate.companions = torch.as_tensor(np.stack([together.other, together.edge]))
    candidate.apart = torch.as_tensor(together.apart, dtype=torch.float32)

    camera = data["tracklet"].camera
    for name, owner, alone in (("starts", slots.owner_in, prior.starts), ("ends", slots.owner_out, prior.ends)):
        owners = torch.as_tensor(owner)
        ends = (camera[owners], owners) if name == "starts" else (owners, camera[owners])
        nobody = data["nobody", "starts", "tracklet"] if name == "starts" else data["tracklet", "ends", "nobody"]
        nobody.edge_index = torch.stack(ends)
        in_sequence = torch.arange(len(owner)) < len(tracklets)
        own = torch.as_tensor(alone, dtype=torch.float32)[owners]
        nobody.prior = torch.where(in_sequence, own, torch.full_like(own, 0.5))
        nobody.type = len(KINDS) + (~in_sequence).long()
        nobody.travel, nobody.zone, nobody.place = (torch.zeros(len(owner)) for _ in range(3))
        nobody.alike = torch.zeros(len(owner), len(KINDS))
    data["nobody"].num_nodes = len(names)
    return data


def cosines(looks: NDArray[np.float64], pairs: Candidates, rows: int = 65_536) -> NDArray[np.float64]:
    """The cosine of the looks of every candidate ``[E]``, so many at a time."""
    parts = [
        np.einsum("ed,ed->e", looks[pairs.source[n : n + rows]], looks[pairs.target[n : n + rows]])
        for n in range(0, len(pairs), rows)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)
