// Types of weights that have kernels, once: NAME as it stands in kernels' names, TYPE of weights.cuh. A source defines KERNELS and includes this.
KERNELS(q4_0, Q4_0)
KERNELS(q8_0, Q8_0)
KERNELS(f16, F16)
KERNELS(q4_k, Q4_K)
KERNELS(q6_k, Q6_K)
KERNELS(q4_1, Q4_1)
KERNELS(q5_k, Q5_K)
KERNELS(mxfp4, MXFP4)
