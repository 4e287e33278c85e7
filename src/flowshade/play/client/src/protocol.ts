// Written by `python -m flowshade.play.protocol`; edit protocol.py instead.
export const VERSION = 1;
export const LONGEST_PROMPT = 1000;

export interface Hello {
  type: "hello";
  version: number;
  world?: string | null;
  seed?: number | null;
  prompt?: string | null;
  style?: string | null;
}

export interface Input {
  type: "input";
  id: number;
  forward?: number;
  right?: number;
  up?: number;
  fast?: boolean;
  yaw?: number;
  pitch?: number;
  jump?: boolean;
  throw?: boolean;
}

export interface SetLook {
  type: "set_look";
  prompt: string;
  style: string;
}

export interface SetView {
  type: "set_view";
  view: string;
}

export interface Command {
  type: "command";
  action: "pause" | "resume" | "step" | "reset" | "walk" | "drive" | "fly" | "record" | "stop_recording" | "screenshot";
}

export interface Ack {
  type: "ack";
  frame: number;
}

export interface Welcome {
  type: "welcome";
  version: number;
  session: string;
  model: string;
  world: string;
  seed: number;
  description: string;
  worlds: string[];
  styles: string[];
  views: string[];
  prompt: string;
  style: string;
  height: number;
  width: number;
  fps: number;
  interactive: boolean;
}

export interface Status {
  type: "status";
  mode: string;
  view: string;
  paused: boolean;
  recording: boolean;
  warming: boolean;
  fps: number;
  window: number;
  steps: number;
  stride: number;
  dropped: number;
  work_ms: number;
  bound_ms: number;
  note: string;
}

export interface Recorded {
  type: "recorded";
  video: string;
  clip: string;
  frames: number;
}

export interface Problem {
  type: "problem";
  code: string;
  text: string;
  fatal: boolean;
}

export interface FrameHeader {
  type: "frame";
  kind: "frame" | "screenshot";
  id: number;
  tick: number;
  input: number;
  look: number;
  view: string;
  mime: string;
}

export type ClientMessage = Hello | Input | SetLook | SetView | Command | Ack;

export type ServerMessage = Welcome | Status | Recorded | Problem;
