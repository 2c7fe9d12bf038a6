/* DESIGN: the chat page is a client of this server's API like any other: it holds the conversation
 * and sends all of it each time. What a model writes reaches the page as text only (textContent).
 * Addresses are relative, so that a proxy may put the server under any path. */
"use strict";

/* ---- without a page: tests/blackbox/test_web.py runs these under node ---- */

/* A function that takes the bytes of an event stream, cut anywhere, and gives what its events hold
 * (the HTML standard, "server-sent events"). */
function eventReader() {
    const decoder = new TextDecoder();
    let rest = "", data = [];
    return (bytes) => {
        const events = [], lines = (rest + decoder.decode(bytes, {stream: true})).split("\n");
        rest = lines.pop();
        for (let line of lines) {
            line = line.replace(/\r$/, "");
            if (line === "" && data.length > 0)
                events.push(data.splice(0).join("\n"));
            else if (line.startsWith("data:"))
                data.push(line.slice(5).replace(/^ /, ""));
        }
        return events;
    };
}

/* Text and fenced blocks of code, in order: {code, language, text}. The last block may still be
 * open. */
function splitFences(text) {
    const parts = [];
    let fence = "", language = "", lines = [];
    const end = () => {
        const part = {code: fence !== "", language, text: lines.join("\n")};
        if (part.code || part.text.trim() !== "")
            parts.push(part);
        lines = [];
    };
    for (const line of text.split("\n")) {
        const mark = /^ {0,3}(`{3,})([^`]*)$/.exec(line);
        const ends = mark && mark[1].length >= fence.length && mark[2].trim() === "";
        if (mark && (!fence || ends)) {
            end();
            language = fence ? "" : mark[2].trim();
            fence = fence ? "" : mark[1];
        } else {
            lines.push(line);
        }
    }
    end();
    return parts;
}

/* What an answer was, in a line. Times are milliseconds; those of no token are 0. */
function figures({begin, first, last, usage, reason}) {
    const tokens = usage ? usage.completion_tokens : 0;
    return [
        tokens > 0 && `${tokens} token${tokens === 1 ? "" : "s"}`,
        tokens > 1 && last > first &&
            `${((tokens - 1) * 1000 / (last - first)).toFixed(1)} tokens/s`,
        first > 0 && `first token after ${((first - begin) / 1000).toFixed(2)} s`,
        reason === "length" && "cut at the limit of tokens",
        reason === "stopped" && "stopped",
    ].filter(Boolean).join(", ");
}

/* ---- talking to the server ---- */

const LOST = "The connection to the server was lost before the answer was complete.";

const FULL = " A new conversation has room again.";

const failure = (message, status = 0, param = null) =>
    Object.assign(new Error(message), {status, param});

/* For what the browser rejects with: an AbortError stays one, anything else means the message. */
const failing = (message) => (thrown) => {
    throw thrown.name === "AbortError" ? thrown : failure(message);
};

let kept = {}; /* the key, for this tab */
try {
    kept = sessionStorage;
} catch { /* the browser keeps nothing: for this page */ }

async function call(path, body, signal) {
    const response = await fetch(path, {
        method: body ? "POST" : "GET",
        headers: {...(kept.tesseraKey && {Authorization: `Bearer ${kept.tesseraKey}`}),
                  ...(body && {"Content-Type": "application/json"})},
        body: body && JSON.stringify(body),
        signal,
    }).catch(failing("The server cannot be reached."));
    if (response.ok)
        return response;
    const answer = await response.json().catch(() => null); /* a proxy's page is no JSON */
    const error = (answer && answer.error) || {};
    throw failure(`${error.message || `HTTP ${response.status} ${response.statusText}`}`,
                  response.status, error.param);
}

function takeChunk(chunk, end, take) {
    if (chunk.error)
        throw failure(`${chunk.error.message || LOST}`);
    end.usage = chunk.usage || end.usage;
    for (const choice of chunk.choices || []) {
        const {content, reasoning} = choice.delta || {content: choice.text};
        end.reason = choice.finish_reason || end.reason;
        if (content || reasoning) {
            end.last = performance.now();
            end.first = end.first || end.last;
            take(content || "", reasoning || "");
        }
    }
}

/* Streams an answer: take(content, reasoning) for each piece. What is known of it goes into end,
 * so that it is there when the answer is stopped. */
