"""What two kinds of steps can tell of the difference between them."""

import pytest
import torch

from cptune.bench.ablation import difference_s
from cptune.bench.collectives import CutCollectives


def test_steps_that_are_told_apart_differ_by_their_medians():
    assert difference_s([1.0, 1.2, 1.1], [0.5, 0.4, 0.9]) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("whole", "cut"),
    [
        ([1.0, 1.2, 1.1], [0.5, 1.0, 0.6]),  # one step without transfers took as long
        ([1.0, 1.0, 1.0], [1.3, 1.4, 1.5]),  # slower without: noise, and no negative time
        ([1.0, 1.2, 1.1], []),  # this axis cannot be cut
    ],
)
def test_what_cannot_be_told_is_unknown_and_neither_nothing_nor_all(whole, cut):
    assert difference_s(whole, cut) is None


@pytest.mark.parametrize(
    ("name", "arguments", "shape"),
    [
        ("all_reduce", ("sum", "g"), (4, 3)),
        ("all_gather_into_tensor", (2, "g"), (8, 3)),
        ("reduce_scatter_tensor", ("sum", 2, "g"), (2, 3)),
    ],
)
def test_a_collective_that_is_left_out_gives_the_shape_of_the_real_one(name, arguments, shape):
    operator = getattr(torch.ops._c10d_functional, name).default
    given = torch.ones(4, 3)

    out = CutCollectives().around(operator)(given, *arguments)

    assert out.shape == shape
    assert out.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()


def test_a_collective_that_is_not_known_is_run_and_named():
    operator, cut = torch.ops._c10d_functional.broadcast.default, CutCollectives()

    assert cut.around(operator) is operator
    assert cut.kept == {"broadcast"}
