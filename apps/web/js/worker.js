// The worker of a model. It computes one step a turn, so that messages of the page are read in between.

import { chosenAdapter, openDevice } from "./gpu.js";
import init, { NestlingTab } from "./module.js";

const RETRIES_MAX = 5;
const RETRY_PAUSE_MS = 250;
/** Time without an answer after which further levels are fetched. */
const IDLE_MS = 250;

/** The model. On a GPU its methods return promises, so each result is awaited. */
let tab;
let cache = "memory";
/** Name of the GPU that was opened. */
let adapter;
/** Answers that wait for their turn; the first one is running. */
const queue = [];

/** Runs the other tasks of this worker once. Unlike a timer, it does not wait. */
const channel = new MessageChannel();
const turn = () => new Promise((resolve) => {
  channel.port1.onmessage = resolve;
  channel.port2.postMessage(null);
});
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Returns the fields of an error: those of the module are JSON, any other one is a fault of the package. */
function described(error) {
  if (typeof error === "string") return JSON.parse(error);
  return { kind: "internal", message: String(error), mayRetry: false };
}

/** Awaits `action`, again after a pause if a request failed that may succeed later. */
async function retried(action) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await action();
    } catch (error) {
      if (attempt === RETRIES_MAX || !described(error).mayRetry) throw error;
      await pause(RETRY_PAUSE_MS * 2 ** attempt);
    }
  }
}

/** Opens the two files of a model, or none if the browser has no storage or another tab uses them. */
async function files(url) {
  const opened = [];
  try {
    const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url));
    const name = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
    const root = await navigator.storage.getDirectory();
    const folder = await root.getDirectoryHandle("nestling", { create: true });
    for (const kind of ["blocks", "map"]) {
      const file = await folder.getFileHandle(`${name}.${kind}`, { create: true });
      opened.push(await file.createSyncAccessHandle());
    }
    return opened;
  } catch {
    opened.forEach((file) => file.close());
    return [];
  }
}

async function status() {
  const state = JSON.parse(await tab.status());
  return { ...state, cache, device: state.device === "gpu" ? adapter : state.device };
}

async function open({ url, options, useCache }) {
  const exports = await init();
  adapter = await chosenAdapter(options.device);
  const [data, map] = useCache ? await files(url) : [];
  if (map) cache = "device";
  const opened = await retried(() => new NestlingTab(url, JSON.stringify(options), data, map));
  tab = adapter ? await openDevice(opened, exports) : opened;
  postMessage({ type: "status", status: await status() });
}

/** Fetches the store. Once a level is there, answers come first, and fetching waits until the model is idle. */
async function fetchAll() {
  let level = 0;
  for (let isComplete = false; !isComplete;) {
    while (level && queue.length) {
      await answerAll();
      await pause(IDLE_MS);
    }
    isComplete = await retried(() => tab.fetchMore());
    const state = await status();
    postMessage({ type: "status", status: state });
    if (!level && state.level) {
      postMessage({ type: "ready" });
      await pause(IDLE_MS);
    } else {
      await turn();
    }
    level = state.level;
  }
}

async function answerAll() {
  while (queue.length) {
    await answer(queue[0]);
    queue.shift();
  }
}

async function answer({ id, chat, text, options, isCancelled }) {
  const post = (type, value) => postMessage({ type, id, value });
  try {
    if (isCancelled) throw JSON.stringify({ kind: "cancelled", message: "the answer was cancelled" });
    const json = JSON.stringify(options);
    if (chat === undefined) await tab.complete(text, json);
    else await tab.send(await chat, text, json);
    for (;;) {
      const step = JSON.parse(await tab.step());
      if (step.text !== undefined) post("text", step.text);
      if (step.finished) return post("finished", step.finished);
      await turn();
    }
  } catch (error) {
    post("failed", described(error));
  }
}

/** Chats of the tab, or promises of them, by the page's own numbers. */
const chats = new Map();
let isFetching = true;

function ask(message) {
  if (message.chat !== undefined && !chats.has(message.chat)) {
    chats.set(message.chat, tab.newChat(message.system));
  }
  queue.push({ ...message, chat: chats.get(message.chat) });
  if (!isFetching && queue.length === 1) answerAll();
}

function cancel(id) {
  const waiting = queue.find((answer) => answer.id === id);
  if (!waiting) return;
  waiting.isCancelled = true;
  if (waiting === queue[0]) tab.cancel();
}

async function closeChat(id) {
  const chat = chats.get(id);
  chats.delete(id);
  if (chat !== undefined) await tab.closeChat(await chat);
}

onmessage = async ({ data: message }) => {
  switch (message.type) {
    case "open":
      try {
        await open(message);
        await fetchAll();
        postMessage({ type: "arrived" });
      } catch (error) {
        postMessage({ type: "broken", value: described(error) });
      }
      isFetching = false;
      if (tab) answerAll();
      break;
    case "ask": return ask(message);
    case "cancel": return cancel(message.id);
    case "closeChat": return closeChat(message.chat);
    case "status": return postMessage({ type: "status", id: message.id, status: await status() });
  }
};
