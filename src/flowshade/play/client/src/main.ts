// The page: pictures on a canvas, keys and pointer to inputs, and a few measurements.
import { VERSION, LONGEST_PROMPT } from "./protocol";
import type { ClientMessage, Command, FrameHeader, ServerMessage, Status, Welcome } from "./protocol";

const find = <T extends HTMLElement>(id: string): T => document.getElementById(id) as T;
const canvas = find<HTMLCanvasElement>("picture");
const message = find("message");
const prompt = find<HTMLInputElement>("prompt");
const view = find<HTMLSelectElement>("view");
const query = new URLSearchParams(location.search);
const painter = canvas.getContext("2d", { alpha: false })!;
prompt.maxLength = LONGEST_PROMPT;

let socket: WebSocket | undefined;
let welcome: Welcome | undefined;
let status: Status | undefined;
let style = query.get("style") ?? undefined;
let wanted: string | undefined = query.get("prompt") ?? undefined;
let retry = 500;
let stopped = false;
let shownFrame = 0;
let skipped = 0;
const shownAt: number[] = [];

// Sending ------------------------------------------------------------------------------------------------------------

const held = new Set<string>();
const moves: Record<string, string> = {
  KeyW: "forward", ArrowUp: "forward", KeyS: "back", ArrowDown: "back", KeyA: "left", ArrowLeft: "left", KeyD: "right",
  ArrowRight: "right", ShiftLeft: "fast", ShiftRight: "fast", Space: "up", KeyC: "down",
};
let inputId = 0;
let yaw = 0;
let pitch = 0;
let jump = false;
let threw = false;
let dirty = false;
let dirtySince: number | undefined;
const mostUnanswered = 32; // further inputs are merged until a picture answers: nothing waits in a queue
const sentAt = new Map<number, number>();
const latencies: number[] = [];

function send(item: ClientMessage): void {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(item));
}

const command = (action: Command["action"]): void => send({ type: "command", action });
const axis = (plus: string, minus: string): number => Number(held.has(plus)) - Number(held.has(minus));

function flushInput(): void {
  if (dirty) dirtySince ??= performance.now();
  if (!dirty || !welcome || sentAt.size >= mostUnanswered) return;
  dirty = false;
  inputId += 1;
  sentAt.set(inputId, dirtySince ?? performance.now());
  dirtySince = undefined;
  send({
    type: "input", id: inputId, forward: axis("forward", "back"), right: axis("right", "left"), up: axis("up", "down"),
    fast: held.has("fast"), yaw, pitch, jump, throw: threw,
  });
  yaw = pitch = 0;
  jump = threw = false;
}
setInterval(flushInput, 16);

function hold(move: string, down: boolean): void {
  if (down === held.has(move)) return;
  if (down) held.add(move);
  else held.delete(move);
  if (down && move === "up") jump = true;
  dirty = true;
}

function releaseAll(): void {
  held.clear();
  dirty = true;
}

function throwBall(): void {
  threw = dirty = true;
}

function paint(): void {
  style ??= welcome?.style ?? "original";
  wanted = prompt.value;
  send({ type: "set_look", prompt: wanted, style });
  share();
}

function setView(name: string): void {
  view.value = name;
  send({ type: "set_view", view: name });
}

/** The address holds the world, so that it can be sent to somebody. */
function share(): void {
  if (!welcome) return;
  if (welcome.worlds.includes(welcome.world)) {
    query.set("world", welcome.world);
    query.set("seed", String(welcome.seed));
  }
  query.set("prompt", prompt.value);
  query.set("style", style ?? welcome.style);
  history.replaceState(null, "", `?${query}`);
}

// Receiving ------------------------------------------------------------------------------------------------------------

