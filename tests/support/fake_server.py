#!/usr/bin/env -S python3 -I -S
"""Stands in for llama-server where a fault must be provoked. Stand-alone: nothing but the standard library.

What it does is written, as JSON, behind the GGUF that `--model` names (scripted.py); it is read anew at every start:

    starts           append the process id to this file
    lines            log lines written at once
    line_bytes       length of one more log line
    flood_bytes      write this much to the log, in lines of 1,000 bytes, while it serves
    flooded          make this file when that is done
    says_port        name this port as its own when it listens
    ticks            log a line every 20 ms while waiting for `load_gate`
    load_gate        do not listen before this file exists
    exit_in_load     exit with this status instead of listening
    exit_after_gate  the same, once `load_gate` is open
    signal_in_load   die of this signal instead of listening
    complaint        log line written before dying
    child            start a process that sleeps, and log its id
    ignore_term      do not end at SIGTERM
    die_in_generation  die of SIGSEGV in the first generation
    die_in_answer    die of SIGSEGV when a request of `/v1` comes
    generation       status of the first generation's answer
    generation_hang  do not answer a generation while this file exists
    draft_n          tokens drafted in a generation, also a list by slot
    slots            number of slots
    props            text of /props
    slots_page       text of /slots; without it there is no such route
    slots_hang       do not answer /slots while this file exists
    alias            name that it says it serves, in place of the one it was given
    any_key          take any key
    metrics          text of /metrics
    counters         by series (name and labels), what it grows by a second, from the start on; behind `metrics`
    metrics_hang     do not answer /metrics while this file exists
    chunks           texts that a streamed answer consists of
    chunk_bytes      with `chunk_count`: so many events of this size instead
    chunk_count      how many; -1 for no end
    sent             write to this file how many chunks of a streamed answer were sent, after each
    chunk_gate       do not send any chunk after the first before this file exists
    die_after_chunks die of SIGKILL in mid-stream
    answer_hang      do not answer a request of `/v1` while this file exists
    plain            text of an answer that is not streamed
    seen             append every request of `/v1` to this file, one JSON object a line
    closed           append a line to this file when a client has gone in mid-stream
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

POLL_SECONDS = 0.02
SCRIPT_MARK = b"\nSCRIPT "
VERSION = "version: 0.6.0-dev (build 11434, commit fake)\nbuilt with nothing for nowhere\n"
HELP = """----- common params -----

-h,    --help, --usage                  print usage and exit
--version                               show version and build info
-c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
                                        (env: LLAMA_ARG_CTX_SIZE)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
                                        (env: LLAMA_ARG_FLASH_ATTN)
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer shared across all sequences
-m,    --model FNAME                    model path to load
                                        (env: LLAMA_ARG_MODEL)
-a,    --alias STRING                   set model name aliases, comma-separated (to be used by API)
-np,   --parallel N                     number of server slots (default: -1, -1 = auto)
--offline                               Offline mode: forces use of cache, prevents network access
--embedding, --embeddings               restrict to only support embedding use case

----- speculative params -----

--spec-draft-n-max N                    number of tokens to draft for speculative decoding (default: 3)
--spec-draft-model, -md, --model-draft FNAME
                                        draft model for speculative decoding (default: unused)
--spec-type none,draft-simple,draft-mtp,ngram-map-k
                                        comma-separated list of types of speculative decoding to use
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max or
                                        --spec-ngram-mod-n-max
