/** Where things of the picture are, in pixels of its canvas, as the style sheet has laid out the boxes for them. */

export interface Point {
  x: number;
  y: number;
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
  lines: Box[];
  walls: Point[];
  done: Box;
  /** The colour of the workers' frames. */
  edge: string;
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
    lines: boxes(".line"),
    walls: boxes(".turn").map(({ left, top, width, height }) => ({ x: left + width / 2, y: top + height / 2 })),
    done: boxes(".done-box")[0] ?? nowhere,
    edge: getComputedStyle(stage).getPropertyValue("color"),
    workers: (count) => pile(pool, count),
  };
}

/** As many as there are, in columns from top to bottom, in the middle of the box. */
function pile(box: Box, count: number): Point[] {
  const gap = 40;
  const inColumn = Math.max(1, Math.min(count, Math.floor(box.height / gap)));
  const columns = Math.ceil(count / inColumn);
  return Array.from({ length: count }, (_, n) => ({
    x: box.left + box.width / 2 + (Math.floor(n / inColumn) - (columns - 1) / 2) * gap,
    y: box.top + box.height / 2 + ((n % inColumn) - (inColumn - 1) / 2) * gap,
  }));
}

/** The nth of a line, whose head is at the right. Where that is too narrow, the line zigzags. */
export function queueSpot(box: Box, n: number, longest: number): Point & { r: number } {
  const step = Math.min(13, box.width / longest);
  const zigzag = step < 7;
  const r = zigzag ? Math.min(step * 0.85, box.height / 4) : step * 0.42;
  return {
    x: box.left + box.width - step * (n + 0.5),
    y: box.top + box.height / 2 + (zigzag ? (n % 2 ? r : -r) : 0),
    r,
  };
}

/** The nth of a sequence that is written like text; all of `total` have room. */
export function sequenceSpot(box: Box, n: number, total: number): Point & { r: number } {
  let pitch = 26;
  while (pitch > 6 && Math.floor(box.width / pitch) * Math.floor(box.height / pitch) < total) pitch -= 0.5;
  const inRow = Math.max(1, Math.floor(box.width / pitch));
  return {
    x: box.left + pitch * ((n % inRow) + 0.5),
    y: box.top + pitch * (Math.floor(n / inRow) + 0.5),
    r: pitch * 0.42,
  };
}
