// Imports of the module that suspend its stack until a promise of the browser has settled.

let resume;
let isWoken = false;

/** Resumes the suspended stack after the current task, or lets the next `suspend` return at once. */
export function wake() {
  isWoken = true;
  resume?.();
}

const woken = async () => {
  if (!isWoken) await new Promise((resolve) => (resume = resolve));
  isWoken = false;
  resume = undefined;
};

/** Suspends the stack until `wake` is called. Without JSPI no device is opened that would call it. */
export const suspend = WebAssembly.Suspending ? new WebAssembly.Suspending(woken) : () => {
  throw new Error("this browser cannot suspend WebAssembly");
};
