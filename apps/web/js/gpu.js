// A tab that computes on the GPU. Its module is suspended while it waits for the device, and messages go on arriving.
// They must not enter the module meanwhile, so calls of the tab run one after another, each once the last one has ended.

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

/** Opens the device of a tab. `exports` are those of its module. Returns an object with the tab's methods, which are asynchronous. */
export async function openDevice(tab, exports) {
  const run = WebAssembly.promising(exports.nestlingtab_run);
  let last = Promise.resolve();
  const inTurn = (action) => {
    const result = last.then(action);
    last = result.catch(() => {});
    return result;
  };
  const waiting = (call, parameters) => inTurn(async () => {
    tab.prepare(JSON.stringify({ call, ...parameters }));
    await run(tab.__wbg_ptr);
    return tab.outcome();
  });
  await waiting("openDevice");
  return {
    send: (chat, text, options) => waiting("send", { chat, text, options: JSON.parse(options) }),
    complete: (text, options) => waiting("complete", { text, options: JSON.parse(options) }),
    step: () => waiting("step"),
    closeChat: (chat) => waiting("closeChat", { chat }),
    newChat: (system) => inTurn(() => tab.newChat(system)),
    fetchMore: () => inTurn(() => tab.fetchMore()),
    status: () => inTurn(() => tab.status()),
    cancel: () => inTurn(() => tab.cancel()),
  };
}
