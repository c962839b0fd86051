// Stores keys and values of rows in their pages, as half floats.

#include "kv_store.cuh"

KERNEL(KV_STORE_THREADS, kv_store_f16, KvStoreParams) { kv_store<KV_F16>(params); }
