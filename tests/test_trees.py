"""Trees: the arithmetic, and the clip that carries the whole promise."""

from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedlens.core import trees

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = st.lists(NUMBERS, min_size=1, max_size=6).map(torch.tensor)
TREES = st.dictionaries(st.sampled_from(["a", "b", "c"]), VECTORS, min_size=1)


def exact_square(tree):
    return sum(Fraction(value) ** 2 for leaf in tree.values() for value in leaf.flatten().tolist())


def test_add_scales_the_right_hand_side():
    total = trees.add({"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([10.0, 20.0])}, 0.5)
    assert total["a"].tolist() == [6.0, 12.0]


def test_scaled_and_zeros_keep_names_shapes_and_types():
    tree = {"a": torch.ones(2, 3), "b": torch.ones(2, dtype=torch.float64)}
    assert trees.same_shape(trees.zeros(tree), tree)
    assert trees.zeros(tree)["b"].dtype == torch.float64
    assert trees.scaled(tree, 3.0)["a"].sum() == 18.0
    assert trees.zeros(tree)["a"].count_nonzero() == 0


def test_norm_is_joint_over_all_leaves_and_zero_for_nothing():
    assert trees.norm({"a": torch.full((2, 2), 1.0), "b": torch.full((12,), -1.0)}).item() == 4.0
    assert trees.norm({}).item() == 0.0


def test_norm_does_not_lose_small_terms_beside_a_large_one():
    many = {"a": torch.cat([torch.tensor([4096.0]), torch.full((1 << 20,), 1.0)])}
    assert trees.norm(many).item() == pytest.approx((4096.0**2 + (1 << 20)) ** 0.5, rel=1e-12)


@given(tree=TREES, max_norm=st.floats(1e-6, 1e6))
def test_clipped_is_within_the_bound_in_exact_arithmetic(tree, max_norm):
    assert exact_square(trees.clipped(tree, max_norm)) <= Fraction(max_norm) ** 2


@given(tree=TREES, factor=st.floats(1.001, 1e3))
def test_clipped_leaves_small_trees_alone(tree, factor):
    max_norm = max(float(trees.norm(tree)), 1e-6) * factor
    assume(trees.norm(tree).isfinite())
    assert all(torch.equal(leaf, tree[name]) for name, leaf in trees.clipped(tree, max_norm).items())


@pytest.mark.parametrize("max_norm", [0.05, 1.0, 30.0])
def test_clipped_keeps_the_direction_and_reaches_the_bound(max_norm):
    tree = {"a": torch.tensor([3e3, -4e3]), "b": torch.tensor([[1.2e4]])}
    short = trees.clipped(tree, max_norm)
    assert trees.norm(short).item() == pytest.approx(max_norm, rel=3e-6)
    assert short["a"].tolist() + short["b"].flatten().tolist() == pytest.approx(
        [max_norm * share / 13 for share in (3, -4, 12)], rel=3e-6
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_one_bad_number_anywhere_silences_the_whole_tree(bad):
    """1e30 has no finite square in single precision: too loud to be measured, so not heard."""
    short = trees.clipped({"a": torch.ones(3), "b": torch.tensor([0.0, bad])}, 1.0)
    assert short["a"].tolist() == [0.0] * 3
    assert short["b"].tolist() == [0.0] * 2


def test_joined_and_part_are_inverse():
    critic, generator = {"w": torch.ones(2), "b": torch.zeros(1)}, {"w": torch.full((3,), 7.0)}
    tree = trees.joined(critic=critic, generator=generator, clip=torch.tensor(2.0))
    assert sorted(tree) == ["clip", "critic/b", "critic/w", "generator/w"]
    assert trees.same_shape(trees.part(tree, "critic"), critic)
    assert torch.equal(trees.part(tree, "generator")["w"], generator["w"])
    assert trees.part(tree, "crit") == {}


def test_stacked_and_row_are_inverse():
    rows = [{"a": torch.tensor([float(i)]), "b": torch.tensor(float(-i))} for i in range(3)]
    tall = trees.stacked(rows)
    assert tall["a"].shape == (3, 1)
    assert trees.row(tall, 2) == rows[2]


def test_same_shape_compares_names_and_shapes():
    tree = {"a": torch.zeros(2)}
    assert trees.same_shape(tree, {"a": torch.ones(2)})
    assert not trees.same_shape(tree, {"b": torch.zeros(2)})
    assert not trees.same_shape(tree, {"a": torch.zeros(2, 1)})
    assert not trees.same_shape(tree, {"a": torch.zeros(2), "b": torch.zeros(2)})


def test_moved_keeps_the_values():
    assert trees.moved({"a": torch.tensor([1.0, 2.0])}, "cpu")["a"].tolist() == [1.0, 2.0]


def test_digest_tells_apart_names_types_shapes_and_bytes():
    base = {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    others = [
        {"b": base["a"], "n": base["n"]},
        {"a": base["a"].double(), "n": base["n"]},
        {"a": base["a"].view(2, 1), "n": base["n"]},
        {"a": base["a"].flip(0), "n": base["n"]},
        {"a": base["a"].nextafter(torch.tensor(9.0)), "n": base["n"]},
        {"a": base["a"], "n": torch.tensor(4)},
        {"a": base["a"]},
        base | {"empty": torch.zeros(0)},
    ]
    assert len({trees.digest(tree) for tree in [base, *others]}) == len(others) + 1


def test_digest_does_not_depend_on_order_or_strides():
    a, b = torch.arange(6.0).view(2, 3), torch.ones(2)
    assert trees.digest({"a": a, "b": b}) == trees.digest({"b": b.clone(), "a": a.T.contiguous().T})


def test_pixels_turn_bytes_to_minus_one_to_one_and_leave_floats():
    assert trees.pixels(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1.0, 1.0]
    assert trees.pixels(torch.tensor([0.25], dtype=torch.float64)).tolist() == [0.25]
