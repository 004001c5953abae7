"""The tokens that are not patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitrail.errors import VitrailError, shown
from vitrail.rules import NonNegativeInt
from vitrail.value import Value

__all__ = ["Prefix"]


@dataclass(frozen=True, kw_only=True)
class Prefix(Value):
    """Tokens that precede the patches, in this order: CLS, distillation, registers.

    >>> from vitrail import Prefix
    >>> Prefix(cls=True, registers=4).count
    5
    """

    cls: bool = True
    distillation: bool = False
    registers: NonNegativeInt = 0

    @classmethod
    def parse(cls, value: Prefix | str) -> Prefix:
        """Read `cls,registers=4`, `none` or a Prefix.

        >>> Prefix.parse("distillation,registers=4")
        Prefix(cls=False, distillation=True, registers=4)
        """
        if isinstance(value, Prefix):
            return value
        rule = "write cls, distillation and registers=4, joined by commas, or none"
        if not isinstance(value, str):
            raise VitrailError(f"prefix {shown(value)} is neither a Prefix nor text; {rule}")
        fields: dict[str, Any] = {"cls": False}
        for word in (word.strip() for word in value.split(",")):
            name, _, count = word.partition("=")
            if word in ("cls", "distillation"):
                fields[name] = True
            elif name == "registers" and count.isdecimal():
                fields[name] = int(count)
            elif not word == "none" == value.strip():
                raise VitrailError(f"prefix {value!r} is not understood at {word!r}; {rule}")
        return cls(**fields)

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
