"""Laws of rotary positions and their scalings; parity with transformers is in peers/test_rotary_transformers.py."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import attnops
from attnops import Causal, Coords
from attnops.biases import Rotary, RotaryScaling
from attnops.biases.rotary import KEPT_TABLES, longest
from attnops.coords import is_concrete

LAWS: dict[str, Callable[[], RotaryScaling | None]] = {
    "plain": lambda: None,
    "linear": lambda: RotaryScaling.linear(4.0),
    "ntk": lambda: RotaryScaling.ntk(4.0),
    "ntk_by_parts": lambda: RotaryScaling.ntk_by_parts(4.0, 64),
    "dynamic_ntk": lambda: RotaryScaling.dynamic_ntk(2.0, 8),
    "yarn": lambda: RotaryScaling.yarn(4.0, 64),
    "llama3": lambda: RotaryScaling.llama3(8.0, 64),
    "longrope": lambda: RotaryScaling.longrope([1.0, 1.5, 2.0, 2.5], [1.0, 4.0, 9.0, 16.0], 8, factor=4.0),
}
every_law = pytest.mark.parametrize("law", LAWS)


def rotary(law: str = "plain", dim: int = 8, interleaved: bool = False) -> Rotary:
    return Rotary(dim, base=100.0, scaling=LAWS[law](), interleaved=interleaved)


def vectors(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def turned(
    bias: Rotary, query: Tensor, key: Tensor, p_query: Tensor, p_key: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    p_key = p_query if p_key is None else p_key
    return bias.rotate(query, key, (Coords(position=p_query), Coords(position=p_key)))


# -------------------------------------------------------------------------------------------------------------- the law
@given(shift=st.integers(-50, 1000), interleaved=st.booleans(), seed=st.integers(0, 1000))
@pytest.mark.parametrize("law", [law for law in LAWS if law not in ("dynamic_ntk", "longrope")])
def test_scores_depend_on_differences_of_position_only(law: str, shift: int, interleaved: bool, seed: int) -> None:
    torch.manual_seed(seed)
    query, key = vectors(2, 3, 5, 12), vectors(2, 1, 5, 12)
    position = torch.randint(0, 100, (2, 5))
    bias = rotary(law, interleaved=interleaved)
    here, there = turned(bias, query, key, position), turned(bias, query, key, position + shift)
    torch.testing.assert_close(here[0] @ here[1].mT, there[0] @ there[1].mT, rtol=1e-9, atol=1e-9)


def test_the_formula_pair_by_pair() -> None:
    position = torch.tensor([0, 1, 9, 300])
    for interleaved in (False, True):
        x = vectors(1, 1, 4, 10)
        got = rotary(interleaved=interleaved).turn(x, position[None])
        exact = x.clone()
        for row, p in enumerate(position.tolist()):
            for j in range(4):
                a, b = (2 * j, 2 * j + 1) if interleaved else (j, j + 4)
                angle = p * 100 ** (-2 * j / 8)
                first, second = float(x[0, 0, row, a]), float(x[0, 0, row, b])
                exact[0, 0, row, a] = first * math.cos(angle) - second * math.sin(angle)
                exact[0, 0, row, b] = second * math.cos(angle) + first * math.sin(angle)
        torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-12)


@every_law
def test_rotations_keep_lengths_but_for_the_magnitude(law: str) -> None:
    x, bias = vectors(2, 3, 5, 8), rotary(law)
    scaling = bias.scaling or RotaryScaling()
    query, _ = turned(bias, x, x, torch.randint(0, 100, (2, 5)))
    torch.testing.assert_close(query.norm(dim=-1), x.norm(dim=-1) * scaling.magnitude)
    assert (scaling.magnitude == 1.0) == (law not in ("yarn", "longrope"))


@every_law
def test_every_row_has_its_own_length(law: str) -> None:
    """A row's result does not depend on the rows beside it; its length counts cached keys and queries alike."""
    query, key = vectors(3, 2, 2, 8), vectors(3, 1, 6, 8)
    p_key = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 30], [7, 6, 5, 4, 3, 2]])
    p_query = torch.tensor([[4, 5], [0, 1], [90, 2]])
    bias = rotary(law)
    together = turned(bias, query, key, p_query, p_key)
    for row in range(3):
        one = slice(row, row + 1)
        alone = turned(bias, query[one], key[one], p_query[one], p_key[one])
        for side in (0, 1):
            torch.testing.assert_close(together[side][one], alone[side], rtol=0, atol=0)
    if bias.depends_on_length:
        wide = turned(bias, query[1:2], key[1:2], p_query[1:2], torch.tensor([[0, 1, 2, 3, 4, 5]]))
        assert not torch.allclose(together[0][1:2], wide[0])  # the key at 30 changes the query's angles


