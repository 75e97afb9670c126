/**
 * Sends the files of one job to the server, and opens them as an input.
 */

import { openUpload, postUpload, putFile } from "./api.js";

/**
 * @param {File[]} files
 * @param {AbortSignal} signal  ends it
 * @param {(text: string) => void} say  is told how far it is
 * @returns {Promise<import("./api.js").Opened>}
 */
export async function sendFiles(files, signal, say) {
  say(`uploading ${files.length === 1 ? files[0].name : `${files.length} files`} …`);
  const upload = await postUpload(files.map(({ name }) => name));
  for (const [number, file] of files.entries()) {
    signal.throwIfAborted();
    await putFile(upload, number, file, signal, (share) =>
      say(`uploading ${file.name}: ${Math.floor(100 * share)} %`),
    );
  }
  say("reading …");
  return openUpload(upload);
}
