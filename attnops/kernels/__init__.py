"""Compiled kernels for the CPU, and the custom operators that torch sees them through.

They read raw pointers, sizes and strides, and include no header of torch, so that one build serves every torch.
"""