@every_law
def test_a_cached_step_equals_the_full_pass(law: str) -> None:
    x, bias = vectors(2, 12, 8), rotary(law)

    def attend(query: Tensor, length: int) -> Tensor:
        return attnops.attend(query, x[:, :length], x[:, :length], pattern=Causal(), bias=bias, backend="reference")

    for length in (3, 8, 9, 12):
        full = attend(x[:, :length], length)[:, -1:]
        torch.testing.assert_close(attend(x[:, length - 1 : length], length), full, rtol=1e-12, atol=1e-12)


def test_positions_need_no_batch_axis() -> None:
    x, position = vectors(1, 2, 5, 8), torch.arange(5) * 3
    for law in LAWS:
        flat, batched = turned(rotary(law), x, x, position), turned(rotary(law), x, x, position[None])
        assert torch.equal(flat[0], batched[0]) and torch.equal(flat[1], batched[1])


def test_longest_counts_every_position() -> None:
    assert longest(torch.tensor([[3, 9]]), torch.tensor([[1], [20]])).tolist() == [10, 21]
    assert longest(torch.zeros(1, 0), torch.tensor([[4.5]])).tolist() == [5.5]
    assert longest(torch.zeros(1, 0), torch.zeros(1, 0)).tolist() == [0]
    assert longest(torch.tensor([[255]], dtype=torch.uint8)).tolist() == [256]


@every_law
def test_no_tokens(law: str) -> None:
    empty, some = vectors(2, 3, 0, 8), vectors(2, 3, 4, 8)
    query, key = turned(rotary(law), empty, some, torch.zeros(1, 0, dtype=torch.int64), torch.arange(4)[None])
    assert query.shape == empty.shape and key.shape == some.shape


