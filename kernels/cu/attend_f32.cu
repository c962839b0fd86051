// Attention to keys and values that are 32-bit floats: a block for all splits of a row.

#include "attend.cuh"

KERNEL(ATTEND_THREADS, attend_f32, AttendParams) { attend<KV_F32>(params); }
