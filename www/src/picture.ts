import { make } from "./elements.ts";
import { blockSpot, type Dot, type Layout, layOut, type Point, queueSpot, sequenceSpot } from "./layout.ts";
import { betweenJobs, type QueueStatus, type Scene, type SceneJob } from "./scene.ts";

/** The time until a dot has covered two thirds of its way, in milliseconds: within a queue, and after it. */
const [queueTime, wayTime] = [110, 55];
const frameTime = 1000 / 60;
const userCount = 4;
/** The canvas extends this far beyond its stage, as in the style sheet, so that no dot at an edge is clipped. */
const margin = 6;
/** The maximum number of jobs that one user submits; all queues have the same scale. */
const longestQueue = 100;

const still = matchMedia("(prefers-reduced-motion: reduce)");

/**
 * Draws the position of each job. A canvas, because two hundred moving elements are too slow on a small machine. The
 * text next to it contains the same information.
 */
export class Picture {
  readonly #stage: HTMLElement;
  readonly #canvas: HTMLCanvasElement;
  readonly #context: CanvasRenderingContext2D | null;
  readonly #dots = new Map<number, Dot>();
  readonly #workerOf = new Map<number, number>();
  readonly #landed = new Set<number>();
  #scene: Scene | undefined;
  #clock: () => number = () => 0;
  #layout: Layout | undefined;
  #colours: string[] = [];
  #ink = "";
  #frame: number | undefined;
  #pause: ReturnType<typeof setTimeout> | undefined;
  /** The time of the previous frame; undefined after a rest. */
  #last: number | undefined;
  /** Called at each frame with the moment that the picture shows. */
  #onMoment: (at: number) => void = () => {};

  readonly #expected: readonly number[];
  readonly #isShared: () => boolean;

