"""Link prediction on a knowledge graph: attention over typed edges, beside DistMult alone.

A fact (head, relation, tail) is an edge, and an edge back of the inverse relation. An entity hears from its
neighbours: key and value of an edge are made of the neighbour and the relation (once where edges share both), and
`EdgeTypePrior` is a learned logit a relation, so that some relations are listened to more than others whatever the
neighbour. What comes out is scored by DistMult: Σ_d head_d · relation_d · tail_d. The baseline is the same DistMult on
the embeddings themselves.

python -m examples.knowledge_graph [--data DIR --dataset umls] [--small] [--seed 0] [--out out/knowledge_graph]

DIR holds a folder a data set (umls, kinships, nations) with train.txt, valid.txt and test.txt, one fact a line, head,
relation and tail apart by tabs; or NAME.tar.gz with these three (FB15k-237, WN18RR). Without DIR: a made-up family.
"""

from __future__ import annotations

import argparse
import tarfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import attnops
from attnops import Edges, EdgeTypePrior


@dataclass
class Facts:
    """Facts as numbers, each with its inverse: relation r + R leads back."""

    entities: int
    relations: list[str]  # R names
    parts: dict[str, Tensor]  # train, valid, test: [facts, 3], head, relation, tail

    def both_ways(self, part: str) -> Tensor:
        """`[2 · facts, 3]`: the facts, then the facts turned round."""
        head, relation, tail = self.parts[part].unbind(1)
        back = torch.stack([tail, relation + len(self.relations), head], dim=1)
        return torch.cat([self.parts[part], back])


# ------------------------------------------------------------------------------------------------------- facts
def read_facts(folder: Path, name: str) -> Facts:
    """Read a data set from its folder, or from its archive without unpacking it."""
    archive = folder / f"{name}.tar.gz"
    lines: dict[str, list[str]] = {}
    if (folder / name).is_dir():
        for part in ("train", "valid", "test"):
            lines[part] = (folder / name / f"{part}.txt").read_text(encoding="utf-8").splitlines()
    elif archive.is_file():
        with tarfile.open(archive) as members:
            for member in members:
                part = Path(member.name).stem
                opened = members.extractfile(member)
                if part in ("train", "valid", "test") and opened is not None:
                    lines[part] = opened.read().decode("utf-8").splitlines()
    else:
        raise SystemExit(f"--data {folder} has neither a folder {name} nor {name}.tar.gz")
    return number({part: [tuple(line.split("\t")) for line in text if line] for part, text in lines.items()})


def number(named: dict[str, list[tuple[str, ...]]]) -> Facts:
    """Give entities and relations their numbers, in the order of their names."""
    facts = [fact for part in named.values() for fact in part]
    wrong = [fact for fact in facts if len(fact) != 3]
    if wrong:
        raise SystemExit(f"a fact is head, relation and tail, apart by tabs; one is {wrong[0]}")
    entities = {name: place for place, name in enumerate(sorted({end for h, _, t in facts for end in (h, t)}))}
    relations = {name: place for place, name in enumerate(sorted({relation for _, relation, _ in facts}))}
    parts = {
        part: torch.tensor([[entities[h], relations[r], entities[t]] for h, r, t in rows]).view(-1, 3)
        for part, rows in named.items()
    }
    return Facts(len(entities), list(relations), parts)


def family(generations: int = 5, couples: int = 12, seed: int = 0) -> Facts:
    """A made-up family: parents, grandparents, siblings and spouses; a tenth of the facts each to validate and test."""
    generator = torch.Generator().manual_seed(seed)
    facts: list[tuple[str, ...]] = []
    parents: dict[str, tuple[str, str]] = {}
    for generation in range(generations):
        people = [f"{generation}.{number}" for number in range(2 * couples)]
        order = torch.randperm(len(people), generator=generator).tolist()
        wed = [(people[a], people[b]) for a, b in zip(order[::2], order[1::2], strict=True)]
        facts += [(a, "spouse", b) for a, b in wed]
        if generation + 1 < generations:
            for place in range(2 * couples):
                parents[f"{generation + 1}.{place}"] = wed[int(torch.randint(couples, (1,), generator=generator))]
    for child, pair in parents.items():
        facts += [(parent, "parent", child) for parent in pair]
        facts += [(elder, "grandparent", child) for parent in pair for elder in parents.get(parent, ())]
        facts += [(child, "sibling", other) for other in parents if other < child and parents[other] == pair]
    facts = list(dict.fromkeys(facts))  # cousins marry
    shuffled = [facts[place] for place in torch.randperm(len(facts), generator=generator).tolist()]
    tenth = len(facts) // 10
    return number({"test": shuffled[:tenth], "valid": shuffled[tenth : 2 * tenth], "train": shuffled[2 * tenth :]})


