// Faults that the checks of the emulation must find, one for each number, and a kernel without any: for
// tests of the checks alone.

#include "device.cuh"

#define THREADS 256u
#define TEAM 128u

struct FaultParams {
    float* x;
    float* out;
    u32 which;
    u32 count; // of each
};

enum Which {
    FAULT_NONE = 0,
    FAULT_MISSING_BARRIER,
    FAULT_BLOCKS_WRITE,
    FAULT_BLOCK_READS,
    FAULT_LANES,
    FAULT_SHORT_BARRIER,
    FAULT_PAST_END,
    FAULT_PAST_SHARED,
    FAULT_UNWRITTEN,
    FAULT_UNWRITTEN_SHARED,
    FAULT_MISALIGNED,
    FAULT_OTHER_BARRIER,
    FAULT_LONG_BARRIER,
    FAULT_ENDED_THREAD,
    FAULT_ENDED_LANE,
    FAULT_OTHER_OPERATION,
    FAULT_OTHER_WAIT,
};

// Turns a block's values around, and lanes' once more; teams meet, and blocks count themselves.
DEVICE void no_fault(const FaultParams& params, float* values) {
    u32 thread = threadIdx.x, first = blockIdx.x * THREADS;
    values[thread] = params.x[first + thread];
    __syncthreads();
    float value = values[THREADS - 1 - thread];
    __syncthreads();
    values[thread] = value;
    __syncwarp();
    value = values[thread ^ 1];
    if (thread < TEAM) {
        wait_at_barrier<1, TEAM>();
    } else {
        wait_at_barrier<2, TEAM>();
    }
    values[thread] = __shfl_xor_sync(FULL_WARP, value, 1);
    if (thread < TEAM) {
        wait_at_barrier<1, TEAM>();
    } else {
        wait_at_barrier<2, TEAM>();
    }
    params.out[first + thread] = values[thread ^ (TEAM - 1)];
    if (thread == 0) {
        atomicAdd(reinterpret_cast<u32*>(params.x + gridDim.x * THREADS), 1);
    }
}

DEVICE void memory_fault(const FaultParams& params, float* values) {
    u32 thread = threadIdx.x;
    float* out = params.out + blockIdx.x * THREADS + thread;
    switch (params.which) {
    case FAULT_BLOCKS_WRITE:
        params.out[thread] = 1.0f;
        return;
    case FAULT_BLOCK_READS:
        *out = 1.0f;
        if (blockIdx.x == 1 && thread == 7) {
            out[0] = params.out[3];
        }
        return;
    case FAULT_PAST_END:
        *out = thread == 9 ? params.x[params.count] : 0.0f;
        return;
    case FAULT_PAST_SHARED:
        values[thread == 200 ? THREADS : thread] = 1.0f;
        return;
    case FAULT_UNWRITTEN:
        *out = thread == 5 ? params.out[params.count - 1] : 0.0f;
        return;
    case FAULT_UNWRITTEN_SHARED:
        *out = values[thread];
        return;
    default:
        if (thread == 1) {
            uint4 vector = *reinterpret_cast<const uint4*>(params.x + 1);
            *out = __uint_as_float(vector.x ^ vector.y ^ vector.z ^ vector.w);
        }
    }
}

DEVICE void order_fault(const FaultParams& params, float* values) {
    u32 thread = threadIdx.x;
    if (params.which == FAULT_MISSING_BARRIER) {
        values[thread] = 1.0f;
        __syncthreads();
        values[thread] += values[THREADS - 1 - thread];
    } else if (params.which == FAULT_LANES) {
        // A shuffle orders no memory.
        values[thread] = __shfl_xor_sync(FULL_WARP, 1.0f, 1);
        __syncthreads();
        float value = __shfl_xor_sync(FULL_WARP, values[thread], 1);
        values[thread ^ 1] = value;
    } else {
        // Half of the team goes on without the other.
        values[thread] = 1.0f;
        if (thread < TEAM) {
            wait_at_barrier<1, TEAM / 2>();
            // Of the next warp: no two warps that meet at the barrier read only each other's.
            params.out[blockIdx.x * THREADS + thread] = values[(thread + WARP) % TEAM];
        }
    }
}

DEVICE void meeting_fault(const FaultParams& params, float* values) {
    u32 thread = threadIdx.x;
    switch (params.which) {
    case FAULT_OTHER_BARRIER:
        if (thread < TEAM) {
            __syncthreads();
        } else {
            __syncthreads();
        }
        return;
    case FAULT_LONG_BARRIER:
        if (thread < TEAM) {
            wait_at_barrier<1, 2 * TEAM>();
        }
        return;
    case FAULT_ENDED_THREAD:
        if (thread == 77) {
            return;
        }
        __syncthreads();
        return;
    case FAULT_ENDED_LANE:
        if (thread != 40) {
            values[thread] = __shfl_xor_sync(FULL_WARP, 1.0f, 1);
        }
        return;
    case FAULT_OTHER_OPERATION:
        if (thread % 2 == 0) {
            values[thread] = __shfl_xor_sync(FULL_WARP, 1.0f, 1);
        } else {
            values[thread] = __shfl_xor_sync(FULL_WARP, 1.0f, 1);
        }
        return;
    default:
        if (thread < TEAM) {
            wait_at_barrier<1, THREADS>();
        } else {
            __syncthreads();
        }
    }
}

KERNEL(THREADS, fault, FaultParams) {
    SHARED_ARRAY(float, values, THREADS);
    if (params.which == FAULT_NONE) {
        no_fault(params, values);
    } else if (params.which == FAULT_MISSING_BARRIER || params.which == FAULT_LANES ||
               params.which == FAULT_SHORT_BARRIER) {
        order_fault(params, values);
    } else if (params.which >= FAULT_OTHER_BARRIER) {
        meeting_fault(params, values);
    } else {
        memory_fault(params, values);
    }
}