function connect(): void {
  const token = query.get("token");
  const address = new URL("ws", location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  address.search = token ? `?token=${encodeURIComponent(token)}` : "";
  socket = new WebSocket(address);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    const seed = query.get("seed");
    send({
      type: "hello", version: VERSION, world: query.get("world"), seed: seed === null ? null : Number(seed),
      prompt: wanted ?? null, style: style ?? null,
    });
  };
  socket.onmessage = ({ data }) => (typeof data === "string" ? receive(JSON.parse(data)) : void show(data));
  socket.onclose = () => {
    welcome = undefined;
    held.clear();
    sentAt.clear();
    dirtySince = undefined;
    if (stopped) return;
    message.textContent = "Connection lost; trying again";
    setTimeout(connect, retry);
    retry = Math.min(retry * 1.6, 8000);
  };
}

function receive(item: ServerMessage): void {
  if (item.type === "welcome") begin(item);
  else if (item.type === "status") {
    status = item;
    showStatus(item);
  } else if (item.type === "recorded") offer(item.video);
  else {
    message.textContent = item.text;
    stopped = item.fatal && item.code !== "full";
    if (!item.fatal) setTimeout(() => (message.textContent = ""), 5000);
  }
}

function begin(item: Welcome): void {
  welcome = item;
  retry = 500;
  shownFrame = inputId = 0;
  canvas.width = item.width;
  canvas.height = item.height;
  document.title = `Flowshade: ${item.world} ${item.seed}`;
  style = item.style;
  if (document.activeElement !== prompt) prompt.value = item.prompt;
  const before = view.value;
  view.replaceChildren(...item.views.map((name) => new Option(name, name)));
  buttons("styles", item.styles.map((name) => [name.replaceAll("_", " "), name, () => choose(name)]));
  markPressed("styles", style);
  if (before && before !== item.views[0]) setView(before);
  message.textContent = "Opening the world";
}

function choose(name: string): void {
  style = name;
  markPressed("styles", name);
  paint();
}

async function show(data: ArrayBuffer): Promise<void> {
  const length = new DataView(data).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length))) as FrameHeader;
  const blob = new Blob([new Uint8Array(data, 4 + length)], { type: header.mime });
  if (header.kind === "screenshot") return save(blob, `flowshade-${header.tick}.png`);
  const picture = await createImageBitmap(blob);
  if (header.id > shownFrame) {
    shownFrame = header.id;
    painter.drawImage(picture, 0, 0, canvas.width, canvas.height);
    message.textContent = "";
    measure(header);
  } else skipped += 1;
  picture.close();
  send({ type: "ack", frame: header.id });
}

function measure(header: FrameHeader): void {
  const now = performance.now();
  shownAt.push(now);
  while (shownAt[0]! < now - 2000) shownAt.shift();
  for (const [id, at] of sentAt) {
    if (id > header.input) break;
    latencies.push(now - at);
    sentAt.delete(id);
  }
  latencies.splice(0, latencies.length - 60);
  canvas.dataset.frame = String(header.id);
  canvas.dataset.input = String(header.input);
  canvas.dataset.look = String(header.look);
  canvas.dataset.view = header.view;
}

function save(blob: Blob, name: string): void {
  offer(URL.createObjectURL(blob), name);
}

function offer(address: string, name = ""): void {
  const link = document.createElement("a");
  const token = query.get("token");
  link.href = token && !name ? `${address}?token=${encodeURIComponent(token)}` : address;
  link.download = name;
  link.click();
}

// What is around the picture -------------------------------------------------------------------------------------------

function buttons(id: string, items: [label: string, name: string, press: () => void][]): void {
  find(id).replaceChildren(
    ...items.map(([label, name, press]) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.dataset.name = name;
      button.onclick = press;
      return button;
    }),
  );
}

function markPressed(id: string, ...names: string[]): void {
  for (const button of find(id).querySelectorAll("button")) {
    const pressed = names.includes(button.dataset.name!);
    if (pressed && button.ariaPressed !== "true") button.scrollIntoView({ block: "nearest", inline: "center" });
    button.setAttribute("aria-pressed", String(pressed));
  }
}

function showStatus(item: Status): void {
  view.value = item.view;
  markPressed("modes", item.mode);
  markPressed("actions", item.paused ? "pause" : "", item.recording ? "record" : "");
  find("note").textContent = item.warming
    ? `${item.note || "the model is warming up"}; these are its buffers`
    : item.note;
}

