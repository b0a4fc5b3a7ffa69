"""The compiled kernels beside threads and forks: the same bits whoever computes them, and no thread too many."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import attnops
from attnops.kernels import library

pytestmark = [
    pytest.mark.skipif(library.unavailable() is not None, reason=str(library.unavailable())),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.usefixtures("two_threads"),
]
H, D = 4, 16


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def edges_with_a_hub() -> attnops.Edges:
    """120 nodes and enough edges for many tasks, half of them into one node and a quarter out of another."""
    ends = torch.randint(0, 120, (2, 12_000), generator=torch.Generator().manual_seed(0))
    ends[1, ::2] = 7
    ends[0, 1::4] = 5
    return attnops.Edges(ends, 120, 120)


def trained(num_nodes: int, **arguments: object) -> list[bytes]:
    """Output, lse and gradients, as bytes."""
    random = torch.Generator().manual_seed(1)
    query, key, value, upstream = (torch.randn(H, num_nodes, D, generator=random) for _ in range(4))
    inputs = [x.requires_grad_() for x in (query, key, value)]
    torch.manual_seed(2)  # of dropout
    got = attnops.attend(*inputs, backend="native", return_lse=True, **arguments)  # type: ignore[arg-type]
    assert isinstance(got, attnops.AttentionOutput) and got.lse is not None
    gradients = torch.autograd.grad(got.out, inputs, upstream)
    return [bits(x) for x in (got.out, got.lse, *gradients)]


def bits(x: Tensor) -> bytes:
    return x.detach().contiguous().numpy().tobytes()


EDGES = edges_with_a_hub()
CASES: dict[str, Callable[[], list[bytes]]] = {
    "edges": lambda: trained(120, pattern=EDGES),
    "edges, dropout": lambda: trained(120, pattern=EDGES, dropout=0.3),
    "edges, GATv2": lambda: trained(120, pattern=EDGES, score=_gatv2()),
    "causal and ALiBi": lambda: trained(300, pattern=attnops.Causal(), bias=attnops.ALiBi(H)),
    "window": lambda: trained(500, pattern=attnops.SlidingWindow(31)),
}
each_case = pytest.mark.parametrize("name", CASES)


def _gatv2() -> attnops.Score:
    score = attnops.Additive(H, D, activation="leaky_relu")
    with torch.no_grad():
        for parameter in score.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    return score


@each_case
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    torch.set_num_threads(1)
    alone = CASES[name]()
    assert CASES[name]() == alone
    for count in (2, 4):
        torch.set_num_threads(count)
        assert CASES[name]() == alone, f"{count} threads"


@pytest.mark.parametrize("name", [name for name in CASES if "dropout" not in name])  # its seed is all threads' one
def test_several_python_threads_at_once_get_the_same_bits(name: str) -> None:
    alone = CASES[name]()
    with ThreadPoolExecutor(4) as pool:
        together = [pool.submit(CASES[name]) for _ in range(8)]
        assert all(each.result(timeout=60) == alone for each in together)


@each_case
def test_a_forked_child_gets_the_same_bits_and_does_not_hang(name: str) -> None:
    """OpenMP's threads are not there after a fork; torch's own calls would wait for them for ever."""
    before = CASES[name]()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs is killed
        with os.fdopen(write, "wb") as pipe:
            pipe.write(b"".join(CASES[name]()))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        after = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert after == b"".join(before)
    assert CASES[name]() == before


def test_a_pool_of_forked_processes_gets_the_same_bits() -> None:
    before = [CASES[name]() for name in CASES]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_run, list(CASES)).get(timeout=60) == before


def _run(name: str) -> list[bytes]:
    return CASES[name]()


class Attended(Dataset[Tensor]):
    """Graphs that a worker attends over as it loads them."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, seed: int) -> Tensor:
        x = torch.randn(3, H, 120, D, generator=torch.Generator().manual_seed(seed))
        out = attnops.attend(*x, pattern=EDGES, backend="native")
        assert isinstance(out, Tensor)
        return out


def test_the_workers_of_a_data_loader_get_the_same_bits() -> None:
    alone = [Attended()[seed] for seed in range(4)]
    loader = DataLoader(Attended(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
    loaded = list(loader)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(loaded, alone, strict=True))


@each_case
def test_every_vector_level_gives_nearly_the_same_numbers(name: str) -> None:
    widest = library.level()
    results = {}
    try:
        for level in library.levels():
            library.use_level(level)
            results[level] = [torch.frombuffer(bytearray(part), dtype=torch.float32) for part in CASES[name]()]
    finally:
        library.use_level(widest)
    for level, result in results.items():
        for ours, theirs in zip(result, results["plain"], strict=True):
            assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max(), level


FRESH = """
import os, sys, threading, torch, attnops
torch.set_num_threads(3)
x = torch.randn(3, 4, 400, 16, requires_grad=True)
graph = attnops.Edges(torch.randint(0, 400, (2, 200_000)), 400, 400)
most, done = 0, threading.Event()
def watch():
    global most
    while not done.wait(1e-4):
        most = max(most, len(os.listdir("/proc/self/task")))
torch.randn(4_000_000).exp().sum()  # torch's own threads are there now
watcher = threading.Thread(target=watch)
watcher.start()
allowed = len(os.listdir("/proc/self/task"))
for _ in range(3):
    for pattern in (graph, attnops.Causal()):
        attnops.attend(*x, pattern=pattern, backend="native").sum().backward()
done.set()
watcher.join()
print(most, allowed)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
def test_no_more_threads_run_than_torch_has() -> None:
    run = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    most, allowed = (int(number) for number in run.stdout.split())
    assert 0 < most <= allowed


PROCESSES = """
import sys
begun = []
sys.addaudithook(lambda event, _: begun.append(event) if event.startswith(("subprocess", "os.posix_spawn", "os.fork",
                                                                            "os.exec", "os.system")) else None)
import torch
begun.clear()
import attnops
x = torch.randn(3, 1, 4, 2)
attnops.attend(*x, pattern=attnops.Edges(torch.tensor([[0], [1]]), 4, 4), backend="native")
print(begun)
import os
os.system("true")
print(begun)
"""


def test_no_compiler_and_no_other_program_is_started() -> None:
    run = subprocess.run([sys.executable, "-c", PROCESSES], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["[]", "['os.system']"]
