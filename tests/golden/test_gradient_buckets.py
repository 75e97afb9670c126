"""DDP with gradient accumulation: gradients are reduced in buckets, under the backward of the last microbatch only."""

from __future__ import annotations

from foretrace import Mesh, ProgramBuilder, simulate
from golden.reading import US, parts_us, step_us, times, us

MICROBATCHES = 3
LAYERS = (2, 1, 0)


def test_buckets_of_the_last_microbatch() -> None:
    """Forward 4 µs, backward of each of three layers 3 µs, a bucket's all-reduce 4 µs, the optimizer 2 µs.

              0                         13                        26      30    33    36    39  41      45  47
    compute   |       microbatch 0      |       microbatch 1      |   F   |  B2 |  B1 |  B0 |...........|opt|
    dp        |.................................................................|   b2  |   b1  |   b0  |

    Each bucket takes longer than a layer's backward: b1 waits for b2, b0 for b1; 6 µs are exposed.
    """
    build = ProgramBuilder(Mesh(dp=2))
    dp = build.communicator("dp")
    block = build.block("microbatch")
    block.compute("forward", 4 * US, phase="forward")
    for layer in LAYERS:
        backward = block.compute(f"backward {layer}", 3 * US, phase="backward", layer=layer)
        block.port(
            f"bucket {layer}", block.collective("all_reduce", dp, 4 * US, name=f"bucket {layer}", after=backward)
        )

    role = build.role("every rank", [0, 1])
    buckets = [f"bucket {layer}" for layer in LAYERS]
    off = {bucket: {"enabled": 0} for bucket in buckets}
    for microbatch in range(MICROBATCHES):
        last = microbatch == MICROBATCHES - 1
        placed = role.place(block, microbatch=microbatch, override=None if last else off)
    role.compute("optimizer", 2 * US, phase="optimizer", after=[placed[bucket] for bucket in buckets])

    answer = simulate(build.program())
    drawn = {
        "forward": [(0, 4), (13, 17), (26, 30)],
        "backward 2": [(4, 7), (17, 20), (30, 33)],
        "backward 1": [(7, 10), (20, 23), (33, 36)],
        "backward 0": [(10, 13), (23, 26), (36, 39)],
        "bucket 2": {2: (33, 37)},
        "bucket 1": {2: (37, 41)},
        "bucket 0": {2: (41, 45)},
        "optimizer": (45, 47),
    }
    assert times(answer) == us({(rank, name): spans for rank in (0, 1) for name, spans in drawn.items()})
    assert step_us(answer) == 47
    assert parts_us(answer, 0) == {"compute": 39, "optimizer": 2, "dp exposed": 6}


def test_what_waits_for_a_bucket_that_is_off_waits_for_its_backward() -> None:
    """The bucket takes no time and no lane, but the host still reads the loss after the backward:

    compute   |forward 4| backward 3 |
    host                             | read 1 |
    """
    build = ProgramBuilder(Mesh(dp=2), repeats=False)
    block = build.block("microbatch")
    forward = block.compute("forward", 4 * US)
    backward = block.compute("backward", 3 * US, after=forward)
    block.port(
        "bucket", block.collective("all_reduce", build.communicator("dp"), 9 * US, name="bucket", after=backward)
    )
    role = build.role("every rank", [0, 1])
    placed = role.place(block, override={"bucket": {"enabled": 0}})
    role.host("read", 1 * US, after=placed["bucket"])
    answer = simulate(build.program())
    drawn = {"forward": (0, 4), "backward": (4, 7), "read": (7, 8)}
    assert times(answer) == us({(rank, name): span for rank in (0, 1) for name, span in drawn.items()})
    assert step_us(answer) == 8
