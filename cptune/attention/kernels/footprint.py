"""What a kernel allocates beside its inputs, as data: a plan adds it up before anything runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Tensors of one call beside its inputs, by their shape; batch 1, rows where they lie densely.

    Where nothing is said a tensor has the type of the inputs; wide is fp32 of halves, else the
    type of the inputs. Rows are those of the queries, for every query head.
    """

    wide_out: bool = False
    wide_gradients: bool = False
    wide_copies: bool = False  # of every input that is a half, in backward
    scores: tuple[int, int] = (0, 0)  # wide matrices of rows by keys, forward and backward
    query_sums: int = 0  # wide, as the queries, in backward
    row_sums: int = 0  # wide, one number a row, in backward
    key_sums: bool = False  # with fewer kv heads: wide gradients of keys and values, in backward
    expanded_keys: bool = False  # with fewer kv heads: their gradients for every query head
    band_rows: int | None = None  # a band goes in runs of so many rows, each with its mask


NOTHING = Footprint()  # beside its results
