// Stores keys and values of rows in their pages, as 32-bit floats.

#include "kv_store.cuh"

KERNEL(KV_STORE_THREADS, kv_store_f32, KvStoreParams) { kv_store<KV_F32>(params); }
