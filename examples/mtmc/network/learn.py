"""Learn the links from labelled tracklets: how likely each is, and how long it takes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from examples.mtmc.matching.candidates import Candidates, candidates
from examples.mtmc.matching.prior import Prior, prior_of
from examples.mtmc.matching.slots import KINDS, kinds, true_pairs
from examples.mtmc.network.learn_zones import ZoneCounts
from examples.mtmc.network.network import Network
from examples.mtmc.network.travel import fit
from examples.mtmc.recordings.tracklets import Recording

COUNT = 1.0  # passages that every link and every start and end counts for before any is seen


def learn_links(
    recording: Recording, without: Collection[int] = (), pairs: Candidates | None = None, counts: bool = True
) -> Network:
    """The recording's network with priors, travel times, zones, starts and ends counted from its true identities.

    Tracklets of the identities ``without`` are passed over, so that these can be tested; ``pairs`` are the recording's
    candidates where they are known already. ``counts=False`` leaves priors, starts and ends as they were: for labels
    that tell who goes on, but not who does not.
    """
    network = recording.network
    pairs = pairs or candidates(recording)
    counted = np.array([t.truth not in without for t in recording.tracklets], dtype=bool)
    true = true_pairs(recording, pairs.source, pairs.target) & counted[pairs.target] & counted[pairs.source]
    in_sequence = true & (kinds(recording, pairs) != KINDS.index("overlap"))
    camera = np.array([network.index(t.camera) for t in recording.tracklets], dtype=np.int64)
    last, first = counted.copy(), counted.copy()
    last[pairs.source[in_sequence]] = first[pairs.target[in_sequence]] = False
    size = len(network.cameras)
    seen, ending, starting = (np.bincount(camera[x], minlength=size) for x in (counted, last, first))
    passages = np.bincount(pairs.link[true], minlength=len(network.links))
    links = []
    zones = ZoneCounts(recording, counted)
    for number, link in enumerate(network.links):
        at_source = seen[network.index(link.source)]
        options = 1 + sum(x.source == link.source for x in network.links)
        prior = (passages[number] + COUNT) / (at_source + COUNT * options)
        own = true & (pairs.link == number)
        travel = fit(pairs.delay[own], link.window, link.travel)
        shares = zones.shares(link, network, pairs.source[own], pairs.target[own])
        given = round(float(prior), 6) if counts else link.prior
        links.append(replace(link, prior=given, travel=travel, zones=shares))
    if not counts:
        return Network(network.cameras, tuple(links))
    cameras = {
        name: replace(
            given,
            starts=round(float((starting[n] + COUNT) / (seen[n] + 2 * COUNT)), 6),
            ends=round(float((ending[n] + COUNT) / (seen[n] + 2 * COUNT)), 6),
        )
        for n, (name, given) in enumerate(network.cameras.items())
    }
    return Network(cameras, tuple(links))


def cross_fitted_prior(recording: Recording, pairs: Candidates, folds: int = 10) -> Prior:
    """The prior of every candidate by links learned without the identities of both of its ends.

    Identities fall into ``folds``; a pair is judged by what the other folds show, so nothing is fitted on what is
    tested, even where the whole recording is.
    """
    known = sorted({t.truth for t in recording.tracklets if t.truth is not None})
    fold_of = {identity: n % folds for n, identity in enumerate(known)}
    fold = np.array([-1 if t.truth is None else fold_of[t.truth] for t in recording.tracklets])
    members = {n: {i for i, f in fold_of.items() if f == n} for n in range(folds)} | {-1: set[int]()}
    everywhere = prior_of(recording, pairs)
    link, travel, zone = (np.zeros(len(pairs)) for _ in range(3))
    starts, ends = everywhere.starts.copy(), everywhere.ends.copy()
    ends_of = np.sort(np.stack([fold[pairs.source], fold[pairs.target]]), axis=0)
    for a in range(-1, folds):
        for b in range(a, folds):
            own = (ends_of[0] == a) & (ends_of[1] == b)
            if not own.any() and a != b:
                continue
            given = prior_of(recording, pairs, learn_links(recording, members[a] | members[b], pairs))
            link[own], travel[own], zone[own] = given.link[own], given.travel[own], given.zone[own]
            if a == b:
                starts[fold == a], ends[fold == a] = given.starts[fold == a], given.ends[fold == a]
    return Prior(link, travel, zone, everywhere.place, starts, ends, everywhere.overlap)
