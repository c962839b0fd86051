// The browser's GPU.

/** Returns the browser's adapter, or undefined without one, or if the module could not wait for it. */
async function found() {
  if (!WebAssembly.promising || !WebAssembly.Suspending) return undefined;
  try {
    return (await navigator.gpu?.requestAdapter())?.info;
  } catch {
    return undefined;
  }
}

/** Returns the name of the adapter to use, or undefined for the CPU. Software is used if it is named, not chosen. */
export async function chosenAdapter(device = "auto") {
  if (device !== "auto" && device !== "gpu") return undefined;
  const info = await found();
  if (device === "auto" && (!info || info.isFallbackAdapter)) return undefined;
  if (!info) {
    const message = "the GPU is unavailable: the browser has no WebGPU adapter, or cannot suspend WebAssembly (JSPI)";
    throw JSON.stringify({ kind: "device", message });
  }
  return info.description || [info.vendor, info.architecture].filter(Boolean).join(" ") || "gpu";
}
