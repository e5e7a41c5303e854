import { element, make } from "./elements.ts";
import { type Layout, layOut, type Point, queueSpot, sequenceSpot } from "./layout.ts";
import type { Scene, SceneJob, Standing } from "./scene.ts";

/** Until a dot has gone two thirds of its way, in milliseconds: within a line, and from there on. */
const [lineTime, wayTime] = [110, 55];
const frameTime = 1000 / 60;
const rowCount = 4;
/** As many as one user submits; all lines have the same measure. */
const longestLine = 50;

interface Dot extends Point {
  r: number;
}

const stage = element("stage", HTMLElement);
const canvas = element("dots", HTMLCanvasElement);
const still = matchMedia("(prefers-reduced-motion: reduce)");

/**
 * Draws where each job is. A canvas, since two hundred moving elements cost a small machine its sixty frames a second;
 * the same is in words beside it.
 */
export class Picture {
  readonly #context = canvas.getContext("2d");
  readonly #dots = new Map<number, Dot>();
  readonly #workerOf = new Map<number, number>();
  #scene: Scene | undefined;
  #clock: () => number = () => 0;
  #layout: Layout | undefined;
  #colours: string[] = [];
  #ink = "";
  #frame: number | undefined;
  #pause: ReturnType<typeof setTimeout> | undefined;
  /** When the frame before was, unless there was a rest in between. */
  #last: number | undefined;
  /** Told at each frame at which moment the picture is. */
  #onMoment: (at: number) => void = () => {};

  readonly #expected: readonly number[];

