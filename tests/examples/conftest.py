"""A small simulated recording and a small trained matcher, shared by the tests of the example."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_geometric", reason="the tracking example needs the extra mtmc")
pytest.importorskip("trackeval", reason="the tracking example needs the extra mtmc")

from examples.mtmc.matching.methods import Scene, scene
from examples.mtmc.network.learn import learn_links
from examples.mtmc.simulator.simulate import World, simulate


@pytest.fixture(scope="session")
def world() -> World:
    return simulate(3, minutes=6, per_minute=6)


@pytest.fixture(scope="session")
def town_scene(world: World) -> Scene:
    return scene(world.recording, learn_links(world.recording))
