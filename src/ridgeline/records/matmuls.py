"""Operators whose arithmetic runs on the matrix units, where there are any.

Names are those of PyTorch's dispatcher (`native_functions.yaml`). One that is missing here counts
as other work, so whoever judges by it errs on the side of finding less.
"""

MATMULS = frozenset(
    f"aten::{name}"
    for name in (
        "mm", "addmm", "bmm", "baddbmm", "linear", "mv", "addmv", "_scaled_mm",
        "convolution", "_convolution", "convolution_backward",
        "mkldnn_convolution", "cudnn_convolution",
        "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "_cudnn_rnn", "_cudnn_rnn_backward",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward",
        "_flash_attention_forward", "_flash_attention_backward",
        "_efficient_attention_forward", "_efficient_attention_backward",
        "_transformer_encoder_layer_fwd", "_native_multi_head_attention",
    )
)  # fmt: skip
