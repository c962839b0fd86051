// The worker of a model. It computes one step a turn, so that messages of the page are read in between.

import { chosenAdapter } from "./adapter.js";
import { TabCalls } from "./calls.js";
import { openFile } from "./files.js";
import init, { NestlingTab } from "./module.js";
import { assemble, dismissAll } from "./team.js";

const RETRIES_MAX = 5;
const RETRY_PAUSE_MS = 250;
/** Time without an answer after which further levels are fetched. */
const IDLE_MS = 250;

let tab;
let cache = "memory";
/** Name of the GPU that was opened. */
let adapter;
/** Answers and calls that wait for their turn; the first one is running. */
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
    // A second tab does not get the map, and then opens no blocks.
    opened.push(await openFile(url, "map"));
    opened.push(await openFile(url, "blocks"));
    return opened.reverse();
  } catch {
    opened.forEach((file) => file.close());
    return [];
  }
}

async function status() {
  const state = await tab.call("status");
  return { ...state, cache, device: state.device === "gpu" ? adapter : state.device };
}

async function open({ url, options, useCache, ports }) {
  const exports = await init();
  adapter = await chosenAdapter(options.device);
  const [data, map] = useCache ? await files(url) : [];
  if (map) cache = "device";
  const opened = await retried(() => new NestlingTab(url, JSON.stringify(options), data, map));
  const hasTeam = map && !adapter;
  const team = hasTeam && (await assemble(ports, { module: init.__wbindgen_wasm_module, url, options }));
  if (team) opened.divide(team);
  if (!hasTeam) dismissAll(ports);
  tab = new TabCalls(opened, exports, adapter !== undefined);
  if (adapter) await tab.call("openDevice");
  postMessage({ type: "status", status: await status() });
}

/** Fetches the model. Once it is usable, answers come first, and fetching waits until the model is idle. */
async function fetchAll() {
  let isUsable = false;
  for (let isComplete = false; !isComplete;) {
    while (isUsable && queue.length) {
      await runAll();
      await pause(IDLE_MS);
    }
    isComplete = await retried(() => tab.call("fetchMore"));
    const state = await status();
    postMessage({ type: "status", status: state });
    if (!isUsable && state.isUsable) {
      postMessage({ type: "ready" });
      await pause(IDLE_MS);
    } else {
      await turn();
    }
    isUsable = state.isUsable;
  }
}

async function runAll() {
  while (queue.length) {
    const task = queue[0];
    if (task.type === "ask") await answer(task);
    else await call(task);
    queue.shift();
  }
}

/** Conversations and sessions of the page, by its own numbers. */
const chats = new Map();
const sessions = new Map();

/** Returns the tab's number of a session of the page, which is created at its first use. */
async function sessionOf({ session }) {
  if (!sessions.has(session)) sessions.set(session, await tab.call("newSession"));
  return { session: sessions.get(session) };
}

async function chatOf({ chat, conversation }) {
  if (!chats.has(chat)) chats.set(chat, await tab.call("newChat", { conversation }));
  return { chat: chats.get(chat) };
}

/** Starts an answer, of whose inputs one is given. */
async function start({ options, text, tokens, results, ...place }) {
  if (results) return tab.call("replyToTools", { ...(await chatOf(place)), results, options });
  if (place.session === undefined) return tab.call("send", { ...(await chatOf(place)), text, options });
  const prompt = tokens ? { tokens } : { text };
  return tab.call("generate", { ...(await sessionOf(place)), prompt, options });
}

async function answer(task) {
  const post = (type, value) => postMessage({ type, id: task.id, value });
  try {
    if (task.isCancelled) throw JSON.stringify({ kind: "cancelled", message: "the answer was cancelled" });
    await start(task);
    for (;;) {
      const step = await tab.call("step");
      if (step.type === "finished") return post("finished", step.summary);
      if (step.type !== "pending") post("event", step);
      await turn();
    }
  } catch (error) {
    post("failed", described(error));
  }
}

/** Calls of the page that wait for the answers before them. */
const calls = {
  transcript: async (task) => tab.call("transcript", await chatOf(task)),
  tokens: async (task) => tab.call("sessionTokens", await sessionOf(task)),
  snapshot: async (task) => tab.call("snapshot", await sessionOf(task)),
  async fork(task) {
    sessions.set(task.other, await tab.call("forkSession", await sessionOf(task)));
  },
  async restore({ other, bytes }) {
    sessions.set(other, await tab.call("restore", {}, bytes));
  },
  async closeChat({ chat }) {
    if (chats.has(chat)) await tab.call("closeChat", { chat: chats.get(chat) });
    chats.delete(chat);
  },
  async closeSession({ session }) {
    if (sessions.has(session)) await tab.call("closeSession", { session: sessions.get(session) });
    sessions.delete(session);
  },
};

/** Calls that do not wait. */
const urgentCalls = {
  status,
  setMemoryBudget: ({ bytes }) => tab.call("setMemoryBudget", { bytes }),
};

async function call({ name, id, ...task }) {
  try {
    postMessage({ type: "returned", id, value: await (urgentCalls[name] ?? calls[name])(task) });
  } catch (error) {
    postMessage({ type: "failed", id, value: described(error) });
  }
}

let isFetching = true;

function enqueue(task) {
  queue.push(task);
  if (!isFetching && queue.length === 1) runAll();
}

function cancel(id) {
  const waiting = queue.find((task) => task.id === id);
  if (!waiting) return;
  waiting.isCancelled = true;
  if (waiting === queue[0]) tab.cancel();
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
      if (tab) runAll();
      break;
    case "ask": return enqueue(message);
    case "call": return message.name in urgentCalls ? call(message) : enqueue(message);
    case "cancel": return cancel(message.id);
  }
};
