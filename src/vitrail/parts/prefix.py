"""The tokens that are not patches."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.rules import NonNegativeInt
from vitrail.value import Value

__all__ = ["Prefix"]


@dataclass(frozen=True, kw_only=True)
class Prefix(Value):
    """Tokens that precede the patches, in this order: CLS, distillation, registers."""

    cls: bool = True
    distillation: bool = False
    registers: NonNegativeInt = 0

    @property
    def count(self) -> int:
        return self.cls + self.distillation + self.registers

    @property
    def names(self) -> tuple[str, ...]:
        """A readable name for each token, in order.

        >>> Prefix(registers=2).names
        ('CLS', 'register 0', 'register 1')
        """
        registers = tuple(f"register {index}" for index in range(self.registers))
        return ("CLS",) * self.cls + ("distillation",) * self.distillation + registers
