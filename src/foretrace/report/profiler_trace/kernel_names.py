"""Names of kernels as a screen has room for them."""

from __future__ import annotations

import re
from typing import Final

_WHAT: Final = re.compile(r"(\w*Functor\w*|(?<!\w)(?!gpu_kernel_impl)\w+_kernel_(?:cuda|impl)|(?<!\w)\w+Ops?(?=[<,>]))")
_ANONYMOUS: Final = re.compile(r"\((anonymous namespace|lambda[^)]*)\)(::)?")
_WRAPPER: Final = re.compile(r"^(void )?(cutlass::(Kernel2?|device_kernel)|cutlass__\w+::\w+)<(?P<inner>[\w:]+)")
_MAX_NAME: Final = 4_000
"""Characters of a name that are looked at: templates of real kernels have hundreds, and `_WHAT` takes their square."""
_SPACES: Final = ("void ", "at::native::", "at::cuda::", "unrolled_", "vectorized_")


def short_kernel(name: str, width: int = 48) -> str:
    """Returns a kernel's name without templates, arguments and well-known namespaces.

    The functor of an elementwise kernel stays:
    `elementwise_kernel<4, at::native::CUDAFunctor_add<...>>` is `elementwise_kernel (CUDAFunctor_add)`.
    """
    if len(name) <= width:
        return name
    plain = _ANONYMOUS.sub("", name[:_MAX_NAME])
    wrapped = _WRAPPER.match(plain)
    head = wrapped["inner"] if wrapped else re.split(r"[<(]", plain, maxsplit=1)[0]
    inner = None if wrapped else _WHAT.search(plain[len(head) :])
    for space in _SPACES:
        head = head.replace(space, "")
    text = f"{head.strip()} ({inner.group(1)})" if inner else head.strip()
    return text if len(text) <= width else f"{text[: width - 1]}…"
