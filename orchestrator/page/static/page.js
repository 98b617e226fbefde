// The live parts of the page come as HTML from the server; this asks for them, sends what buttons say, tells errors.
import { KEY, ask, notice, say } from "./asking.js";
import { startChat } from "./chat.js";
import { show } from "./morph.js";

const POLL_MS = 1000;
// While a server comes or goes.
const QUICK_POLL_MS = 400;
// A look that takes longer is given up: what is shown is old by then, and the reader is told.
const LOOK_DEADLINE_MS = 10_000;
const MOVING = ["loading", "warming", "draining", "stopping"].map((state) => `.model[data-state=${state}]`).join();
const byId = (id) => document.getElementById(id);
const pending = new Set();
let last = "";
let lastEvent = null;
let jobs = new Map();
let lostSince = 0;
let timer = 0;
let looks = 0;
let questions = 0;

async function look() {
  clearTimeout(timer);
  const turn = ++looks;
  const deadline = new AbortController();
  const alarm = setTimeout(() => deadline.abort(), LOOK_DEADLINE_MS);
  try {
    const html = await (await ask("page/live", { signal: deadline.signal })).text();
    // A later look may have been answered already.
    if (turn !== looks) return;
    lostSince = 0;
    byId("connection").textContent = "";
    if (html !== last) {
      last = html;
      show(html);
      mark();
      tellNews();
    }
    open();
  } catch (e) {
    if (turn !== looks) return;
    if (e.status === 401 || e.status === 403) {
      lock(sessionStorage.getItem(KEY) ? e : null);
      return;
    }
    lostSince ||= Date.now();
    byId("connection").textContent = `no answer since ${new Date(lostSince).toLocaleTimeString()}`;
  } finally {
    clearTimeout(alarm);
  }
  clearTimeout(timer);
  const isMoving = pending.size || document.querySelector(MOVING);
  if (!document.hidden) timer = setTimeout(look, isMoving ? QUICK_POLL_MS : POLL_MS);
}

// States and ends are told; figures that tick are not.
function tellNews() {
  const events = [...document.querySelectorAll("[data-event]")];
  const newest = Math.max(0, ...events.map((e) => Number(e.dataset.event)));
  const news = events.filter((e) => lastEvent !== null && Number(e.dataset.event) > lastEvent).reverse();
  const words = news.map((e) => e.querySelectorAll(".name, .state, .why")).map((c) => [...c].map((p) => p.textContent).join(" "));
  lastEvent = newest;
  const now = new Map();
  for (const job of document.querySelectorAll("[data-job]")) {
    const { key, state } = job.dataset;
    now.set(key, state);
    if (jobs.has(key) && jobs.get(key) !== state) words.push(`${job.dataset.job} ${state}`);
  }
  jobs = now;
  if (words.length) say(words.slice(-4).join("; "));
}

function open() {
  const form = byId("unlock");
  if (!form || form.hidden) return;
  const hadFocus = form.contains(document.activeElement);
  form.hidden = true;
  byId("main").hidden = false;
  byId("forget").hidden = false;
  if (hadFocus) byId("models").focus();
}

function lock(problem) {
  sessionStorage.removeItem(KEY);
  const form = byId("unlock");
  // The page was loaded when no keys were set.
  if (!form) return location.reload();
  byId("main").hidden = true;
  byId("forget").hidden = true;
  form.hidden = false;
  byId("key-error").textContent = problem ? [problem.message, problem.hint].filter(Boolean).join(". ") : "";
  byId("key").focus();
}

async function act(button) {
  const call = button.dataset.call;
  if (pending.has(call)) return;
  const [method, path] = call.split(" ");
  const body = button.dataset.body && JSON.parse(button.dataset.body);
  const title = button.getAttribute("aria-label");
  try {
    if ("plan" in button.dataset && !(await agreed(title, method, path, body))) return;
    pending.add(call);
    mark();
    const answer = ask(path, { method, body });
    look();
    await answer;
  } catch (e) {
    notice(title, e);
  } finally {
    pending.delete(call);
    mark();
    look();
  }
}

// Shows what would happen; whether it is to happen.
async function agreed(title, method, path, body) {
  const turn = ++questions;
  const plan = await (await ask(`${path}?dry_run=true`, { method, body })).json();
  // Another button was pressed while this plan was on its way: one dialog answers one question.
  if (turn !== questions) return false;
  const dialog = byId("plan");
  byId("plan-title").textContent = `${title}?`;
  const lines = plan.actions.map((action) => {
    const line = document.createElement("li");
    const verb = document.createElement("strong");
    verb.textContent = `${action.do} ${action.model}`;
    line.append(verb, `: ${action.why}`);
    return line;
  });
  byId("plan-actions").replaceChildren(...lines);
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  return dialog.returnValue === "yes";
}

function mark() {
  for (const button of document.querySelectorAll("[data-call]")) {
    const isPending = pending.has(button.dataset.call);
    button.toggleAttribute("data-pending", isPending);
    // Not `disabled`, which would take the focus away.
    button.ariaDisabled = isPending ? "true" : null;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-call]");
  if (button) act(button);
});
document.addEventListener("visibilitychange", () => document.hidden || look());
byId("forget").addEventListener("click", () => {
  clearTimeout(timer);
  sessionStorage.removeItem(KEY);
  location.reload();
});
byId("unlock")?.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("key").value.trim());
  byId("key").value = "";
  byId("key-error").textContent = "";
  look();
});
startChat();
if (!byId("unlock") || sessionStorage.getItem(KEY)) look();
