"""Partitions: nobody shares an example, the seed decides, and each has the property of its name."""

import numpy as np
import pytest

from edgelearn.errors import DataError
from edgelearn.federated import IID, ByGroup, Dirichlet, LabelsPerClient, counts

LABELS = np.arange(600) % 10
GROUPS = np.array([f"speaker{number:02}" for number in np.arange(600) % 24])
ALL = [IID(8), Dirichlet(8, alpha=0.5), LabelsPerClient(20, count=2), ByGroup(8)]


@pytest.mark.parametrize("partition", ALL, ids=lambda p: type(p).__name__)
def test_nobody_shares_an_example_and_all_are_dealt(partition):
    parts = partition.divide(LABELS, GROUPS)
    dealt = np.concatenate(parts)
    assert len(parts) == partition.clients and len(np.unique(dealt)) == len(dealt) == len(LABELS)
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("partition", ALL, ids=lambda p: type(p).__name__)
def test_the_seed_decides(partition):
    def drawn(seed):
        return [part.tolist() for part in type(partition)(**(vars(partition) | {"seed": seed})).divide(LABELS, GROUPS)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_iid_clients_have_as_many_examples():
    assert {len(part) for part in IID(7).divide(LABELS)} == {85, 86}


def test_dirichlet_is_uneven_for_a_small_alpha():
    def spread(alpha):
        table = counts(Dirichlet(10, alpha=alpha, least=5).divide(LABELS), LABELS, 10)
        return (table.max(1) / table.sum(1)).mean()

    assert spread(100.0) < 0.2 < 0.5 < spread(0.1)
    assert min(map(len, Dirichlet(10, alpha=0.1, least=5).divide(LABELS))) >= 5


@pytest.mark.parametrize("count", [1, 3])
def test_labels_per_client(count):
    parts = LabelsPerClient(10, count=count).divide(LABELS)
    table = counts(parts, LABELS, 10)
    assert ((table > 0).sum(1) == count).all()
    assert (table[np.arange(10), np.arange(10)] > 0).all()
    assert table.sum() == len(LABELS)


def test_a_group_has_one_client():
    parts = ByGroup(24).divide(LABELS, GROUPS)
    assert sorted(set(GROUPS[part].tolist()).pop() for part in parts) == sorted(set(GROUPS.tolist()))
    shared = [set(GROUPS[part].tolist()) for part in ByGroup(5).divide(LABELS, GROUPS)]
    assert sum(map(len, shared)) == 24


@pytest.mark.parametrize("refused", [
    lambda: IID(0), lambda: IID(601).divide(LABELS), lambda: ByGroup(2).divide(LABELS),
    lambda: ByGroup(25).divide(LABELS, GROUPS), lambda: Dirichlet(10, alpha=0.0).divide(LABELS),
    lambda: Dirichlet(60, least=11).divide(LABELS), lambda: LabelsPerClient(3, count=11).divide(LABELS),
])  # fmt: skip
def test_impossible_ones_are_refused(refused):
    with pytest.raises(DataError):
        refused()