# ------------------------------------------------------------------------------------------------------ models
class DistMult(nn.Module):
    """score(h, r, t) = Σ_d h_d · r_d · t_d over learned embeddings."""

    def __init__(self, facts: Facts, dim: int, dropout: float) -> None:
        super().__init__()
        self.entity = nn.Embedding(facts.entities, dim)
        self.relation = nn.Embedding(2 * len(facts.relations), dim)
        self.drop = nn.Dropout(dropout)
        for table in (self.entity, self.relation):
            nn.init.xavier_normal_(table.weight)

    def encode(self, graph: Tensor) -> Tensor:
        """Entities as they are scored, `[N, dim]`; the graph `[facts, 3]` is not read here."""
        return self.entity.weight

    def forward(self, graph: Tensor, head: Tensor, relation: Tensor) -> Tensor:
        """Scores of all entities as the tail, `[B, N]`."""
        entities = self.encode(graph)
        wanted = self.drop(entities[head]) * self.drop(self.relation(relation))
        return wanted @ entities.t()


class Listening(DistMult):
    """DistMult over entities that have heard from their neighbours, once a layer."""

    def __init__(self, facts: Facts, dim: int, dropout: float, heads: int = 4, prior: bool = True) -> None:
        super().__init__(facts, dim, dropout)
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.prior = EdgeTypePrior(2 * len(facts.relations), heads) if prior else None

    def encode(self, graph: Tensor) -> Tensor:
        """`[N, dim]`: every entity, and what it hears along the edges that end in it."""
        source, relation, target = graph.unbind(1)
        x = self.entity.weight
        kinds = self.relation.num_embeddings
        pair, said_by = torch.unique(source * kinds + relation, return_inverse=True)
        said = x[pair // kinds] * self.relation(pair % kinds)  # one key and one value a neighbour and relation
        query, key, value = (
            rows.view(-1, self.heads, x.shape[1] // self.heads).transpose(0, 1)
            for rows in (self.query(x), self.key(said), self.value(said))
        )
        edges = Edges(torch.stack([said_by, target]), len(x), len(pair), type=relation)
        heard = attnops.attend(query, key, value, pattern=edges, bias=self.prior)
        assert isinstance(heard, Tensor)
        out: Tensor = x + self.drop(self.out(torch.tanh(heard.transpose(0, 1).flatten(1))))
        return out


# --------------------------------------------------------------------------------------------- training, scores
def train(model: DistMult, facts: Facts, steps: int, batch: int, generator: torch.Generator) -> float:
    """Learn to name the tail among all entities; a fact that is asked about is not in the graph that is heard from."""
    known, back = facts.both_ways("train"), len(facts.parts["train"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for _ in range(steps):
        order = torch.randperm(back, generator=generator)
        count = min(batch, back // 2)
        asked, heard = (torch.cat([part, part + back]) for part in (order[:count], order[count:]))
        head, relation, tail = known[asked].unbind(1)
        loss = nn.functional.cross_entropy(model(known[heard], head, relation), tail)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


def ranks(model: DistMult, facts: Facts, part: str) -> Tensor:
    """The filtered rank of each fact's tail and, turned round, head; equal scores share the mean of their ranks."""
    graph, asked = facts.both_ways("train"), facts.both_ways(part)
    everything = torch.cat([facts.both_ways(name) for name in facts.parts])
    true: dict[tuple[int, int], list[int]] = {}
    for head, relation, tail in everything.tolist():
        true.setdefault((head, relation), []).append(tail)
    found = []
    model.eval()
    with torch.no_grad():
        entities = model.encode(graph)
        for rows in asked.split(512):
            head, relation, tail = rows.unbind(1)
            scores = entities[head] * model.relation(relation) @ entities.t()
            own = scores.gather(1, tail.unsqueeze(1))
            right = [(place, t) for place, (h, r, _) in enumerate(rows.tolist()) for t in true[h, r]]
            row, column = torch.tensor(right, dtype=torch.long).view(-1, 2).unbind(1)
            scores[row, column] = -torch.inf  # other right answers do not count against this one
            found.append(1 + (scores > own).sum(1) + (scores == own).sum(1) / 2)
    return torch.cat(found)


def draw(model: Listening, facts: Facts, path: Path) -> None:
    """What each relation, and each inverse, is worth before a neighbour is looked at."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    assert model.prior is not None
    worth = model.prior.weight.detach().mean(1)
    names = [*facts.relations, *(f"{name} (back)" for name in facts.relations)]
    order = worth.argsort(descending=True).tolist()
    chosen = order if len(order) <= 16 else [*order[:8], *order[-8:]]
    figure, axes = pyplot.subplots(figsize=(7, 0.8 + 0.27 * len(chosen)), layout="constrained")
    colours = ["#0072b2" if worth[place] > 0 else "#d55e00" for place in chosen]
    axes.barh(range(len(chosen)), worth[chosen].tolist(), color=colours)
    axes.set_yticks(range(len(chosen)), [names[place].rsplit("/", 1)[-1][:40] for place in chosen], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    which = "" if len(chosen) == len(order) else ", the 8 highest and the 8 lowest"
    axes.set(title=f"the learned prior of a relation{which}", xlabel="logit, mean over heads")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft.png")
    figure.savefig(draft, dpi=120)
    draft.replace(path)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, tuple[float, float]]:
    """Run from the command line; MRR and hits@10 on the test facts are returned by model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=None, help="folder of data sets; without it, a made-up family")
    parser.add_argument("--dataset", default="umls", help="umls, kinships, nations, FB15k-237, WN18RR")
    parser.add_argument("--small", action="store_true", help="few steps: seconds")
    parser.add_argument("--steps", type=int, default=None, help="of training (400; 80 in small)")
    parser.add_argument("--batch", type=int, default=1024, help="facts that are asked about in a step")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/knowledge_graph"))
    given = parser.parse_args(arguments)
    facts = family(seed=given.seed) if given.data is None else read_facts(given.data, given.dataset)
    steps = given.steps or (80 if given.small else 400)
    counts = ", ".join(f"{len(rows)} {part}" for part, rows in sorted(facts.parts.items(), reverse=True))
    name = "a made-up family" if given.data is None else given.dataset
    print(f"{name}: {facts.entities} entities, {len(facts.relations)} relations; facts: {counts}; seed {given.seed}")

    results, models = {}, {}
    print(f"{'model':36}{'parameters':>12}{'MRR':>8}{'hits@1':>9}{'hits@10':>9}")
    for title, build in {
        "DistMult, not trained": lambda: DistMult(facts, given.dim, given.dropout),
        "DistMult": lambda: DistMult(facts, given.dim, given.dropout),
        "attention + DistMult, no prior": lambda: Listening(facts, given.dim, given.dropout, prior=False),
        "attention with EdgeTypePrior": lambda: Listening(facts, given.dim, given.dropout),
    }.items():
        torch.manual_seed(given.seed)
        models[title] = model = build()
        if not title.endswith("not trained"):
            train(model, facts, steps, given.batch, torch.Generator().manual_seed(given.seed))
        rank = ranks(model, facts, "test")
        results[title] = (float((1 / rank).mean()), float((rank <= 10).float().mean()))
        size = sum(parameter.numel() for parameter in model.parameters())
        first = float((rank <= 1).float().mean())
        print(f"{title:36}{size:12}{results[title][0]:8.3f}{first:9.3f}{results[title][1]:9.3f}")
    path = given.out / "prior.png"
    told = models["attention with EdgeTypePrior"]
    assert isinstance(told, Listening)
    draw(told, facts, path)
    print(f"filtered ranks, both directions, equal scores at their mean rank\nthe learned prior: {path}")
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