  /** `expected` is the number of jobs that each user will submit. `isShared`: whether other jobs share the workers. */
  constructor(stage: HTMLElement, expected: readonly number[], isShared: () => boolean) {
    this.#stage = stage;
    this.#canvas = stage.querySelector("canvas") ?? stage.appendChild(make("canvas"));
    this.#context = this.#canvas.getContext("2d");
    this.#expected = expected;
    this.#isShared = isShared;
    new ResizeObserver(() => this.#measure()).observe(stage);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"])
      matchMedia(query).addEventListener("change", () => this.#measure());
    still.addEventListener("change", () => this.wake());
    // Unlike `document.fonts.ready`, this does not lay out the page at once.
    document.fonts.addEventListener("loadingdone", () => this.#measure());
  }

  /** Starts showing a scene; the clock returns the moment to show. */
  show(scene: Scene, clock: () => number, onMoment: (at: number) => void): void {
    this.#scene = scene;
    this.#clock = clock;
    this.#onMoment = onMoment;
    this.#dots.clear();
    this.#workerOf.clear();
    this.#landed.clear();
    this.wake();
  }

  /** Whether a job's dot has reached its place among the finished jobs. */
  landed(id: number): boolean {
    return this.#landed.has(id);
  }

  /** Draws until every dot is in its place, and again at the next known change. */
  wake(): void {
    clearTimeout(this.#pause);
    this.#frame ??= requestAnimationFrame((now) => this.#draw(now));
  }

  /** Stops drawing while nothing moves, to save the battery. New data wakes the picture. */
  #rest(scene: Scene, at: number): void {
    this.#last = undefined;
    const next = scene.next(at);
    // Whether others use a worker may change without an event of these jobs.
    const recheck = this.#isShared() && !scene.isOver(at) ? at + betweenJobs : undefined;
    if (next === undefined && recheck === undefined) return;
    this.#pause = setTimeout(() => this.wake(), Math.min(next ?? Infinity, recheck ?? Infinity) - at);
  }

  #measure(): void {
    this.#layout = layOut(this.#stage);
    const ratio = window.devicePixelRatio || 1;
    this.#canvas.width = Math.round((this.#layout.width + 2 * margin) * ratio);
    this.#canvas.height = Math.round((this.#layout.height + 2 * margin) * ratio);
    this.#context?.setTransform(ratio, 0, 0, ratio, margin * ratio, margin * ratio);
    // Custom properties contain light-dark(), which only an element's computed style resolves.
    const probe = make("i");
    this.#stage.append(probe);
    const colour = (name: string): string => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    this.#colours = Array.from({ length: userCount }, (_, n) => colour(`--user-${n}`));
    this.#ink = colour("--on-user");
    probe.remove();
    this.#dots.clear();
    this.wake();
  }

  #draw(now: number): void {
    this.#frame = undefined;
    const [scene, context, layout] = [this.#scene, this.#context, this.#layout];
    if (!scene || !context || !layout) return;
    const at = this.#clock();
    const elapsed = this.#last === undefined ? frameTime : Math.min(100, now - this.#last);
    this.#last = now;
    context.clearRect(-margin, -margin, layout.width + 2 * margin, layout.height + 2 * margin);
    const queues = scene.queues(at);
    const workers = layout.workers(scene.workers);
    this.#drawWorkers(context, scene, layout, queues, workers, this.#isShared() ? scene.othersAt(at) : 0);
    if (scene.jobs.length === 0) this.#drawEmptyQueues(context, layout, scene.shared);
    let moving = false;
    for (const { job, spot, time, isDone } of this.#spots(scene, layout, queues, workers, at)) {
      const dot = this.#dots.get(job.id) ?? this.#arrival(layout, spot);
      const part = still.matches ? 1 : 1 - Math.exp(-elapsed / time);
      dot.x += (spot.x - dot.x) * part;
      dot.y += (spot.y - dot.y) * part;
      dot.r += (spot.r - dot.r) * part;
      const distance = Math.abs(spot.x - dot.x) + Math.abs(spot.y - dot.y);
      moving ||= distance > 0.3;
      if (isDone && distance <= 1) this.#landed.add(job.id);
      this.#dots.set(job.id, dot);
      this.#drawDot(context, job, scene, dot);
    }
    this.#onMoment(at);
    if (moving) this.wake();
    else this.#rest(scene, at);
  }

  /** A job enters from the left, or appears in its place with reduced motion. */
  #arrival(layout: Layout, spot: Dot): Dot {
    return still.matches ? { ...spot } : { ...spot, x: Math.max(layout.queues[0]?.left ?? 0, spot.x - 40), r: 0 };
  }

  *#spots(
    scene: Scene,
    layout: Layout,
    queues: QueueStatus[],
    workers: Point[],
    at: number,
  ): Iterable<{ job: SceneJob; spot: Dot; time: number; isDone?: boolean }> {
    const total = this.#expected.reduce((sum, jobs) => sum + jobs, 0);
    for (const [n, job] of scene.done(at).entries()) {
      this.#workerOf.delete(job.id);
      yield { job, spot: sequenceSpot(layout.done, n, total), time: wayTime, isDone: true };
    }
    for (const [n, { waiting, inSlot, running }] of queues.entries()) {
      const box = layout.queues[n];
      const slot = layout.slots[n];
      if (!box) continue;
      for (const [place, job] of waiting.entries()) {
        // In the block a job keeps its place, because wrapping rows on every step would be hard to follow.
        const spot = scene.shared
          ? blockSpot(box, scene.jobs.indexOf(job), total)
          : queueSpot(box, place, longestQueue);
        yield { job, spot, time: queueTime };
      }
      if (slot) for (const job of inSlot) yield { job, spot: { ...slot, r: 6 }, time: wayTime };
      for (const job of running) {
        const worker = workers[this.#worker(job.id, workers.length)];
        if (worker) yield { job, spot: { ...worker, r: 11 }, time: wayTime };
      }
    }
  }

  /** The free worker with the lowest number; a job keeps its worker. */
  #worker(id: number, workers: number): number {
    const known = this.#workerOf.get(id);
    if (known !== undefined) return known;
    const busy = new Set(this.#workerOf.values());
    let free = 0;
    while (busy.has(free) && free < workers - 1) free++;
    this.#workerOf.set(id, free);
    return free;
  }

  /** A busy worker has the color of the job's user. A lent one is dashed. A job of others is a dot without a letter. */
  #drawWorkers(
    context: CanvasRenderingContext2D,
    scene: Scene,
    layout: Layout,
    queues: QueueStatus[],
    workers: Point[],
    others: number,
  ): void {
    const busy = new Map<number, SceneJob>();
    for (const { running } of queues) for (const job of running) busy.set(this.#worker(job.id, workers.length), job);
    for (const [n, { x, y }] of workers.entries()) {
      const job = busy.get(n);
      context.strokeStyle = (job && this.#colours[job.user]) ?? layout.edge;
      context.lineWidth = job ? 3 : 1.5;
      context.setLineDash(job && scene.isLent(job) ? [5, 4] : []);
      context.beginPath();
      context.roundRect(x - 15, y - 15, 30, 30, 7);
      context.stroke();
    }
    context.setLineDash([]);
    const free = workers.filter((_, n) => !busy.has(n));
    context.fillStyle = layout.edge;
    for (const { x, y } of free.slice(Math.max(0, free.length - others))) {
      context.beginPath();
      context.arc(x, y, 8, 0, 2 * Math.PI);
      context.fill();
    }
  }

  /** Marks where jobs will wait and end, so that the picture makes sense before the flood. */
  #drawEmptyQueues(context: CanvasRenderingContext2D, layout: Layout, shared: boolean): void {
    context.lineWidth = 1;
    const total = this.#expected.reduce((sum, jobs) => sum + jobs, 0);
    let before = 0;
    for (const [user, jobs] of this.#expected.entries()) {
      context.strokeStyle = this.#colours[user] ?? this.#ink;
      const box = layout.queues[shared ? 0 : user];
      for (let n = 0; box && n < jobs; n++) {
        const { x, y, r } = shared ? blockSpot(box, before + n, total) : queueSpot(box, n, longestQueue);
        context.beginPath();
        context.arc(x, y, r, 0, 2 * Math.PI);
        context.stroke();
      }
      before += jobs;
    }
    context.strokeStyle = layout.line;
    for (let n = 0; n < total; n++) {
      const { x, y, r } = sequenceSpot(layout.done, n, total);
      context.beginPath();
      context.arc(x, y, r, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  #drawDot(context: CanvasRenderingContext2D, job: SceneJob, scene: Scene, { x, y, r }: Dot): void {
    const colour = this.#colours[job.user] ?? this.#ink;
    const isYou = job.user === userCount - 1;
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
