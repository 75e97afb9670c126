"""Dense feed-forward layers, and the shared expert that is one."""

from __future__ import annotations

from foretrace.models.model import Mlp
from foretrace.workload.layers.linear import Linear, linear
from foretrace.workload.layers.piece import INPUT, Piece, run, stream
from foretrace.workload.layers.pointwise import activation, joined_gradients, norm, residual
from foretrace.workload.layers.shape import Shape


def feed_forward(shape: Shape, mlp: Mlp) -> list[Piece]:
    """Norm, both projections with the activation between, and the residual addition."""
    return [
        joined_gradients(shape, "mlp branch"),
        norm(shape, "mlp norm", "x after attention"),
        *products(shape, mlp, "mlp", "mlp in"),
        residual(shape, "mlp residual", bias=mlp.bias),
    ]


def products(shape: Shape, mlp: Mlp, name: str, source: str, *, shares_input: bool = False) -> list[Piece]:
    """Up, activation and down, split over tp; `shares_input` means that another module keeps the input too."""
    width = -(-mlp.ffn // shape.tp)
    fused = shape.stack.pointwise == "fused"
    outside_up = mlp.bias and fused and mlp.activation == "gelu" and not mlp.gated
    up = f"{name} up out"
    down = linear(
        shape,
        Linear(
            f"{name} down",
            n=shape.hidden,
            k=width,
            source=f"{name} product",
            split="row",
            bias=mlp.bias and not fused,
            outside_bias=mlp.bias and fused,
        ),
    )
    act = activation(shape, mlp, f"{name} activation", rows=shape.tokens, width=width, source=up)
    if mlp.gated and shape.stack.separate_projections:
        gate_and_up = [
            linear(
                shape,
                Linear(
                    f"{name} {word}",
                    n=width,
                    k=shape.hidden,
                    source=source,
                    split="column",
                    bias=mlp.bias,
                    gathers=word == "gate",
                    quantizes=word == "gate",
                    shares_input=shares_input,
                ),
            )
            for word in ("gate", "up")
        ]
        return [*gate_and_up, *_summed_gradient(shape, name), act, down]
    first = linear(
        shape,
        Linear(
            f"{name} up",
            n=width * (2 if mlp.gated else 1),
            k=shape.hidden,
            source=source,
            split="column",
            bias=mlp.bias and not outside_up,
            outside_bias=outside_up,
            shares_input=shares_input,
        ),
    )
    return [first, act, down]


def _summed_gradient(shape: Shape, name: str) -> list[Piece]:
    """Autograd adds the gradients that gate and up give their common input."""
    if shape.stack.pointwise == "compiled":
        return []
    tensor = shape.tokens * shape.hidden * shape.size
    return [
        Piece(
            f"{name} sum of gradients",
            backward=(run(f"{name} sum backward", INPUT, stream("add", 2 * tensor, tensor)),),
        )
    ]
