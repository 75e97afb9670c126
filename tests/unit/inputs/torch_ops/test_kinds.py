"""Kinds of work by the names that profilers write."""

from __future__ import annotations

from collections import Counter

import pytest

from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE
from foretrace.inputs.torch_ops.kinds import (
    WorkKind,
    kind_of_kernel,
    kind_of_op,
    kind_of_work,
    kinds_of_text,
    plain_name,
)
from foretrace.program.kernels import Attention, Copy, Gemm, GroupedGemm, Kernel, Stream
from shared_files import shared

NATIVE = "void at::native::"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "gemm"),
        ("ampere_sgemm_128x64_nn", "gemm"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(Params)", "gemm"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32", "gemm"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)", "gemm"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64", "attention"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>", "attention"),
        ("void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*)", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)", "attention"),
        (f"{NATIVE}(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16>", "norm"),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>(float)", "norm"),
        ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Traits>", "norm"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "norm"),
        (f"{NATIVE}(anonymous namespace)::cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>", "loss"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 1, false>", "softmax"),
        (f"{NATIVE}(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float, long>", "loss"),
        (f"{NATIVE}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out>", "elementwise"),
        ("triton_poi_fused_mul_silu_3", "elementwise"),
        (f"{NATIVE}unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(TensorIteratorBase&)>", "copy"),
        (f"{NATIVE}(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>", "copy"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("[CUDA memcpy Device-to-Host]", "copy"),
        ("Memset (Device)", "memset"),
        ("[CUDA memset]", "memset"),
        (f"{NATIVE}vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "memset"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>", "optimizer"),
        (f"{NATIVE}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float>>>", "reduction"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void deep_ep::internode::dispatch<false, 4>", "communication"),
        (
            "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<c10::Half>",
            "embedding",
        ),
        ("void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>>", "indexing"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "convolution"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", "convolution"),
        ("something_of_a_user", "other"),
    ],
)
def test_kernels(name: str, kind: str) -> None:
    assert kind_of_kernel(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "gemm"),
        ("AddmmBackward0", "gemm"),
        ("autograd::engine::evaluate_function: MmBackward0", "gemm"),
        ("aten::_scaled_dot_product_cudnn_attention_backward", "attention"),
        ("aten::_fused_rms_norm_backward", "norm"),
        ("aten::add_", "elementwise"),
        ("aten::_foreach_add_", "optimizer"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("nccl:_all_gather_base", "communication"),
        ("torch::autograd::CopyBackwards", "copy"),
        ("NllLossBackward", "loss"),
        ("aten::_softmax", "softmax"),
        ("aten::cudnn_convolution", "convolution"),
        ("SelfAttn", "attention"),
        ("SelfAttnLayerNorm", "norm"),
        ("SelfAttnDropOut", "elementwise"),
        ("SelfAttnRes_2", "elementwise"),
        ("FFNLayer", "mlp"),
        ("MOEGate", "moe gate"),
        ("MOEExpert", "moe expert"),
        ("MOEmm", "moe dispatch"),
        ("DispatchMask", "moe dispatch"),
        ("MOECombineExpert", "moe dispatch"),
        ("MOEAll2All_input", "communication"),
        ("FORWARD_EMBEDDING", "embedding"),
        ("clip-grads", "optimizer"),
        ("reduce-grads", "communication"),
        ("cudaMemcpyAsync", "copy"),
    ],
)
def test_ops_and_labels(name: str, kind: str) -> None:
    assert kind_of_op(name) == kind


@pytest.mark.parametrize("name", ["forward", "backward", "ProfilerStep#3", "train_step-0", "LAYER_2", "MOELayer"])
def test_labels_that_hold_everything_are_of_no_kind(name: str) -> None:
    assert kind_of_op(name) is WorkKind.OTHER


@pytest.mark.parametrize(
    "name",
    [
        "aten::add",
        "aten::add_",
        "aten::add.Tensor",
        "AddBackward0",
        "autograd::engine::evaluate_function: AddBackward0",
    ],
)
def test_an_op_has_one_plain_name(name: str) -> None:
    assert plain_name(name) == "add"


def test_kernels_with_shapes() -> None:
    known: dict[Kernel, str] = {
        Gemm(1, 2, 3): "gemm",
        GroupedGemm(1, 2, 3, 4): "moe expert",
        Attention(1, 1, 1, 8, 8, 64, 64, 32): "attention",
        Copy(1): "copy",
        Stream("rmsnorm_backward", 1, 1): "norm",
        Stream("log_softmax", 1, 1): "loss",
        Stream("adam_bf16", 1, 1): "optimizer",
        Stream("grad_norm", 1, 1): "optimizer",
        Stream("swiglu", 1, 1): "elementwise",
        Stream("gemm_split_k", 1, 1): "gemm",
    }
    assert {kernel: str(kind_of_work(kernel)) for kernel in known} == known
    assert kinds_of_text("gemm m=8 n=8 k=8; 2*stream name=add read=8 write=8") == {"gemm", "elementwise"}


def test_little_of_the_samples_is_left_over() -> None:
    seconds: Counter[WorkKind] = Counter()
    folder = shared("data", "kineto")
    for path in sorted(folder.glob("*.json.gz")):
        if "_et." in path.name:
            continue  # execution traces have no kernels
        trace = read_trace(path)
        device = trace.events.of(*ON_DEVICE)
        for name, taken in zip(trace.names(device), trace.events.duration_s[device].tolist(), strict=True):
            seconds[kind_of_kernel(name)] += taken
    assert seconds[WorkKind.OTHER] < 0.005 * seconds.total()
    assert seconds[WorkKind.GEMM] > 0.1 * seconds.total()
