// Attention to keys and values that are integers: a block for all splits of a row.

#include "attend.cuh"

KERNEL_OF_MANY_REGISTERS(ATTEND_THREADS, attend_int8, AttendParams) { attend<KV_INT8>(params); }
