"""What a user says of a profile: read once, wrong values refused whether they are used or not."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.torch_ops.user_sizes import UserSizes

KNOWN = ("params", "dtype", "model", "all_reduce.bytes", "group.NAME")


def test_values_are_read_as_they_are_asked_for() -> None:
    sizes = UserSizes.checked((("params", "1.1e9"), ("all_reduce.bytes", "16MiB"), ("group.3", "tp")), KNOWN)
    assert sizes.used == set()
    assert sizes.count("params") == 1_100_000_000
    assert sizes.bytes("all_reduce.bytes") == 16 << 20
    assert sizes.bytes("broadcast.bytes") is None
    assert sizes.dtype() == "bf16"
    assert UserSizes.checked((("dtype", "Float32"),), KNOWN).dtype() == "fp32"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("parms", "1", "--set parms: no such size; did you mean params"),
        ("params", "0", "params is 0"),
        ("params", "many", "does not start with a number"),
        ("all_reduce.bytes", "banana", "does not start with a number"),
        ("dtype", "int8", 'dtype "int8" is not known'),
    ],
)
def test_what_cannot_be_read(name: str, value: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        UserSizes.checked(((name, value),), KNOWN)
    assert message in str(raised.value)