async function stream(path, body, signal, end, take) {
    end.begin = performance.now();
    const asked = {...body, stream: true, stream_options: {include_usage: true}};
    const reader = (await call(path, asked, signal)).body.getReader();
    const read = eventReader();
    try {
        for (;;) {
            const {value, done} = await reader.read().catch(failing(LOST));
            if (done)
                throw failure(LOST);
            for (const data of read(value)) {
                if (data === "[DONE]")
                    return;
                takeChunk(JSON.parse(data) || {}, end, take);
            }
        }
    } finally {
        reader.cancel().catch(() => {}); /* a server that still writes need not */
    }
}

/* ---- what is shown ---- */

const byId = (id) => document.getElementById(id);

const setStatus = (text) => { byId("status").textContent = text; };

function make(tag, properties = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
}

/* A part of a text; set() shows another state of it. */
function makePart(code) {
    if (!code) {
        const box = make("div", {className: "text"});
        return Object.assign(box, {set: (part) => { box.textContent = part.text.trim(); }});
    }
    const inner = make("code"), language = make("span");
    const button = make("button", {type: "button", textContent: "Copy"});
    button.onclick = () => { /* not by navigator.clipboard, which wants TLS */
        getSelection().selectAllChildren(inner);
        button.textContent = document.execCommand("copy") ? "Copied" : "Not copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
    const box = make("div", {className: "code"}, make("div", {}, language, button),
                     make("pre", {tabIndex: 0}, inner));
    return Object.assign(box, {set: (part) => {
        language.textContent = part.language;
        inner.textContent = part.text;
    }});
}

/* Shows text in the box. Only what has changed is touched, so that a selection before it stays. */
function show(box, text) {
    splitFences(text).forEach((part, i, {length}) => {
        while (box.children.length > length || (box.children[i] || part).code !== part.code)
            box.lastChild.remove();
        const element = box.children[i] || box.appendChild(makePart(part.code));
        if (element.text !== part.text || element.language !== part.language)
            element.set(part);
        Object.assign(element, part);
    });
}

/* Makes the conversation longer; who reads its end sees the new one. */
function grow(work) {
    const talk = byId("talk");
    const follows = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;
    work();
    if (follows)
        talk.scrollTop = talk.scrollHeight;
}

class Turn {
    constructor(role, name) {
        this.content = this.reasoning = "";
        this.box = make("div");
        this.article = make("article", {className: role}, make("h2", {textContent: name}),
                            this.box);
        grow(() => byId("talk").append(this.article));
    }

    /* Drawn once a frame, however many pieces come. */
    add(content, reasoning) {
        this.content += content;
        this.reasoning += reasoning;
        this.due = this.due || requestAnimationFrame(() => this.draw());
    }

    draw() {
        this.due = 0;
        grow(() => {
            if (this.reasoning && !this.thought) {
                this.thought = make("div", {className: "text"});
                this.box.before(make("details", {className: "thought"},
                                     make("summary", {textContent: "Reasoning"}), this.thought));
            }
            if (this.thought)
                this.thought.textContent = this.reasoning.trim();
            show(this.box, this.content);
        });
    }
}

/* ---- the conversation ---- */

let turns = [];     /* messages, as the API has them */
let running = null; /* stops the answer that comes */
let model = "";
let plain = false;  /* no chat template: a text is continued */

function setRunning(controller) {
    running = controller;
    byId("talk").setAttribute("aria-busy", Boolean(running)); /* read aloud when it is whole */
    byId("message").readOnly = plain && running;
    byId("send").hidden = running;
    byId("stop").hidden = !running;
}

/* What concerns more than one answer: true when what was thrown was of that kind. */
function handle(thrown) {
    if (thrown.status === 401) {
        setStatus(thrown.message);
        byId("key-form").hidden = false;
        byId("key").focus();
    } else if (thrown.param === "messages" && thrown.message.includes("--chat-template")) {
        plain = true;
        document.body.className = "plain";
        byId("send").textContent = "Continue";
        byId("message").placeholder = "A text, which the model continues";
        setStatus("This model has no chat template: it only continues texts.");
    } else {
        return false;
    }
    return true;
}

/* An answer as a stream that can be stopped. Gives what is known of it, with the failure that
 * concerns it alone; null: a new conversation has begun meanwhile. */
async function answer(path, body, take) {
    const controller = new AbortController();
    const end = {begin: 0, first: 0, last: 0, usage: null, reason: null, failure: ""};
    const temperature = byId("temperature").value, maxTokens = byId("max-tokens").value;
    const fields = {...(model && {model}), ...(temperature && {temperature: Number(temperature)}),
                    ...(maxTokens && {max_tokens: Number(maxTokens)})};
    setRunning(controller);
    setStatus("Answering");
    const thrown = await stream(path, {...fields, ...body}, controller.signal, end, take)
        .catch((reason) => reason);
    if (running !== controller)
        return null;
    setRunning(null);
    setStatus("");
    if (thrown && thrown.name === "AbortError")
        end.reason = "stopped";
    else if (thrown && !handle(thrown))
        end.failure = thrown.message +
            (!plain && /maximum context length/.test(thrown.message) ? FULL : "");
    return end;
}

async function chat(text) {
    new Turn("user", "You").add(text, "");
    turns.push({role: "user", content: text});
    const turn = new Turn("assistant", model || "Answer");
    const system = byId("system").value.trim();
    const messages = [...(system ? [{role: "system", content: system}] : []), ...turns];
    const end = await answer("v1/chat/completions", {messages},
                             (content, reasoning) => turn.add(content, reasoning));
    if (!end)
        return;
    turn.draw();
    if (turn.content) {
        turns.push({role: "assistant", content: turn.content});
    } else { /* as if it had not been asked */
        turns.pop();
        byId("message").value = byId("message").value || text;
    }
    grow(() => turn.article.append(make("p", {className: "figures", textContent: figures(end)}),
                                   make("p", {className: "error", textContent: end.failure})));
}

async function continueText(area) {
    const few = !byId("max-tokens").value && {max_tokens: 200}; /* the server's default is 16 */
    const end = await answer("v1/completions", {prompt: area.value, ...few}, (content) => {
        area.value += content;
        area.scrollTop = area.scrollHeight;
    });
    if (end && byId("key-form").hidden)
        setStatus(end.failure || figures(end));
}

function send() {
    const area = byId("message"), text = area.value;
    if (running || text.trim() === "")
        return;
    area.focus(); /* from the button, which is going to hide */
    if (plain) {
        continueText(area);
    } else {
        area.value = "";
        chat(text);
    }
}

/* A new conversation. */
function forget() {
    if (running)
        running.abort();
    setRunning(null);
    setStatus("");
    turns = [];
    byId("talk").replaceChildren();
    if (plain)
        byId("message").value = "";
    byId("message").focus();
}

/* Asks what is served, and whether it can chat: a conversation that is only turned into tokens
 * tells, without use of the model. */
async function greet() {
    try {
        model = (await (await call("v1/models")).json()).data[0].id;
        byId("model").textContent = model;
        document.title = `${model} - Tessera`;
        await call("tokenize", {messages: [{role: "user", content: "?"}]});
    } catch (thrown) {
        if (!handle(thrown))
            setStatus(thrown.message);
    }
}

function start() {
    const coarse = matchMedia("(pointer: coarse)").matches; /* its keyboard has no Shift+Enter */
    byId("composer").onsubmit = (event) => {
        event.preventDefault();
        send();
    };
    byId("key-form").onsubmit = (event) => {
        event.preventDefault();
        const key = byId("key").value.trim();
        if (/[^\x21-\x7e]/.test(key)) { /* no header can carry it */
            setStatus("A key has letters, digits and signs of ASCII only.");
            return;
        }
        kept.tesseraKey = key;
        event.target.reset();
        event.target.hidden = true;
        setStatus("");
        byId("message").focus();
        greet();
    };
    byId("message").onkeydown = (event) => {
        const sends = plain ? event.ctrlKey : !event.shiftKey && !coarse;
        if (event.key === "Enter" && sends && !event.isComposing) {
            event.preventDefault();
            byId("composer").requestSubmit();
        }
    };
    document.onkeydown = (event) => {
        if (event.key === "Escape" && running)
            running.abort();
    };
    byId("stop").onclick = () => {
        running.abort();
        byId("message").focus();
    };
    byId("new").onclick = forget;
    greet();
}

if (typeof document === "undefined")
    module.exports = {eventReader, splitFences, figures};
else
    start();
