// Stores keys and values of rows in their pages, as integers.

#include "kv_store.cuh"

KERNEL(KV_STORE_THREADS, kv_store_int8, KvStoreParams) { kv_store<KV_INT8>(params); }
