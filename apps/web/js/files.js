// Files of the origin private file system, two for each model: its blocks, and the map of those that have arrived.

/**
 * Opens the file "map" or "blocks" of a model. The map can be open once; who has it may write both. The blocks can be open in
 * several workers at once where the browser knows this mode.
 *
 * @throws if the browser has no storage, or the file is open elsewhere.
 */
export async function openFile(url, kind) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url));
  const name = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const root = await navigator.storage.getDirectory();
  const folder = await root.getDirectoryHandle("nestling", { create: true });
  const file = await folder.getFileHandle(`${name}.${kind}`, { create: true });
  return file.createSyncAccessHandle({ mode: kind === "blocks" ? "readwrite-unsafe" : "readwrite" });
}
