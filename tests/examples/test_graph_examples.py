"""The short graph examples, small: what each shows is so, its files are whole, the same seed gives the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib", reason="the examples draw: they need the extra viz")
pytest.importorskip("networkx", reason="the examples make graphs: they need the extra networkx")
pytest.importorskip("scipy", reason="shortest paths need scipy")

import attnops
from examples import dictionary_lookup, graphormer, knowledge_graph, large_graph, temporal_graph

Main = Callable[[list[str]], Any]


def run(main: Main, out: Path, *arguments: str) -> Any:
    """Run an example into `out` and hold the files that it leaves to be whole pictures and tables."""
    result = main([*arguments, "--out", str(out)])
    names = [path.name for path in out.iterdir()]
    assert names and not [name for name in names if "draft" in name]
    for picture in out.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5000
    return result


def test_gat_fails_at_the_dictionary_and_gatv2_solves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gat, gatv2 = run(dictionary_lookup.main, tmp_path, "--small")
    assert gat.accuracy < 0.6 and gatv2.accuracy > 0.95
    assert gat.favourites == 1 and gatv2.favourites == 5  # static, and not
    assert torch.allclose(gatv2.weights.sum(-1), torch.ones(1, 5))
    table = capsys.readouterr().out
    assert "GATv2" in table and "1 of 5" in table and "5 of 5" in table


def test_distances_are_what_the_task_needs(tmp_path: Path) -> None:
    results = run(graphormer.main, tmp_path, "--small")
    told, untold, _ = (test for _, test in results.values())
    assert told > untold + 0.1


def test_no_message_comes_from_the_future(tmp_path: Path) -> None:
    """By gradients, for every model that is meant to be causal; the one that is not shows that the test can fail."""
    results = run(temporal_graph.main, tmp_path, "--small")
    *causal, leaky = results.items()
    for name, (recorded, replayed, leakage) in causal:
        assert leakage == 0.0 and recorded == replayed, name
    assert leaky[1][2] > 0


def test_answers_do_not_change_as_the_stream_goes_on() -> None:
    stream = temporal_graph.simulate(60, 3, seed=1)
    edges = temporal_graph.same_pair(stream)
    for name, model in temporal_graph.readers().items():
        with torch.no_grad():
            recorded = model(stream.look, stream.time, edges)[20:]
            replayed = temporal_graph.replay(model, stream, 20)
        assert torch.allclose(recorded, replayed, atol=1e-5) != (name == "past and future + TimeGap"), name


@pytest.mark.parametrize("kind", ["scatter", "reference"])
def test_leakage_by_backend(kind: str) -> None:
    """The gradient of an output with respect to a later event is exactly 0."""
    stream = temporal_graph.simulate(30, 2, seed=2)
    x = torch.randn(2, 30, 4, requires_grad=True)
    pattern = temporal_graph.same_pair(stream) & attnops.Causal()
    when = attnops.Coords(position=stream.time, time=stream.time)
    out = attnops.attend(x, x, x, pattern=pattern, bias=attnops.TimeGap(2), coords=when, backend=kind)
    for i in (0, 10, 29):
        (gradient,) = torch.autograd.grad(out[:, i].sum(), x, retain_graph=True)
        assert not gradient[:, stream.time > stream.time[i]].any() and gradient[:, i].any()


def test_links_of_a_family_are_predicted(tmp_path: Path) -> None:
    results = run(knowledge_graph.main, tmp_path, "--small")
    baseline, *trained = results
    assert trained == ["DistMult", "attention + DistMult, no prior", "attention with EdgeTypePrior"]
    assert results[baseline][0] < 0.1
    for mrr, hits in (results[name] for name in trained):
        assert 0.15 < mrr < hits <= 1  # by chance: 0.04 and 0.08


def test_ranks_are_filtered_and_ties_share_them() -> None:
    facts = knowledge_graph.number(
        {"train": [("a", "r", "b"), ("a", "r", "c")], "valid": [], "test": [("a", "r", "d")]}
    )
    model = knowledge_graph.DistMult(facts, 4, 0.0)
    with torch.no_grad():
        model.relation.weight.fill_(1.0)
        model.entity.weight.copy_(torch.tensor([[1.0], [5.0], [3.0], [3.0]]).expand(4, 4))
    # a → d: b and c are right too, so only a (lower) is left; d → a: all of b, c, d score more
    assert knowledge_graph.ranks(model, facts, "test").tolist() == [1.0, 4.0]
    with torch.no_grad():
        model.entity.weight.fill_(1.0)
    assert knowledge_graph.ranks(model, facts, "test").tolist() == [1.5, 2.5]


def test_facts_that_are_asked_about_are_not_heard_from(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = knowledge_graph.family(3, 3)
    asked: list[tuple[set[Any], set[Any]]] = []

    class Watched(knowledge_graph.DistMult):
        def forward(self, graph: torch.Tensor, head: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
            pairs = {tuple(pair) for pair in torch.stack([head, relation], 1).tolist()}
            asked.append(({tuple(row) for row in graph.tolist()}, pairs))
            return super().forward(graph, head, relation)

    knowledge_graph.train(Watched(facts, 4, 0.0), facts, 2, 10_000, torch.Generator().manual_seed(0))
    known = facts.both_ways("train")
    half = len(facts.parts["train"])
    for heard, _ in asked:
        assert len(heard) == 2 * (half - half // 2)
        for h, r, t in heard:  # a fact is heard from both ways, or asked about both ways
            back = (r + len(facts.relations)) % (2 * len(facts.relations))
            assert (t, back, h) in heard
    assert {tuple(row) for row in known.tolist()} > asked[0][0]


@pytest.mark.parametrize("name", ["umls", "FB15k-237"])
def test_real_facts_are_read(name: str, data_dir: Path) -> None:
    facts = knowledge_graph.read_facts(data_dir / "kg", name)
    entities, relations, counts = {
        "umls": (135, 46, [5216, 652, 661]),
        "FB15k-237": (14541, 237, [272115, 17535, 20466]),
    }[name]
    assert (facts.entities, len(facts.relations)) == (entities, relations)
    assert [len(facts.parts[part]) for part in ("train", "valid", "test")] == counts


def test_a_missing_data_set_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has neither a folder umls nor umls"):
        knowledge_graph.main(["--data", str(tmp_path)])


def test_parts_of_a_large_graph_learn_what_the_whole_does(tmp_path: Path) -> None:
    figures = {chunks: run(large_graph.main, tmp_path / chunks, "--small", "--chunks", chunks) for chunks in ("1", "8")}
    assert figures["8"]["loss"] == pytest.approx(figures["1"]["loss"], rel=1e-3)
    assert json.loads((tmp_path / "8" / "figures.json").read_text()) == figures["8"]
    assert 0 < figures["8"]["bare_gb"] <= figures["8"]["peak_gb"]


def test_gradients_of_parts_are_those_of_the_whole() -> None:
    torch.manual_seed(0)
    model = large_graph.Model().double()
    gradients = []
    for chunks in (1, 4):
        graph = large_graph.make_graph(3000, 128, chunks, seed=0)
        assert sum(part.edge_index.shape[1] for part in graph.parts) == 3000 and len(graph.parts) == chunks
        graph.x = graph.x.double()
        loss = torch.nn.functional.cross_entropy(model(graph), graph.community)
        model.zero_grad()
        loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for whole, parts in zip(*gradients, strict=True):
        torch.testing.assert_close(parts, whole)


def test_a_budget_that_is_exceeded_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"the budget is 0\.01 GB"):
        large_graph.main(["--small", "--steps", "1", "--budget", "0.01", "--out", str(tmp_path)])
