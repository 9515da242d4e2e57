"""Which words do signatures use for tensor shapes?

``Float[Tensor, "t n h"]`` is jaxtyping's notation. The library needs torch alone, so jaxtyping is taken only where somebody has
already imported it (the tests do, with its checker switched on) or while types are checked; elsewhere the words cost nothing.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int, Integer
else:

    class _Word:
        """Stands for a jaxtyping word: ``Float[Tensor, "t n"]`` is just ``Tensor``."""

        def __class_getitem__(cls, item: Any) -> Any:
            return item[0]

    Bool = Float = Int = Integer = _Word

__all__ = ["Bool", "Float", "Int", "Integer"]
