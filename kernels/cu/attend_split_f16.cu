// Attention to keys and values that are half floats: a block for each split of a row.

#include "attend.cuh"

KERNEL_OF_MANY_REGISTERS(ATTEND_THREADS, attend_split_f16, AttendParams) { attend_split<KV_F16>(params); }
