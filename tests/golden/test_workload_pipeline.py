"""Workloads on two stages: 1F1B with transfers that are waited for and that are not, chunks, and split backwards.

In µs: the embedding, on the first stage, 10 forward and 20 backward (all of it weight gradient); a layer 100 forward,
80 input gradient, 60 weight gradient; the head, on the last stage, 30, 40 and 50. A transfer takes 20: 11.8 of latency
and 1,230,000 bytes at 150 GB/s. aN is the activation of microbatch N, gN its gradient.

              forward           backward                         input gradient   weight gradient
    stage 0   10 + 100 = 110    80 + 60 + 20 = 160               80               60 + 20 = 80
    stage 1   100 + 30 = 130    40 + 50 + 80 + 60 = 230          40 + 80 = 120    50 + 60 = 110
"""

from __future__ import annotations

from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.option_values import Overlap
from golden.reading import parts_us, step_us, us
from unit.inputs.aicb.workloads import TRANSFER_20_US, US, actions, row, run

EMBEDDING = row("embedding_layer", 10 * US, 0, 20 * US)
LAYER = row("attention_layer", 100 * US, 80 * US, 60 * US)
HEAD = row("final_column", 30 * US, 40 * US, 50 * US)
OPTIMIZER = row("optimizer1", 3 * US, 1 * US, 1 * US)
TWO_MICROBATCHES = [EMBEDDING, LAYER, HEAD] * 2
TWO_STAGES = {"pp": 2, "ga": 2, "all_gpus": 2, "pp_comm": TRANSFER_20_US}

DOWN, UP = "send forward, receive backward", "send backward, receive forward"


def test_1f1b_waits_for_its_transfers() -> None:
    """
        0      110 130    240     490 510    640 670       870 890      1050 1055
    0   |  F0  |a0|  F1  |........|x |  B0      |.............|g1|   B1    |opt|
    1   |......|a0| F0 |  B0     |x |  F1  |     B1        |g1|
                      260                                   opt 870-875

    x takes a1 down and g0 up at once. Stage 0 runs B1 last and then its optimizer; the next step begins at 1055.
    """
    answer = run([*TWO_MICROBATCHES, OPTIMIZER], **TWO_STAGES)
    assert actions(answer) == us(
        {
            (0, "forward"): [(0, 110), (130, 240)],
            (0, "backward"): [(510, 670), (890, 1050)],
            (0, "optimizer1"): (1050, 1055),
            (1, "forward"): [(130, 260), (510, 640)],
            (1, "backward"): [(260, 490), (640, 870)],
            (1, "optimizer1"): (870, 875),
            (0, "send forward"): {0: (110, 130)},
            (1, "receive forward"): {0: (110, 130)},
            (0, DOWN): {1: (490, 510)},
            (1, UP): {0: (490, 510)},
            (1, "send backward"): {1: (870, 890)},
            (0, "receive backward"): {1: (870, 890)},
        }
    )
    assert step_us(answer) == 1055
    # Stage 0 waits for B0 from 240 to 490 and for B1 from 670 to 870, stage 1 after its optimizer for the next F0.
    assert parts_us(answer, 0) == {"compute": 540, "optimizer": 5, "pp exposed": 60, "bubble": 450}
    assert {part: parts_us(answer, 1)[part] for part in ("compute", "optimizer")} == {"compute": 720, "optimizer": 5}


def test_1f1b_beside_its_transfers() -> None:
    """F1 starts at once and a1 is there before it is needed:

        0      110    220              510     670       870       1030 1035
    0   |  F0  |  F1  |................|   B0   |.........|    B1    |opt|
    1   |.......20| F0 |  B0      |  F1  |   B1     |
               130    260        490    620        850

    a0 110-130, a1 220-240, g0 490-510, g1 850-870.
    """
    answer = run([*TWO_MICROBATCHES, OPTIMIZER], WorkloadOptions(overlap=frozenset({Overlap.PP})), **TWO_STAGES)
    assert actions(answer) == us(
        {
            (0, "forward"): [(0, 110), (110, 220)],
            (0, "backward"): [(510, 670), (870, 1030)],
            (0, "optimizer1"): (1030, 1035),
            (1, "forward"): [(130, 260), (490, 620)],
            (1, "backward"): [(260, 490), (620, 850)],
            (1, "optimizer1"): (850, 855),
            (0, "send forward"): [(110, 130), (220, 240)],
            (1, "receive forward"): [(110, 130), (220, 240)],
            (1, "send backward"): [(490, 510), (850, 870)],
            (0, "receive backward"): [(490, 510), (850, 870)],
        }
    )
    assert step_us(answer) == 1035


