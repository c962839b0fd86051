// Attention to keys and values that are 32-bit floats: a block for each split of a row.

#include "attend.cuh"

KERNEL(ATTEND_THREADS, attend_split_f32, AttendParams) { attend_split<KV_F32>(params); }
