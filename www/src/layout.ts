/** The positions of a picture's parts, in pixels of its canvas, as the style sheet lays out their boxes. */

export interface Point {
  x: number;
  y: number;
}

/** A dot's position and radius. */
export interface Dot extends Point {
  r: number;
}

interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface Layout {
  width: number;
  height: number;
  queues: Box[];
  slots: Point[];
  done: Box;
  /** The colour of the workers' frames. */
  edge: string;
  /** The color of empty places. */
  line: string;
  workers(count: number): Point[];
}

export function layOut(stage: HTMLElement): Layout {
  const origin = stage.getBoundingClientRect();
  const boxes = (selector: string): Box[] =>
    [...stage.querySelectorAll(selector)].map((found) => {
      const { left, top, width, height } = found.getBoundingClientRect();
      return { left: left - origin.left, top: top - origin.top, width, height };
    });
  const nowhere = { left: 0, top: 0, width: 0, height: 0 };
  const pool = boxes(".pool-box")[0] ?? nowhere;
  return {
    width: origin.width,
    height: origin.height,
    queues: boxes(".queue"),
    slots: boxes(".slot").map(({ left, top, width, height }) => ({ x: left + width / 2, y: top + height / 2 })),
    done: boxes(".done-box")[0] ?? nowhere,
    edge: getComputedStyle(stage).getPropertyValue("color"),
    line: getComputedStyle(stage.querySelector(".user") ?? stage).getPropertyValue("border-top-color"),
    workers: (count) => pile(pool, count),
  };
}

/** The workers, in columns from top to bottom, in the middle of the box. */
function pile(box: Box, count: number): Point[] {
  const widest = 36;
  const columns = Math.min(Math.ceil((count * widest) / box.height) || 1, Math.floor(box.width / widest) || 1);
  const inColumn = Math.ceil(count / columns);
  const gap = Math.min(widest, box.height / inColumn);
  return Array.from({ length: count }, (_, n) => ({
    x: box.left + box.width / 2 + (Math.floor(n / inColumn) - (columns - 1) / 2) * gap,
    y: box.top + box.height / 2 + ((n % inColumn) - (inColumn - 1) / 2) * gap,
  }));
}

/** The position of the nth job of a queue, with the head at the right. If the box is too narrow, the queue zigzags. */
export function queueSpot(box: Box, n: number, longest: number): Dot {
  const step = Math.min(13, box.width / (longest + 1));
  const zigzag = step < 7;
  const r = zigzag ? Math.min(step * 0.85, box.height / 4) : step * 0.42;
  return {
    x: box.left + box.width - step * (n + 1),
    y: box.top + box.height / 2 + (zigzag ? (n % 2 ? r : -r) : 0),
    r,
  };
}

/** The position of the nth job of a queue that fills its box in columns; the head is at the top right. */
export function blockSpot(box: Box, n: number, total: number): Dot {
  const pitch = pitchFor(box, total);
  const inColumn = Math.max(1, Math.floor(box.height / pitch));
  return {
    x: box.left + box.width - pitch * (Math.floor(n / inColumn) + 0.5),
    y: box.top + box.height / 2 + pitch * ((n % inColumn) - (inColumn - 1) / 2),
    r: pitch * 0.42,
  };
}

/** The position of the nth element of a sequence in reading order. */
export function sequenceSpot(box: Box, n: number, total: number): Dot {
  const pitch = pitchFor(box, total);
  const inRow = Math.max(1, Math.floor(box.width / pitch));
  return {
    x: box.left + pitch * ((n % inRow) + 0.5),
    y: box.top + pitch * (Math.floor(n / inRow) + 0.5),
    r: pitch * 0.42,
  };
}

/** The widest pitch at which all dots fit. */
function pitchFor(box: Box, total: number): number {
  let pitch = 26;
  while (pitch > 6 && Math.floor(box.width / pitch) * Math.floor(box.height / pitch) < total) pitch -= 0.5;
  return pitch;
}
