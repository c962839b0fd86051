// Files of the origin private file system, two for each model: its blocks, and the map of those that have arrived.

/**
 * Opens a file of a model. A shared one may be open in several workers of a page at once.
 *
 * @throws if the browser has no storage, another tab uses the file, or files cannot be shared.
 */
export async function openFile(url, kind, isShared) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url));
  const name = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const root = await navigator.storage.getDirectory();
  const folder = await root.getDirectoryHandle("nestling", { create: true });
  const file = await folder.getFileHandle(`${name}.${kind}`, { create: true });
  return file.createSyncAccessHandle({ mode: isShared ? "readwrite-unsafe" : "readwrite" });
}