def test_zb_h1_splits_the_backward() -> None:
    """Stage 0 runs F0 F1 I0 W0 I1 W1, stage 1 F0 I0 F1 I1 W0 W1; no row's time is lost:

        0      110    220      400  480  560     650  730  810
    0   |  F0  |  F1  |........| I0 | W0 |.......| I1 | W1 |
    1   |.........|  F0 | I0  |  F1  |  I1  | W0 | W1  |
                 130   260   380    510    630  740   850

    g0 380-400, g1 630-650. Stage 0 begins its next step at 810; stage 1 is free at 850, before its next F0 at 940.
    """
    answer = run(TWO_MICROBATCHES, WorkloadOptions(schedule="zb-h1"), **TWO_STAGES)
    assert actions(answer) == us(
        {
            (0, "forward"): [(0, 110), (110, 220)],
            (0, "backward_input"): [(400, 480), (650, 730)],
            (0, "backward_weight"): [(480, 560), (730, 810)],
            (1, "forward"): [(130, 260), (380, 510)],
            (1, "backward_input"): [(260, 380), (510, 630)],
            (1, "backward_weight"): [(630, 740), (740, 850)],
            (0, "send forward"): [(110, 130), (220, 240)],
            (1, "receive forward"): [(110, 130), (220, 240)],
            (1, "send backward"): [(380, 400), (630, 650)],
            (0, "receive backward"): [(380, 400), (630, 650)],
        }
    )
    assert step_us(answer) == 810


def test_vpp_read_as_chunks_interleaves() -> None:
    """Four layers of half the time on each stage, vpp 2: chunks of two layers. Stage 0 has the embedding in its chunk
    0, stage 1 the head in its chunk 1; Fc.m is the forward of chunk c for microbatch m.

              forward          backward
    0, c 0    10 + 100 = 110   140 + 20 = 160
    0, c 1    100              140
    1, c 0    100              140
    1, c 1    100 + 30 = 130   90 + 140 = 230

    0   F0.0 0-110    F0.1 110-220  F1.0 250-350  F1.1 360-460  B1.0 750-890  B1.1 1110-1250  B0.0 1250-1410
        B0.1 1430-1590
    1   F0.0 130-230  F0.1 240-340  F1.0 370-500  B1.0 500-730  F1.1 730-860  B1.1 860-1090  B0.0 1090-1230
        B0.1 1270-1410

    Every message takes 20: F1.0 of stage 0 waits for that of F0.0 on stage 1 until 250; B0.0 of stage 0 could begin at
    1230 + 20 = 1250, just when B1.1 ends; B0.1 of stage 1 waits for B1.1 of stage 0 until 1270.
    """
    half = row("attention_layer", 50 * US, 40 * US, 30 * US)
    answer = run([EMBEDDING, half, half, half, half, HEAD] * 2, **TWO_STAGES, vpp=2)
    assert {key: span for key, span in actions(answer).items() if key[1].startswith(("forward", "backward"))} == us(
        {
            (0, "forward"): [(0, 110), (110, 220)],
            (0, "forward.1"): [(250, 350), (360, 460)],
            (0, "backward.1"): [(750, 890), (1110, 1250)],
            (0, "backward"): [(1250, 1410), (1430, 1590)],
            (1, "forward"): [(130, 230), (240, 340)],
            (1, "forward.1"): [(370, 500), (730, 860)],
            (1, "backward.1"): [(500, 730), (860, 1090)],
            (1, "backward"): [(1090, 1230), (1270, 1410)],
        }
    )
    assert step_us(answer) == 1590
    assert "interleaved-1f1b" in answer.title


def test_vpp_of_layers_per_stage_does_not_interleave() -> None:
    """The same file with vpp 4, its layers per stage: 1F1B over whole stages, 10 + 4 · 50 = 210 forward and
    4 · 70 + 20 = 300 backward on stage 0, 230 and 90 + 280 = 370 on stage 1.

    0   F0 0-210    F1 230-440    B0 850-1150   B1 1470-1770
    1   F0 230-460  B0 460-830    F1 850-1080   B1 1080-1450
    """
    half = row("attention_layer", 50 * US, 40 * US, 30 * US)
    answer = run([EMBEDDING, half, half, half, half, HEAD] * 2, **TWO_STAGES, vpp=4)
    spans = actions(answer)
    assert [spans[0, "backward", 0], spans[0, "backward", 1]] == [(850_000, 1_150_000), (1_470_000, 1_770_000)]
    assert [spans[1, "backward", 0], spans[1, "backward", 1]] == [(460_000, 830_000), (1_080_000, 1_450_000)]
    assert step_us(answer) == 1770


def test_inference_is_one_pass_forward() -> None:
    """mode: 1. Stage 0 takes 110 for a microbatch and stage 1 130, the transfer 20; gradients and optimizer do not
    happen. One microbatch: 110 + 20 + 130 = 260.

    Three: stage 0 is done at 110, 220 and 330; stage 1 runs 130-260, 260-390 and 390-520.
    """
    rows = [row("grad_gather", 0, 0, (0, "ALLGATHER", 4096)), EMBEDDING, LAYER, HEAD, OPTIMIZER]
    header = TWO_STAGES | {"ga": 1, "mode": 1}
    answer = run(rows, **header)
    assert actions(answer) == us(
        {
            (0, "forward"): {0: (0, 110)},
            (0, "send forward"): {0: (110, 130)},
            (1, "receive forward"): {0: (110, 130)},
            (1, "forward"): {0: (130, 260)},
        }
    )
    assert (step_us(answer), answer.repeats) == (260, False)
    three = run(rows, WorkloadOptions(microbatches=3), **header)
    spans = actions(three)
    assert [spans[0, "forward", m] for m in range(3)] == [(0, 110_000), (110_000, 220_000), (220_000, 330_000)]
    assert [spans[1, "forward", m] for m in range(3)] == [(130_000, 260_000), (260_000, 390_000), (390_000, 520_000)]
    assert step_us(three) == 520