# ------------------------------------------------------------------------------------------------- cases from the field
def test_case_b07_yarn_magnitude(cases: ModuleType) -> None:
    inputs, expected = cases.CASES["B07"]()
    names = ("factor", "attention_factor", "mscale", "mscale_all_dim")
    for values, magnitude in zip(inputs["rows"], expected["magnitude"].tolist(), strict=True):
        rope = dict(zip(names, values, strict=True))
        rope |= {"rope_type": "yarn", "original_max_position_embeddings": inputs["original_length"]}
        assert RotaryScaling.from_hf(rope).magnitude == pytest.approx(magnitude, rel=1e-15)
    scaling = RotaryScaling.yarn(inputs["factor"], inputs["original_length"], inputs["beta_fast"], inputs["beta_slow"])
    bias = Rotary(inputs["dim"], inputs["base"], scaling)
    torch.testing.assert_close(bias.inv_freq(dtype=torch.float64), expected["inv_freq"], rtol=1e-14, atol=0)
    query, key = turned(bias, inputs["q"][None, None], inputs["k"][None, None], inputs["positions"][None])
    torch.testing.assert_close((query @ key.mT)[0, 0], expected["dots"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("law", ["dynamic_ntk", "longrope"])
def test_case_b09_steps_equal_the_full_pass_of_their_length(cases: ModuleType, law: str) -> None:
    inputs, expected = cases.CASES["B09"]()
    length = inputs["original_length"]
    scaling = {
        "dynamic_ntk": RotaryScaling.dynamic_ntk(inputs["factor"], length),
        "longrope": RotaryScaling.longrope(inputs["short_factor"], inputs["long_factor"], length),
    }[law]
    bias = Rotary(inputs["dim"], inputs["base"], scaling)
    query, key, value = (inputs[name][None] for name in "qkv")
    steps = [
        attnops.attend(query[:, t - 1 : t], key[:, :t], value[:, :t], bias=bias, backend="reference")
        for t in range(1, query.shape[1] + 1)
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1)[0], expected[f"step_{law}"], rtol=1e-12, atol=1e-12)


def test_case_b11_layouts_and_partial_width(cases: ModuleType) -> None:
    inputs, expected = cases.CASES["B11"]()
    query, key, position = inputs["q"][None, None], inputs["k"][None, None], inputs["positions"][None]
    exact = {"rtol": 1e-14, "atol": 1e-14}
    for name, interleaved in (("half", False), ("interleaved", True)):
        bias = Rotary(8, interleaved=interleaved)
        for shift in (0, inputs["shift"]):
            left, right = turned(bias, query, key, position + shift)
            torch.testing.assert_close((left @ right.mT)[0, 0], expected[f"dots_{name}"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(bias.turn(query, position)[0, 0], expected[name], **exact)
    permuted = Rotary(8).turn(query[..., inputs["perm"]], position)
    torch.testing.assert_close(permuted[0, 0], expected["interleaved"][:, inputs["perm"]], **exact)
    partial = Rotary(inputs["rotary_dim"]).turn(query, position)[0, 0]
    torch.testing.assert_close(partial, expected["partial"], **exact)
    assert torch.equal(partial[:, 4:], query[0, 0, :, 4:])
    with pytest.raises(ValueError, match="dim is 7; it must be a positive even integer"):
        Rotary(inputs["odd_dim_must_be_rejected"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_case_b12_angles_in_a_half_precision_model(cases: ModuleType, dtype: torch.dtype) -> None:
    inputs, expected = cases.CASES["B12"]()
    rtol, atol = cases.TOL["B12"]
    bias = torch.nn.ModuleList([Rotary(8)]).to(dtype)[0]
    assert isinstance(bias, Rotary)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cos, sin = bias.waves(inputs["positions"])
    torch.testing.assert_close(cos.double(), expected["cos"], rtol=rtol, atol=atol)
    torch.testing.assert_close(sin.double(), expected["sin"], rtol=rtol, atol=atol)
    ones = torch.cat((torch.ones(1, 1, 6, 4, dtype=dtype), torch.zeros(1, 1, 6, 4, dtype=dtype)), -1)
    got = bias.turn(ones, inputs["positions"][None])  # (cos, sin), rounded once
    exact = torch.cat((expected["cos"], expected["sin"]), -1)
    assert got.dtype == dtype
    torch.testing.assert_close(got[0, 0].double(), exact, rtol=0, atol=atol + torch.finfo(dtype).eps)


# --------------------------------------------------------------------------------------------------- dtypes and tracing
@every_law
def test_half_precision_is_rounded_once(law: str) -> None:
    x, position = vectors(1, 2, 5, 8, dtype=torch.bfloat16), torch.arange(5)[None] * 3
    exact, _ = turned(rotary(law), x.float(), x.float(), position)
    got, _ = turned(rotary(law).to(torch.bfloat16), x, x, position)
    assert torch.equal(got, exact.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(turned(rotary(law), x.float(), x.float(), position)[0], exact)


def test_timestamps_keep_their_precision() -> None:
    """Scores of float32 vectors at float64 times of today equal those of the same times from 0."""
    x, since = vectors(1, 1, 4, 8, dtype=torch.float32), torch.tensor([[0.0, 0.25, 1.5, 2.0]], dtype=torch.float64)
    early, late = (turned(rotary(), x, x, since + start) for start in (0.0, 1.7e9))
    assert early[0].dtype == torch.float32
    torch.testing.assert_close(early[0] @ early[1].mT, late[0] @ late[1].mT, rtol=1e-5, atol=1e-5)


@every_law
def test_gradients(law: str) -> None:
    x, position = vectors(1, 2, 3, 8).requires_grad_(), torch.tensor([[0.5, 3.0, 40.0]]).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, p: turned(rotary(law), a, 2 * a, p), (x, position))


@every_law
def test_vmap(law: str) -> None:
    x, position, bias = vectors(4, 1, 2, 5, 8), torch.randint(0, 30, (4, 1, 5)), rotary(law)
    got = torch.vmap(lambda a, p: turned(bias, a, a, p))(x, position)
    want = turned(bias, x[:, 0], x[:, 0], position[:, 0])
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine[:, 0], other, rtol=1e-14, atol=1e-14)
    assert torch.equal(turned(bias, x[0], x[0], position[0])[0][0], want[0][0])  # nothing traced was kept


@every_law
def test_compile_without_a_graph_break(law: str) -> None:
    x, position, bias = vectors(2, 2, 5, 8), torch.randint(0, 30, (2, 5)), rotary(law)
    compiled = torch.compile(lambda a, p: turned(bias, a, a, p), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, position), turned(bias, x, x, position), rtol=1e-14, atol=1e-14)


def test_training_after_inference_mode() -> None:
    """What is kept between calls must serve both."""
    x, position, bias = vectors(1, 1, 3, 8), torch.arange(3)[None], rotary()
    with torch.inference_mode():
        turned(bias, x, x, position)
    query, _ = turned(bias, x.requires_grad_(), x, position.double().requires_grad_())
    query.sum().backward()
    assert x.grad is not None


def test_nothing_traced_is_kept() -> None:
    """Positions that can be read, inside a transform: the next call outside must not meet its tensors."""
    x, position, bias = vectors(1, 1, 3, 8), torch.arange(3)[None], rotary()
    torch.func.grad(lambda a: turned(bias, a, a, position)[0].sum())(x)
    coords = Coords(position=position)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for dtype in (torch.float64, torch.float32):
            fake = torch.zeros(1, 1, 3, 8, dtype=dtype)
            bias.rotate(fake, fake, (coords, coords))
    assert all(is_concrete(kept) for kept in bias._kept.values())
    turned(bias, x, x, position)
    assert bias._kept


@every_law
def test_copies(law: str) -> None:
    x, position, bias = vectors(1, 1, 3, 8), torch.arange(3)[None], rotary(law)
    want = turned(bias, x, x, position)
    for other in (copy.deepcopy(bias), pickle.loads(pickle.dumps(bias))):
        assert torch.equal(turned(other, x, x, position)[0], want[0])
        assert other.scaling == bias.scaling
    assert not bias.state_dict()


def test_kept_tables_follow_the_positions() -> None:
    x, position, bias = vectors(1, 1, 3, 8), torch.arange(3)[None], rotary()
    with torch.inference_mode():
        bias.turn(x, position.clone())
    before = bias.turn(x, position)
    position += 5  # in place, after its tables were kept
    assert torch.equal(bias.turn(x, position), rotary().turn(x, position)) and not torch.equal(
        before, bias.turn(x, position)
    )
    assert torch.equal(bias.turn(x, position.double()), rotary().turn(x, position.double()))
    bias.turn(x.requires_grad_(), torch.arange(3)[None]).sum().backward()  # with what inference mode had kept
    for start in range(9):
        bias.turn(x, torch.arange(start, start + 3)[None])
    assert len(bias._turned) == KEPT_TABLES


# --------------------------------------------------------------------------------------------------------- scaling laws
def frequencies(scaling: RotaryScaling | None, length: int | None = None, dim: int = 8) -> Tensor:
    return Rotary(dim, 100.0, scaling).inv_freq(None if length is None else torch.tensor(length), torch.float64)


def test_a_factor_of_1_changes_nothing() -> None:
    plain = frequencies(None)
    torch.testing.assert_close(plain, 100.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8), rtol=1e-15, atol=0)
    laws = [
        RotaryScaling.linear(1),
        RotaryScaling.ntk(1),
        RotaryScaling.ntk_by_parts(1, 64),
        RotaryScaling.dynamic_ntk(1, 8),
        RotaryScaling.yarn(1, 64),
        RotaryScaling.llama3(1, 64),
        RotaryScaling.longrope([1] * 4, [1] * 4, 8, factor=1),
    ]
    for law in laws:  # of dynamic_ntk's lengths, one that was trained
        assert law.magnitude == 1.0
        torch.testing.assert_close(frequencies(law, 8), plain, rtol=1e-14, atol=0)


def test_what_each_law_does_to_the_fastest_and_the_slowest_channel() -> None:
    plain = frequencies(None)
    for name, fast, slow in (("linear", 4, 4), ("ntk", 1, 4), ("ntk_by_parts", 1, 4), ("yarn", 1, 4), ("llama3", 1, 8)):
        law = LAWS[name]() if name != "llama3" else RotaryScaling.llama3(8.0, 30)
        law = law if "parts" not in name and name != "yarn" else getattr(RotaryScaling, name)(4.0, 6.28 * 32, 32, 4)
        stretch = plain / frequencies(law)
        assert (float(stretch[0]), float(stretch[-1])) == (pytest.approx(fast), pytest.approx(slow)), name
        assert torch.equal(stretch, stretch.sort().values), name


def test_a_length_that_was_trained_changes_nothing() -> None:
    plain = frequencies(None)
    dynamic = RotaryScaling.dynamic_ntk(2.0, 8)
    for length in (1, 7, 8):
        torch.testing.assert_close(frequencies(dynamic, length), plain, rtol=1e-15, atol=0)
    for length in (9, 16, 100):  # the formula of ntk with the stretch of that length
        grown = RotaryScaling.ntk(2.0 * length / 8 - 1.0)
        torch.testing.assert_close(frequencies(dynamic, length), frequencies(grown), rtol=1e-14, atol=0)
    longrope = RotaryScaling.longrope([1, 2, 3, 4], [5, 6, 7, 8], 8)
    torch.testing.assert_close(plain / frequencies(longrope, 8), torch.tensor([1.0, 2, 3, 4]).double())
    torch.testing.assert_close(plain / frequencies(longrope, 9), torch.tensor([5.0, 6, 7, 8]).double())
    assert longrope.magnitude == 1.0
    assert RotaryScaling.longrope([1], [1], 8, factor=8).magnitude == pytest.approx(math.sqrt(2))
    assert RotaryScaling.longrope([1], [1], 8, factor=8, attention_factor=1.5).magnitude == 1.5


@pytest.mark.parametrize("law", ["ntk", "dynamic_ntk"])
def test_one_pair_of_channels_has_no_base(law: str) -> None:
    assert frequencies(LAWS[law](), 100, dim=2).tolist() == [1.0]


def test_laws_are_values() -> None:
    assert RotaryScaling.linear(2.0) == RotaryScaling.linear(2.0) != RotaryScaling.linear(3.0)
    assert str(RotaryScaling.linear(2.0)) == "Linear(factor=2.0)"
    with pytest.raises(AttributeError):
        RotaryScaling.linear(2.0).factor = 3.0  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------------ arguments
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Rotary(7), "dim is 7"),
        (lambda: Rotary(0), "dim is 0"),
        (lambda: Rotary(8.0), "dim is 8.0"),  # type: ignore[arg-type]
        (lambda: Rotary(8, base=-1.0), "base is -1.0"),
        (lambda: Rotary(8, base=1), "base is 1; it must exceed 1"),
        (lambda: Rotary(8, base=math.nan), "base is nan"),
        (lambda: RotaryScaling.linear(0), "factor is 0"),
        (lambda: RotaryScaling.ntk(math.inf), "factor is inf"),
        (lambda: RotaryScaling.dynamic_ntk(2, 0), "original_length is 0"),
        (lambda: RotaryScaling.yarn(2, 64, 1, 32), "beta_fast is 1; it must be at least beta_slow, 32"),
        (lambda: RotaryScaling.yarn(2, 64, attention_factor=0), "attention_factor is 0"),
        (lambda: RotaryScaling.llama3(2, 64, 4, 1), "high_freq_factor is 1; it must be low_freq_factor, 4, or more"),
        (lambda: RotaryScaling.longrope([1], [1, 2], 8), "short_factor and long_factor have 1 and 2 numbers"),
        (lambda: RotaryScaling.longrope([0.0], [1], 8), "short_factor is 0.0"),
        (lambda: RotaryScaling.longrope([1], [1], 1, factor=2), "original_length is 1; it must exceed 1"),
        (lambda: Rotary(8, scaling=RotaryScaling.longrope([1], [1], 8)), "have 1 numbers; they must have dim/2 = 4"),
    ],
)
def test_arguments_that_make_no_sense_are_named(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_other_kinds_of_scaling_are_refused() -> None:
    with pytest.raises(TypeError, match="scaling is dict; it must be a RotaryScaling"):
        Rotary(8, scaling={"rope_type": "linear"})  # type: ignore[arg-type]


def test_dim_may_not_exceed_that_of_the_vectors() -> None:
    x = vectors(2, 3, 4)
    with pytest.raises(ValueError, match="dim is 8; it must be at most D = 4"):
        attnops.attend(x, x, x, bias=Rotary(8), backend="reference")
