"""Defines `Shape`, everything that the work of a layer depends on. Equal shapes have equal work, found once."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.program.kernels import DTYPE_BYTES
from foretrace.workload.plan import NARROW_PRECISIONS, CpComm, Dispatcher, Precision
from foretrace.workload.setting import Setting
from foretrace.workload.stack import Stack


@dataclass(frozen=True, slots=True)
class Shape:
    """One microbatch on one rank."""

    stack: Stack
    hidden: int
    vocab: int
    mbs: int
    seq_len: int
    tokens: int
    """mbs · seq_len / cp."""
    rows: int
    """Tokens where sequence parallelism splits them: norms, dropout, residuals, routers."""
    tp: int
    cp: int
    cp_comm: CpComm
    ep: int
    etp: int
    sequence_parallel: bool
    """Only where tp > 1."""
    precision: Precision
    norm: str
    norm_bias: bool
    rotates: bool
    """Whether positions are rotations of queries and keys."""
    dropout: bool
    documents: tuple[int, ...] | None
    routing: float
    dispatcher: Dispatcher
    """alltoall where ep is 1."""
    tp_overlap: bool
    """Only beside sequence parallelism: all-reduces are not overlapped."""
    syncs: bool
    """Whether a dispatcher reads token counts back to the host: not where CUDA graphs replay the whole step."""
    positions: int = 0
    """Rows of a learned position table."""
    head_bias: bool = False
    narrow_activation: bool = False
    """Whether the input of SwiGLU is kept in 8 bits."""

    def own(self, kernel: str) -> str:
        """A kernel by name: the framework's own where it has one, or PyTorch's operators for the same."""
        return f"{kernel}_fused" if self.stack.pointwise == "fused" else kernel

    @property
    def dtype(self) -> str:
        """In which activations are kept."""
        return self.precision if self.precision in ("fp32", "tf32", "fp16") else "bf16"

    @property
    def out(self) -> str:
        """The dtype that products write."""
        return "fp32" if self.dtype == "tf32" else self.dtype

    @property
    def size(self) -> int:
        """Bytes of an activation's element."""
        return int(DTYPE_BYTES[self.dtype])

    @property
    def quantized(self) -> bool:
        """Whether operands of linear layers are narrower than activations."""
        return self.precision in NARROW_PRECISIONS

    @property
    def operand_size(self) -> float:
        """Bytes of an element of a linear layer's operands."""
        return DTYPE_BYTES[self.precision]


def shape_of(setting: Setting, layer: int | None = None) -> Shape:
    """Returns what the work of a layer, by number, depends on in a setting."""
    model, plan = setting.model, setting.plan
    tokens, split = setting.tokens, setting.sequence_parallel and plan.tp > 1
    return Shape(
        stack=setting.stack,
        hidden=model.hidden,
        vocab=setting.vocab,
        mbs=plan.mbs,
        seq_len=setting.seq_len,
        tokens=tokens,
        rows=-(-tokens // plan.tp) if split else tokens,
        tp=plan.tp,
        cp=plan.cp,
        cp_comm=plan.cp_comm,
        ep=plan.ep,
        etp=plan.etp,
        sequence_parallel=split,
        precision=plan.precision,
        norm=model.norm,
        norm_bias=model.norm_bias,
        rotates=model.position_kind == "rope",
        dropout=model.dropout,
        documents=plan.documents,
        routing=setting.routing_of(layer),
        dispatcher=plan.dispatcher if plan.ep > 1 else "alltoall",
        tp_overlap=plan.tp_overlap and split,
        syncs=plan.cuda_graphs != "full",
        positions=model.positions,
        head_bias=model.head_bias,
        narrow_activation=plan.fp8_activation_input,
    )