  /** `expected` is how many jobs each user will submit. */
  constructor(expected: readonly number[]) {
    this.#expected = expected;
    new ResizeObserver(() => this.#measure()).observe(stage);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"])
      matchMedia(query).addEventListener("change", () => this.#measure());
    still.addEventListener("change", () => this.wake());
    void document.fonts.ready.then(() => this.#measure());
  }

  /** Shows a scene from now on; the clock says at which moment of it. */
  show(scene: Scene, clock: () => number, onMoment: (at: number) => void): void {
    this.#scene = scene;
    this.#clock = clock;
    this.#onMoment = onMoment;
    this.#dots.clear();
    this.#workerOf.clear();
    this.wake();
  }

  /** Draws until everything is where it belongs, and again whenever something is known to happen. */
  wake(): void {
    clearTimeout(this.#pause);
    this.#frame ??= requestAnimationFrame((now) => this.#draw(now));
  }

  /** Nothing moves; a browser that draws all the same would use up a battery. Whoever learns of more wakes it. */
  #rest(scene: Scene, at: number): void {
    this.#last = undefined;
    const next = scene.next(at);
    if (next !== undefined) this.#pause = setTimeout(() => this.wake(), next - at);
  }

  #measure(): void {
    this.#layout = layOut(stage);
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(this.#layout.width * ratio);
    canvas.height = Math.round(this.#layout.height * ratio);
    this.#context?.setTransform(ratio, 0, 0, ratio, 0, 0);
    // Custom properties hold light-dark(); what that is must be asked from an element that has it.
    const probe = make("i");
    stage.append(probe);
    const colour = (name: string): string => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    this.#colours = Array.from({ length: rowCount }, (_, n) => colour(`--user-${n}`));
    this.#ink = colour("--on-user");
    probe.remove();
    // What was elsewhere need not fly there.
    this.#dots.clear();
    this.wake();
  }

  #draw(now: number): void {
    this.#frame = undefined;
    const [context, layout, scene] = [this.#context, this.#layout, this.#scene];
    if (!context || !layout || !scene) return;
    const at = this.#clock();
    const elapsed = this.#last === undefined ? frameTime : Math.min(100, now - this.#last);
    this.#last = now;
    context.clearRect(0, 0, layout.width, layout.height);
    const standings = scene.users.map((_, user) => scene.standing(user, at));
    const workers = layout.workers(scene.workers);
    this.#drawWorkers(context, layout, standings, workers);
    if (scene.jobs.length === 0) this.#drawEmptyLines(context, layout);
    let moving = false;
    for (const [job, spot] of this.#spots(scene, layout, standings, workers, at)) {
      const dot = this.#dots.get(job.id) ?? this.#arrival(layout, spot);
      const part = still.matches ? 1 : 1 - Math.exp(-elapsed / (spot.inLine ? lineTime : wayTime));
      dot.x += (spot.x - dot.x) * part;
      dot.y += (spot.y - dot.y) * part;
      dot.r += (spot.r - dot.r) * part;
      moving ||= Math.abs(spot.x - dot.x) + Math.abs(spot.y - dot.y) > 0.3;
      this.#dots.set(job.id, dot);
      this.#drawDot(context, job, scene, dot);
    }
    this.#onMoment(at);
    if (moving) this.wake();
    else this.#rest(scene, at);
  }

  /** A job comes in from the left, or stands there at once when nothing is to move. */
  #arrival(layout: Layout, spot: Dot): Dot {
    return still.matches ? { ...spot } : { ...spot, x: Math.max(layout.lines[0]?.left ?? 0, spot.x - 40), r: 0 };
  }

  *#spots(
    scene: Scene,
    layout: Layout,
    standings: Standing[],
    workers: Point[],
    at: number,
  ): Iterable<[SceneJob, Dot & { inLine?: boolean }]> {
    const done = scene.done(at);
    for (const [n, job] of done.entries()) {
      this.#workerOf.delete(job.id);
      yield [job, sequenceSpot(layout.done, n, Math.max(48, scene.jobs.length))];
    }
    for (const [user, { waiting, turn, running }] of standings.entries()) {
      const line = layout.lines[user];
      const wall = layout.walls[user];
      if (!line || !wall) continue;
      for (const [n, job] of waiting.entries()) yield [job, { ...queueSpot(line, n, longestLine), inLine: true }];
      for (const job of turn) yield [job, { ...wall, r: 6 }];
      for (const job of running) {
        const worker = workers[this.#worker(job.id, workers.length)];
        if (worker) yield [job, { ...worker, r: 11 }];
      }
    }
  }

  /** The free worker with the lowest number; a job keeps its worker. */
  #worker(id: number, workers: number): number {
    const known = this.#workerOf.get(id);
    if (known !== undefined) return known;
    const taken = new Set(this.#workerOf.values());
    let free = 0;
    while (taken.has(free) && free < workers - 1) free++;
    this.#workerOf.set(id, free);
    return free;
  }

  /** A worker has the colour of whom it works for. */
  #drawWorkers(context: CanvasRenderingContext2D, layout: Layout, standings: Standing[], workers: Point[]): void {
    const busy = new Map<number, number>();
    for (const [user, { running }] of standings.entries())
      for (const job of running) busy.set(this.#worker(job.id, workers.length), user);
    for (const [n, { x, y }] of workers.entries()) {
      const user = busy.get(n);
      context.strokeStyle = (user === undefined ? undefined : this.#colours[user]) ?? layout.edge;
      context.lineWidth = user === undefined ? 1.5 : 3;
      context.beginPath();
      context.roundRect(x - 16, y - 16, 32, 32, 7);
      context.stroke();
    }
  }

  /** Where the lines will form, so that the picture can be read before anything happens. */
  #drawEmptyLines(context: CanvasRenderingContext2D, layout: Layout): void {
    context.lineWidth = 1;
    for (const [user, jobs] of this.#expected.entries()) {
      context.strokeStyle = this.#colours[user] ?? this.#ink;
      const line = layout.lines[user];
      for (let n = 0; line && n < jobs; n++) {
        const { x, y, r } = queueSpot(line, n, longestLine);
        context.beginPath();
        context.arc(x, y, r, 0, 2 * Math.PI);
        context.stroke();
      }
    }
  }

  #drawDot(context: CanvasRenderingContext2D, job: SceneJob, scene: Scene, { x, y, r }: Dot): void {
    const colour = this.#colours[job.user] ?? this.#ink;
    const isYou = job.user === rowCount - 1;
    context.fillStyle = colour;
    context.beginPath();
    context.arc(x, y, Math.max(0, r), 0, 2 * Math.PI);
    context.fill();
    if (isYou && r > 3) {
      context.strokeStyle = colour;
      context.lineWidth = 2;
      context.beginPath();
      context.arc(x, y, r + 2.5, 0, 2 * Math.PI);
      context.stroke();
    }
    if (r < 5.5) return;
    context.fillStyle = this.#ink;
    context.font = `700 ${Math.round(r * 1.25)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(scene.users[job.user]?.letter ?? "", x, y + r * 0.08);
  }
}
