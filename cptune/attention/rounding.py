"""How a partial gradient is rounded for its way to the owner of its rows.

Of what a message may be, the scaled one is the finest at two bytes an element: fp16 keeps 11 bits
of a number where bf16 keeps 8, and a power of two for each message makes up for its short range.
The rounding of a partial is then an eighth of that of the result, however many partials there are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cptune.attention.choices import read_choice
from cptune.attention.merge import accumulator_dtype

_TOP = 15  # the largest magnitude lands in [2^14, 2^15); fp16 ends at 65504
_LEAST, _MOST, _EXPONENT_BITS = -100, 128, 8  # exponents of a message are clamped
_BIAS, _FRACTION_BITS = 127, 23  # of fp32


@dataclass(frozen=True, slots=True)
class Rounding:
    """The type of a message, and whether each has a scale of its own.

    The scale needs no byte: its exponent stands in the last bits of the first elements.
    """

    dtype: torch.dtype
    scaled: bool = False

    def encode(self, part: Tensor) -> Tensor:
        """Round a partial to a message of its shape; a scaled one uses `part` up."""
        if not (self.scaled and part.numel()):
            return part.to(self.dtype)
        largest = torch.linalg.vector_norm(part, torch.inf)
        exponent = torch.frexp(largest).exponent.clamp(_LEAST, _MOST)
        # Zeros have the exponent that sets no bit; infinity and NaN pass as they are.
        exponent = exponent.where(largest != 0, _LEAST).where(largest.isfinite(), _TOP)
        message = part.mul_(_power_of_two(_TOP - exponent)).to(self.dtype)
        first, shifts, mask = _places(message)
        first.copy_((first & ~mask) | (((exponent - _LEAST) >> shifts) & mask))
        return message

    def factor(self, message: Tensor) -> Tensor:
        """What the elements of a message are to be multiplied by, a tensor of no dimension."""
        if not (self.scaled and message.numel()):
            dtype = accumulator_dtype(message.dtype)
            return torch.ones((), dtype=dtype, device=message.device)
        first, shifts, mask = _places(message)
        exponent = ((first.int() & mask) << shifts).sum() + _LEAST
        return _power_of_two(exponent - _TOP)


ROUNDINGS = {
    "scaled_fp16": Rounding(torch.float16, scaled=True),
    "bf16": Rounding(torch.bfloat16),
    "fp32": Rounding(torch.float32),
}


def read_rounding(name: str | None) -> Rounding | None:
    """The rounding of that name; None takes what `default_rounding` says of the inputs.

    Raises:
        ValueError: The name is unknown.
    """
    if name is None:
        return None
    return ROUNDINGS[read_choice(name, what="dkv_wire", choices=ROUNDINGS)]


def default_rounding(dtype: torch.dtype) -> Rounding:
    """As wide as inputs of `dtype`: scaled fp16 for halves, else their own type."""
    return ROUNDINGS["scaled_fp16"] if dtype.itemsize == 2 else Rounding(dtype)


def _power_of_two(exponent: Tensor) -> Tensor:
    # By its bits: a device's power function may be an ulp off, and both ends must agree.
    return ((exponent + _BIAS) << _FRACTION_BITS).int().view(torch.float32)


def _places(message: Tensor) -> tuple[Tensor, Tensor, int]:
    """Where the exponent stands: the first elements as integers, the shift of each, and a mask."""
    width = -(-_EXPONENT_BITS // min(_EXPONENT_BITS, message.numel()))
    count = -(-_EXPONENT_BITS // width)
    first = message.view(torch.int16).view(-1)[:count]
    return first, torch.arange(count, device=message.device) * width, (1 << width) - 1
