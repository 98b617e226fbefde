// A conversation with one model, streamed from /v1/chat/completions.
import { Problem, ask, notice, say } from "./asking.js";

const SHOW_MS = 50;
const byId = (id) => document.getElementById(id);
let messages = [];
let running = null;

/** The line under an answer, from llama-server's `timings`; as `slipstream chat` writes it. */
export function statisticsLine(timings) {
  const drafted = timings.draft_n ?? 0;
  const accepted = timings.draft_n_accepted ?? 0;
  const rounds = timings.draft_n_steps ?? 0;
  const relaxed = timings.draft_n_relaxed ?? 0;
  const rate = timings.predicted_per_second;
  const tail = typeof rate === "number" ? [`${rate.toFixed(1)} tok/s`] : [];
  if (!drafted) return `↳ ${["no drafts", ...tail].join(", ")}`;
  const parts = rounds ? [`${rounds} rounds`] : [];
  parts.push(`${drafted} drafted`, `${accepted} accepted (${((100 * accepted) / drafted).toFixed(1)} %)`);
  if (rounds) parts.push(`${(1 + accepted / rounds).toFixed(2)} tok/round`);
  parts.push(...tail);
  if (relaxed) parts.push(`${relaxed} relaxed`);
  return `↳ ${parts.join(", ")}`;
}

/** The data of the server-sent events of a response. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (data.length) yield data.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

function fields() {
  const given = [...byId("chat-form").querySelectorAll("[data-field]")].filter((input) => input.value !== "");
  return Object.fromEntries(given.map((input) => [input.dataset.field, Number(input.value)]));
}

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

/** Change the log; who reads its end goes on doing so. */
function write(change) {
  const log = byId("chat-log");
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change(log);
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

/** One answer on its way to the reader. A fast model says more than can be laid out piece by piece. */
class Answer {
  constructor(model) {
    this.model = model;
    this.text = "";
    this.isEnded = false;
    this.fresh = { text: "", reasoning: "" };
    this.box = element("article", "message answer");
    this.body = element("p", "body");
    this.status = element("p", "statistics", "…");
    this.box.append(element("h3", "who", model), this.body, this.status);
    write((log) => log.append(this.box));
    this.timer = setInterval(() => this.show(), SHOW_MS);
  }

  take(data) {
    if (data === "[DONE]") {
      this.isEnded = true;
      return;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Problem(chunk.error.message);
    for (const { delta = {}, finish_reason: reason } of chunk.choices ?? []) {
      this.fresh.reasoning += delta.reasoning_content ?? "";
      this.fresh.text += delta.content ?? "";
      this.text += delta.content ?? "";
      if (reason === "length") this.note = "the answer ends at the limit of tokens";
    }
    if (chunk.timings) this.timings = chunk.timings;
  }

  show() {
    const { text, reasoning } = this.fresh;
    if (!text && !reasoning) {
      if (!this.text && !this.thoughts) this.wait();
      return;
    }
    this.status.textContent = "…";
    this.fresh = { text: "", reasoning: "" };
    write(() => {
      if (reasoning && !this.thoughts) {
        const details = element("details", "reasoning");
        details.open = true;
        this.thoughts = element("p", "body");
        details.append(element("summary", "", "Reasoning"), this.thoughts);
        this.body.before(details);
      }
      this.thoughts?.append(reasoning);
      this.body.append(text);
    });
  }

  // The first answer of a model waits for its load.
  wait() {
    const entry = document.querySelector(`[data-model="${CSS.escape(this.model)}"]`);
    const state = entry?.dataset.state ?? "ready";
    this.status.textContent = state === "ready" ? "…" : `… ${this.model} is ${state}`;
  }

  end(note) {
    clearInterval(this.timer);
    this.show();
    const words = [this.timings && statisticsLine(this.timings), note ?? this.note].filter(Boolean);
    write(() => (this.status.textContent = words.join(" · ")));
  }
}

async function send() {
  const text = byId("chat-text").value.trim();
  const model = byId("chat-model").value;
  if (!text || !model || running) return;
  byId("chat-text").value = "";
  const log = byId("chat-log");
  if (!messages.length) log.replaceChildren();
  const asked = element("article", "message asked");
  asked.append(element("h3", "who", "You"), element("p", "body", text));
  log.append(asked);
  // A question asked here is read here.
  log.scrollTop = log.scrollHeight;
  const question = { role: "user", content: text };
  const conversation = messages;
  const answer = new Answer(model);
  running = new AbortController();
  buttons();
  try {
    const body = { ...fields(), model, messages: [...conversation, question], stream: true };
    const response = await ask("v1/chat/completions", { method: "POST", body, signal: running.signal });
    for await (const data of eventsOf(response)) answer.take(data);
    if (!answer.isEnded) throw new Problem("the answer broke off");
    answer.end();
    say(`${model} has answered: ${answer.text.slice(0, 300)}`);
  } catch (e) {
    const isStopped = e.name === "AbortError";
    answer.end(isStopped ? "stopped" : "broken off");
    if (!isStopped) notice(`Chat with ${model}`, e);
  } finally {
    running = null;
    // After "Clear" it is a conversation that nobody goes on with.
    if (answer.text) conversation.push(question, { role: "assistant", content: answer.text });
    else byId("chat-text").value ||= text;
    buttons();
  }
}

function buttons() {
  const stop = byId("chat-stop");
  const hadFocus = document.activeElement === stop || document.activeElement === byId("chat-send");
  stop.hidden = !running;
  byId("chat-send").hidden = Boolean(running);
  if (hadFocus) (running ? stop : byId("chat-text")).focus();
}

/** Make the form work. */
export function startChat() {
  const text = byId("chat-text");
  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("chat-form").requestSubmit();
  });
  // Where an option is wrong the browser says so, if it can be seen.
  byId("chat-form").addEventListener("invalid", (event) => (event.target.closest("details").open = true), true);
  byId("chat-stop").addEventListener("click", () => running?.abort());
  byId("chat-clear").addEventListener("click", () => {
    running?.abort();
    messages = [];
    byId("chat-log").replaceChildren();
    text.focus();
  });
}
