"""Qwen3.8-Flash-Next (qwen4_exp): Gated DeltaNet, sparse attention, 512 experts, four residual streams."""