--host HOST                             IP addresses to listen on
--port PORT                             port to listen (default: 8080)
--metrics                               enable prometheus compatible metrics endpoint (default: disabled)
--slots, --no-slots                     expose slots monitoring endpoint (default: enabled)
--log-file FNAME                        Log to file
"""


def append(path: str, line: object) -> None:
    with open(path, "a") as out:
        out.write(f"{line}\n")


def die(number: int) -> None:
    """Nothing after this runs: another thread may get the signal, so this one must wait for the end."""
    os.kill(os.getpid(), number)
    threading.Event().wait()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ClassVar[dict[str, Any]] = {}
    began: ClassVar[float] = 0.0

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, text: str, status: int = 200, kind: str = "application/json") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        # As llama-server does: who asked for the end of the connection hears that it comes.
        if self.close_connection:
            self.send_header("Connection", "close")
        super().end_headers()

    def authorized(self) -> bool:
        if self.script.get("any_key") or self.headers.get("Authorization") == f"Bearer {os.environ['LLAMA_API_KEY']}":
            return True
        self.answer('{"error": "wrong key"}', 401)
        return False

    def do_GET(self) -> None:
        if not self.authorized():
            return
        if self.path == "/props":
            alias = self.script.get("alias", sys.argv[sys.argv.index("--alias") + 1])
            props = {"total_slots": self.script.get("slots", 1), "model_alias": alias}
            self.answer(self.script.get("props", json.dumps(props)))
        elif self.path == "/slots" and "slots_page" in self.script:
            while os.path.exists(self.script.get("slots_hang", "")):
                time.sleep(POLL_SECONDS)
            self.answer(self.script["slots_page"])
        elif self.path == "/metrics":
            while os.path.exists(self.script.get("metrics_hang", "")):
                time.sleep(POLL_SECONDS)
            self.answer(self.script.get("metrics", "") + self.counters(), kind="text/plain")
        else:
            self.answer("{}", 404)

    def counters(self) -> str:
        seconds = time.monotonic() - self.began
        families: dict[str, list[str]] = {}
        for series, rate in self.script.get("counters", {}).items():
            families.setdefault(series.partition("{")[0], []).append(f"{series} {int(rate * seconds)}\n")
        return "".join(f"# TYPE {name} counter\n" + "".join(lines) for name, lines in families.items())

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.authorized():
            return
        if self.path == "/completion":
            self.generate(json.loads(raw))
            return
        if "seen" in self.script:
            seen = {"path": self.path, "headers": dict(self.headers), "body": raw.decode(errors="replace")}
            append(self.script["seen"], json.dumps(seen))
        while os.path.exists(self.script.get("answer_hang", "")):
            time.sleep(POLL_SECONDS)
        if self.script.get("die_in_answer"):
            die(signal.SIGSEGV)
        if b'"stream"' in raw and json.loads(raw).get("stream"):
            self.stream()
        else:
            self.answer(self.script.get("plain", '{"object": "chat.completion"}'))

    def generate(self, body: dict[str, Any]) -> None:
        if self.script.get("die_in_generation"):
            die(signal.SIGSEGV)
        while os.path.exists(self.script.get("generation_hang", "")):
            time.sleep(POLL_SECONDS)
        drafted = self.script.get("draft_n", 4)
        drafted = drafted[body.get("id_slot", 0)] if isinstance(drafted, list) else drafted
        timings = {"predicted_n": body["n_predict"], "draft_n": drafted}
        self.answer(json.dumps({"content": "x", "timings": timings}), self.script.get("generation", 200))

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for i, chunk in enumerate(self.chunks()):
                if i and "chunk_gate" in self.script:
                    self.wait_while_connected(self.script["chunk_gate"])
                data = chunk.encode("latin-1")
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
                if "sent" in self.script:
                    Path(self.script["sent"]).write_text(str(i + 1))
            if self.script.get("die_after_chunks"):
                die(signal.SIGKILL)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            if "closed" in self.script:
                append(self.script["closed"], "closed")
            self.close_connection = True

    def chunks(self) -> Iterator[str]:
        if "chunk_bytes" not in self.script:
            yield from self.script.get("chunks", ["data: {}\n\n", "data: [DONE]\n\n"])
            return
        chunk = f"data: {'x' * (self.script['chunk_bytes'] - 8)}\n\n"
        yield from itertools.repeat(chunk) if self.script["chunk_count"] < 0 else [chunk] * self.script["chunk_count"]

    def wait_while_connected(self, path: str) -> None:
        self.connection.setblocking(False)
        try:
            while not os.path.exists(path):
                try:
                    if self.connection.recv(1) == b"":
                        raise ConnectionResetError
                except BlockingIOError:
                    time.sleep(POLL_SECONDS)
        finally:
            self.connection.setblocking(True)


def flood(script: dict[str, Any]) -> None:
    line = b"x" * 999 + b"\n"
    for _ in range(script["flood_bytes"] // len(line)):
        sys.stderr.buffer.write(line)
    sys.stderr.buffer.flush()
    Path(script["flooded"]).touch()


def load(script: dict[str, Any]) -> None:
    if "starts" in script:
        append(script["starts"], os.getpid())
    if script.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for i in range(script.get("lines", 0)):
        say(f"line {i}")
    if "line_bytes" in script:
        say("x" * script["line_bytes"])
    if script.get("child"):
        import subprocess

        say(f"child {subprocess.Popen(['sleep', '600']).pid}")
    if "complaint" in script:
        say(script["complaint"])
    if "exit_in_load" in script:
        sys.exit(script["exit_in_load"])
    if "signal_in_load" in script:
        die(script["signal_in_load"])
    while "load_gate" in script and not os.path.exists(script["load_gate"]):
        if script.get("ticks"):
            say("loading")
        time.sleep(POLL_SECONDS)
    if "exit_after_gate" in script:
        sys.exit(script["exit_after_gate"])


def main() -> None:
    if "--version" in sys.argv:
        print(VERSION)
        return
    if "--help" in sys.argv:
        print(HELP)
        return
    script = json.loads(Path(sys.argv[sys.argv.index("--model") + 1]).read_bytes().rpartition(SCRIPT_MARK)[2])
    load(script)
    Handler.script, Handler.began = script, time.monotonic()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if not script.get("ignore_term"):
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    say(f"main: server is listening on http://127.0.0.1:{script.get('says_port', server.server_port)}")
    if "flood_bytes" in script:
        threading.Thread(target=flood, args=(script,), daemon=True).start()
    server.serve_forever(poll_interval=POLL_SECONDS)


if __name__ == "__main__":
    main()
