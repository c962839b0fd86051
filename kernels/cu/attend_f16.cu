// Attention to keys and values that are half floats: a block for all splits of a row.

#include "attend.cuh"

KERNEL(ATTEND_THREADS, attend_f16, AttendParams) { attend<KV_F16>(params); }
