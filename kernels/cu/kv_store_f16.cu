// Stores keys and values of rows in their pages, as half floats.

#include "kv_store.cuh"

KERNEL(KV_STORE_THREADS) kv_store_f16(const KvStoreParams params) { kv_store<KV_F16>(params); }
