"""The ranking behind a finding: energy distances of mixtures, honest floors, transforms that cannot be trusted."""

import math

import pytest
import torch

from fedlens.media.images import hypotheses
from fedlens.media.images.faults import FAULTS
from fedlens.media.images.hypotheses import NAMED, SHARES, _planted, _seen, energy_distance, missed, ranked


def blobs(count, seed, side=12):
    """Bright spots, mostly in the upper left corner, on a dark ground."""
    rng = torch.Generator().manual_seed(seed)
    places = (torch.rand(count, 2, generator=rng) * side / 2).view(count, 2, 1, 1)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    distance = (rows - places[:, :1]).square() + (columns - places[:, 1:]).square()
    return 1.8 * torch.exp(-distance / 6) - 0.9


def plain_energy(left, right):
    """By the definition, pair by pair."""

    def mean(a, b, same):
        pairs = [(i, j) for i in range(len(a)) for j in range(len(b)) if not (same and i == j)]
        return sum(float((a[i] - b[j]).norm()) for i, j in pairs) / len(pairs)

    return 2 * mean(left, right, False) - mean(left, left, True) - mean(right, right, True)


def test_the_energy_distance_is_that_of_its_definition():
    left, right = blobs(9, 0), -blobs(7, 1)
    rows = [_seen(side)[0] for side in (left, right)]
    expected = plain_energy(left.flatten(1), right.flatten(1))
    assert energy_distance(*rows) - rows[0].floor == pytest.approx(expected, rel=1e-4)


def test_the_floor_covers_what_chance_makes_of_sides_that_are_alike():
    for seed in range(20):
        rows = [_seen(blobs(100, 2 * seed + side)) for side in (0, 1)]
        for left, right in zip(*rows, strict=True):
            assert energy_distance(left, right) - left.floor < 6 * left.floor


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_mixture_is_scored_as_if_it_had_been_drawn(share):
    """The closed form against samples of which that share carries the bug."""
    left, right, change = blobs(400, 0), blobs(400, 1), FAULTS.known["rotated-180"].change
    said = dict(_planted(*map(_seen, (left, change(left), right, change(right)))))[share]
    mixed = torch.cat([change(left[: round(400 * share)]), left[round(400 * share) :]])
    row = next(row for row in ranked(mixed, right, ["rotated-180"]) if row["kind"] == "rotated-180")
    assert 1 - row["score"] == pytest.approx(1 - said, rel=0.15)


def test_shares_grow_to_one():
    assert SHARES[0] == 0.05
    assert SHARES[-1] == 1.0
    assert sorted(SHARES) == list(SHARES)


def test_what_would_be_missed_is_what_is_missed():
    left, right = blobs(300, 0), blobs(300, 1)
    (row,) = missed(left, right, ["inverted"])
    above = torch.cat([-left[: round(300 * row["percent"] / 100) + 30], left[round(300 * row["percent"] / 100) + 30 :]])
    assert next(r for r in ranked(above, right, ["inverted"]) if r["kind"] == "inverted")["score"] >= NAMED
    below = torch.cat([-left[: round(300 * row["percent"] / 200)], left[round(300 * row["percent"] / 200) :]])
    assert next(r for r in ranked(below, right, ["inverted"]) if r["kind"] == "inverted")["score"] < NAMED


def test_a_transform_that_changes_nothing_is_never_named():
    for seed in range(5):
        rows = ranked(blobs(200, seed), blobs(200, seed + 50), [f"{__name__}:same"])
        assert not any(row["named"] for row in rows)
    assert missed(blobs(50, 0), blobs(50, 1), [f"{__name__}:same"])[0]["percent"] is None


@pytest.mark.parametrize("kind", ["raises", "shorter", "nothing", "broken"])
def test_a_transform_that_fails_comes_last_and_is_left_out_of_what_would_be_missed(kind):
    rows = ranked(-blobs(50, 0), blobs(50, 1), ["inverted", f"{__name__}:{kind}"])
    assert [row["kind"] for row in rows] == ["inverted", "none", f"{__name__}:{kind}"]
    assert rows[-1]["distance"] == math.inf
    assert [row["kind"] for row in missed(blobs(50, 0), blobs(50, 1), ["inverted", f"{__name__}:{kind}"])] == [
        "inverted"
    ]


def test_a_transform_cannot_change_the_samples_it_is_shown():
    right = blobs(50, 1)
    kept = right.clone()
    ranked(blobs(50, 0), right, [f"{__name__}:in_place"])
    missed(blobs(50, 0), right, [f"{__name__}:in_place"])
    assert torch.equal(right, kept)


@pytest.mark.parametrize("side", [4, 8, 28])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_size_are_ranked(side, channels):
    rng = torch.Generator().manual_seed(0)
    left, right = (torch.rand(6, channels, side, side, generator=rng) * 2 - 1 for _ in range(2))
    rows = ranked(left, right)
    assert len(rows) == 1 + sum(transform.change is not None for transform in FAULTS.known.values())
    assert all(math.isfinite(row["distance"]) for row in rows)
    assert all(math.isfinite(row["distance"]) for row in ranked(left[:2] * 0, right[:2] * 0))


def test_labels_are_judged_only_where_labels_mean_something():
    labels = torch.arange(300) % 4
    swapped = FAULTS.known["swapped-labels"].labels(labels, 4)
    random = torch.randint(4, (300,), generator=torch.Generator().manual_seed(0))
    (row,) = hypotheses.swapped((labels, swapped), (labels, labels), 1.0)
    assert row["score"] > 0.9
    (row,) = hypotheses.swapped((labels, swapped), (labels, random), 1.0)
    assert row["score"] == 0.0
    (row,) = hypotheses.swapped((labels, labels), (labels, labels), 1.0)
    assert -1.0 <= row["score"] < 0


def same(x):
    return x


def raises(x):
    raise RuntimeError("no")


def shorter(x):
    return x[1:]


def nothing(x):
    return None


def broken(x):
    return x * float("nan")


def in_place(x):
    return x.neg_()
