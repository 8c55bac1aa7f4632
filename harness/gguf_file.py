"""A GGUF file's header, by the library's reader, in the time that its bytes take.

The library makes arrays of each item of a list, which is seconds for a vocabulary, and counts on behind the end of the
file, through any length that a damaged one states.
"""

import struct
from pathlib import Path
from typing import Any

from harness.errors import Missing

__all__ = ["open_gguf"]

_TYPE_BYTES, _COUNT_BYTES = 4, 8  # before the items of a list
_END = "it ends within its metadata"


def open_gguf(path: Path) -> Any:
    """A `gguf.GGUFReader`, whose lists are read whole.

    Missing without the library; on what is no GGUF file it raises whatever numpy raises.
    """
    try:
        import gguf
        import numpy as np
    except ImportError:
        raise Missing("the package 'gguf' is not installed here", "pip install gguf") from None

    class Reader(gguf.GGUFReader):  # type: ignore[misc] # the library has no types
        def _get(self, offset: int, *arguments: Any, **words: Any) -> Any:
            if offset >= len(self.data):
                raise ValueError(_END)
            return super()._get(offset, *arguments, **words)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type != gguf.GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            kind = self._get(orig_offs, np.uint32)[0]
            count = int(self._get(orig_offs + _TYPE_BYTES, np.uint64)[0])
            first, number = orig_offs + _TYPE_BYTES + _COUNT_BYTES, self.gguf_scalar_to_np.get(kind)
            if number is not None:
                items, end = self._numbers(first, number, count)
            elif kind == gguf.GGUFValueType.STRING:
                items, end = self._strings(first, count)
            else:
                return super()._get_field_parts(orig_offs, raw_type)  # a list of lists
            return end - orig_offs, [items], [0], [gguf.GGUFValueType.ARRAY]

        def _numbers(self, first: int, number: Any, count: int) -> tuple[Any, int]:
            end = first + count * np.dtype(number).itemsize
            if end > len(self.data):
                raise ValueError(_END)
            return self._get(first, number, count) if count else np.empty(0, number), end

        def _strings(self, offset: int, count: int) -> tuple[Any, int]:
            """Strings stand each behind its length."""
            data, length = memoryview(self.data), struct.Struct(">Q" if self.byte_order == "S" else "<Q")
            found = []
            for _ in range(count):
                if offset + length.size > len(data):
                    raise ValueError(_END)
                begin = offset + length.size
                offset = begin + length.unpack_from(data, offset)[0]
                if offset > len(data):
                    raise ValueError(_END)
                found.append(str(data[begin:offset], "utf-8"))
            items = np.empty(count, object)
            items[:] = found
            return items, offset

    return Reader(path)
