// Calls of our own host with the reader's key, and what is told of them.

export const KEY = "slipstream-key";

/** A problem of the API, or of the way to it, in words. */
export class Problem extends Error {
  constructor(message, hint = "", status = 0) {
    super(message);
    Object.assign(this, { hint, status });
  }
}

/** Ask our own host, with the key if there is one; throws Problem unless the answer is a success. */
export async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = new Headers();
  // A header takes bytes: those of UTF-8, as in the file of keys, whatever was typed.
  const key = String.fromCharCode(...new TextEncoder().encode(sessionStorage.getItem(KEY) ?? ""));
  if (key) headers.set("authorization", `Bearer ${key}`);
  if (body) headers.set("content-type", "application/json");
  const sent = body && JSON.stringify(body);
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { method, headers, body: sent, signal, cache: "no-store" });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Problem("Slipstream does not answer.", "Is it running?");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  const message = told.detail ?? told.error?.message ?? `it answered ${response.status}`;
  throw new Problem(message, told.hint, response.status);
}

/** Tell an error until it is dismissed, or told again. */
export function notice(title, problem) {
  const said = `${title}: ${problem.message}`;
  for (const old of document.querySelectorAll(".notice")) if (old.firstChild.textContent === said) old.remove();
  const box = document.createElement("div");
  box.className = "notice error";
  box.setAttribute("role", "alert");
  const text = document.createElement("p");
  text.textContent = said;
  const hint = document.createElement("p");
  hint.className = "faint";
  hint.textContent = problem.hint ?? "";
  const close = document.createElement("button");
  close.textContent = "Dismiss";
  close.addEventListener("click", () => box.remove());
  box.append(text, hint, close);
  document.getElementById("notices").append(box);
}

/** Say something to screen readers once they are done with what they say. */
export function say(text) {
  document.getElementById("said").textContent = text;
}
