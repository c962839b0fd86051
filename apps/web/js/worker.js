// The worker of a model. It computes one step a turn, so that messages of the page are read in between.

import init, { NestlingTab } from "./module.js";

const RETRIES_MAX = 5;
const RETRY_PAUSE_MS = 250;
/** Time without an answer after which further levels are fetched. */
const IDLE_MS = 250;

let tab;
let cache = "memory";
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

/** Calls `action`, again after a pause if a request failed that may succeed later. */
async function retried(action) {
  for (let attempt = 0; ; attempt++) {
    try {
      return action();
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

const status = () => ({ ...JSON.parse(tab.status()), cache });

async function open({ url, options, useCache }) {
  await init();
  const [data, map] = useCache ? await files(url) : [];
  if (map) cache = "device";
  tab = await retried(() => new NestlingTab(url, JSON.stringify(options), data, map));
  postMessage({ type: "status", status: status() });
}

/** Fetches the model. Once it is usable, answers come first, and fetching waits until the model is idle. */
async function fetchAll() {
  let isUsable = false;
  for (let isComplete = false; !isComplete;) {
    while (isUsable && queue.length) {
      await runAll();
      await pause(IDLE_MS);
    }
    isComplete = await retried(() => tab.fetchMore());
    const state = status();
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
    else call(task);
    queue.shift();
  }
}

/** Conversations and sessions of the page, by its own numbers. */
const chats = new Map();
const sessions = new Map();

/** Returns the tab's number of a session of the page, which is created at its first use. */
function sessionOf(id) {
  if (!sessions.has(id)) sessions.set(id, tab.newSession());
  return sessions.get(id);
}

function chatOf({ chat, conversation }) {
  if (!chats.has(chat)) chats.set(chat, tab.newChat(JSON.stringify(conversation)));
  return chats.get(chat);
}

/** Starts an answer, of whose inputs one is given. */
function start({ session, options, ...asked }) {
  const json = JSON.stringify(options);
  if (asked.results) tab.replyToTools(chatOf(asked), asked.results, json);
  else if (session === undefined) tab.send(chatOf(asked), asked.text, json);
  else if (asked.tokens) tab.generateTokens(sessionOf(session), asked.tokens, json);
  else tab.generateText(sessionOf(session), asked.text, json);
}

async function answer(task) {
  const post = (type, value) => postMessage({ type, id: task.id, value });
  try {
    if (task.isCancelled) throw JSON.stringify({ kind: "cancelled", message: "the answer was cancelled" });
    start(task);
    for (;;) {
      const step = JSON.parse(tab.step());
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
  transcript: (task) => JSON.parse(tab.transcript(chatOf(task))),
  tokens: ({ session }) => Array.from(tab.sessionTokens(sessionOf(session))),
  snapshot: ({ session }) => tab.snapshot(sessionOf(session)),
  fork: ({ session, other }) => void sessions.set(other, tab.forkSession(sessionOf(session))),
  restore: ({ other, bytes }) => void sessions.set(other, tab.restore(bytes)),
  closeChat({ chat }) {
    if (chats.has(chat)) tab.closeChat(chats.get(chat));
    chats.delete(chat);
  },
  closeSession({ session }) {
    if (sessions.has(session)) tab.closeSession(sessions.get(session));
    sessions.delete(session);
  },
};

/** Calls that do not wait. */
const urgentCalls = {
  status,
  setMemoryBudget: ({ bytes }) => tab.setMemoryBudget(bytes),
};

function call({ name, id, ...task }) {
  try {
    postMessage({ type: "returned", id, value: (urgentCalls[name] ?? calls[name])(task) });
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
