// Attention to keys and values that are integers: a block for each split of a row.

#include "attend.cuh"

KERNEL_OF_MANY_REGISTERS(ATTEND_THREADS, attend_split_int8, AttendParams) { attend_split<KV_INT8>(params); }