const toggle: Record<string, () => void> = {
  pause: () => command(status?.paused ? "resume" : "pause"),
  record: () => command(status?.recording ? "stop_recording" : "record"),
};
const nextView = (): void => setView(welcome!.views[(welcome!.views.indexOf(view.value) + 1) % welcome!.views.length]!);
const keys: Record<string, () => void> = {
  KeyT: throwBall, KeyP: toggle.pause!, KeyN: () => command("step"), KeyR: () => command("reset"), KeyG: nextView,
  KeyX: () => setView(view.value === "split" ? "generated" : "split"), Digit1: () => command("walk"),
  Digit2: () => command("drive"), Digit3: () => command("fly"), Slash: () => prompt.focus(),
  KeyH: () => document.body.classList.toggle("bare"),
};

function typing(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, select")) return true;
  return target.matches("button, summary") && ["Space", "Enter"].includes(event.code);
}

addEventListener("keydown", (event) => {
  if (typing(event) || !welcome) return;
  const move = moves[event.code];
  if (move) hold(move, true);
  else if (keys[event.code] && !event.repeat) keys[event.code]!();
  else return;
  event.preventDefault();
});
addEventListener("keyup", (event) => {
  const move = moves[event.code];
  if (move) hold(move, false);
});
addEventListener("blur", releaseAll);
document.addEventListener("visibilitychange", releaseAll);

const turn = (x: number, y: number, scale: number): void => {
  yaw -= x * scale;
  pitch -= y * scale;
  dirty = true;
};
canvas.addEventListener("pointerdown", (event) => {
  canvas.focus();
  if (event.pointerType !== "mouse") canvas.setPointerCapture(event.pointerId);
  else if (document.pointerLockElement === canvas) throwBall();
  else void Promise.resolve(canvas.requestPointerLock()).catch(() => undefined); // refused: keys still work
});
canvas.addEventListener("pointermove", (event) => {
  if (document.pointerLockElement === canvas) turn(event.movementX, event.movementY, 0.0025);
  else if (event.pointerType !== "mouse" && event.buttons) turn(event.movementX, event.movementY, 0.006);
});

find<HTMLFormElement>("look").onsubmit = (event) => {
  event.preventDefault();
  paint();
  canvas.focus();
};
view.onchange = () => setView(view.value);
buttons("modes", (["walk", "drive", "fly"] as const).map((name) => [name, name, () => command(name)]));
buttons("actions", [
  ["throw", "throw", throwBall], ["reset", "reset", () => command("reset")], ["pause", "pause", toggle.pause!],
  ["step", "step", () => command("step")], ["record", "record", toggle.record!],
  ["screenshot", "screenshot", () => command("screenshot")],
  ["share", "share", () => { share(); void navigator.clipboard?.writeText(location.href); }],
]);
buttons("pad", ["left", "forward", "back", "right", "up"].map((name) => [name === "up" ? "jump" : name, name, () => undefined]));
for (const button of find("pad").querySelectorAll("button")) {
  button.onpointerdown = () => hold(button.dataset.name!, true);
  button.onpointerup = button.onpointercancel = button.onpointerleave = () => hold(button.dataset.name!, false);
}

function showHud(): void {
  if (!status || !welcome) return;
  const sorted = [...latencies].sort((a, b) => a - b);
  const at = (share: number): string => (sorted.length ? `${Math.round(sorted[Math.floor(share * (sorted.length - 1))]!)} ms` : "-");
  while (shownAt.length && shownAt[0]! < performance.now() - 2000) shownAt.shift();
  const rows: [string, string][] = [
    ["FPS", (shownAt.length / 2).toFixed(1)], ["input to picture", at(0.5)], ["p95", at(0.95)],
    ["server, at most", `${Math.round(status.bound_ms)} ms`],
    ["window", `${status.window} frames`], ["steps", String(status.steps)], ["model", welcome.model],
    ["dropped", String(status.dropped + skipped)],
  ];
  find("hud").replaceChildren(
    ...rows.flatMap(([name, value]) => {
      const [term, data] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      data.textContent = value;
      return [term, data];
    }),
  );
}
setInterval(showHud, 500);
connect();
