"""What is written is read again: laws of every format, and of the links file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.mtmc.network.links_file import dump_network, load_network
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.table_writers import csv_text, tracklets_table, write_parquet
from examples.mtmc.recordings.tracklets import Recording, Track
from examples.mtmc.recordings.writers import write_recording
from tests.examples.mtmc_strategies import networks, recordings

TOLERANCE = {"aicity": 0.0101, "mot": 0.0101, "campus": 1e-6, "csv": 0.0, "parquet": 0.0}


@given(network=networks(), json=st.booleans())
@settings(max_examples=60)
def test_any_network_is_read_as_it_was_written(network: Network, json: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("links.json" if json else "links.yaml")
        path.write_text(dump_network(network, json=json), encoding="utf-8")
        assert load_network(path) == network
        assert dump_network(load_network(path), json=json) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("format", ["aicity", "mot", "csv", "parquet"])
@given(recording=recordings())
@settings(max_examples=15)
def test_any_recording_is_read_as_it_was_written(format: str, recording: Recording) -> None:
    with tempfile.TemporaryDirectory() as folder:
        once, twice = Path(folder) / "once", Path(folder) / "twice"
        write_recording(once, recording, format)
        again = read(once, format, recording.network)
        same_tracks([*recording.tracklets], [*again.tracklets], TOLERANCE[format])
        same_tracks(recording.truth, again.truth, TOLERANCE[format])
        looks = {(t.camera, t.id): t.embedding for t in again.tracklets}
        for t in recording.tracklets:
            found = looks[t.camera, t.id]
            assert (found is None) == (t.embedding is None)
            assert found is None or np.array_equal(found, t.embedding)  # type: ignore[arg-type]
        write_recording(twice, again, format)
        if format != "parquet":  # whose bytes need not be the same
            for path in sorted(once.rglob("*.[tc][xs][tv]")):
                rows = (twice / path.relative_to(once)).read_text(encoding="utf-8")
                assert sorted(rows.splitlines()) == sorted(path.read_text(encoding="utf-8").splitlines())


@given(recording=recordings())
@settings(max_examples=15)
def test_true_tracks_are_read_from_campus_text(recording: Recording) -> None:
    recording.truth = [Track(t.camera, t.id, t.frames, t.boxes) for t in recording.tracklets]
    with tempfile.TemporaryDirectory() as folder:
        write_recording(Path(folder), recording, "campus")
        again = read(Path(folder), "campus", recording.network)
        same_tracks(recording.truth, again.truth, TOLERANCE["campus"])
        assert {t.truth for t in again.tracklets} == {t.id for t in recording.truth}


@pytest.mark.parametrize("format", ["csv", "parquet"])
@given(recording=recordings())
@settings(max_examples=15)
def test_a_table_of_tracklets_keeps_their_ends(format: str, recording: Recording) -> None:
    with tempfile.TemporaryDirectory() as folder:
        columns = tracklets_table(recording.tracklets)
        if format == "csv":
            (Path(folder) / "t.csv").write_text(csv_text(columns), encoding="utf-8")
        else:
            write_parquet(Path(folder) / "t.parquet", columns)
        again = {(t.camera, t.id): t for t in read(Path(folder), format, recording.network).tracklets}
        assert len(again) == len(recording.tracklets)
        for t in recording.tracklets:
            found = again[t.camera, t.id]
            ends = [0, -1] if len(t.frames) > 1 else [0]
            assert np.array_equal(found.frames, t.frames[ends]) and np.array_equal(found.boxes, t.boxes[ends])
            assert (found.time_in, found.time_out, found.zone_in) == (t.time_in, t.time_out, t.zone_in)
            assert (found.embedding is None) == (t.embedding is None)
            assert found.embedding is None or np.array_equal(found.embedding, t.embedding)  # type: ignore[arg-type]


def same_tracks(expected: list[Track], found: list[Track], tolerance: float) -> None:
    """Equal but for what a format rounds."""
    by_key = {(t.camera, t.id): t for t in found}
    assert set(by_key) == {(t.camera, t.id) for t in expected} and len(found) == len(expected)
    for track in expected:
        other = by_key[track.camera, track.id]
        assert np.array_equal(track.frames, other.frames)
        np.testing.assert_allclose(other.boxes, track.boxes, rtol=0, atol=tolerance)
        if tolerance != TOLERANCE["campus"]:  # which holds no places
            assert (other.world is None) == (track.world is None)
            if track.world is not None and other.world is not None:
                np.testing.assert_allclose(other.world, track.world, rtol=1e-9 * (tolerance > 0), atol=0)
