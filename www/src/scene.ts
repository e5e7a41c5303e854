/** What the picture shows: whose jobs there are, and where each of them is at a moment. No drawing, no network. */

export interface SceneJob {
  id: number;
  /** Its place in `Scene.users`. */
  user: number;
  /** By the server's clock, in milliseconds. */
  created: number;
  started: number | undefined;
  finished: number | undefined;
}

export interface SceneUser {
  /** Drawn on each of the jobs, since a colour alone is no sign. */
  letter: string;
  /** How many of the user's jobs may have their turn at once. */
  turns: number;
}

export type Place = "line" | "turn" | "worker" | "done";

/** A user at a moment. */
export interface Standing {
  /** From the head of the line. */
  waiting: SceneJob[];
  /** Those whose turn it is, but for whom no worker is free yet. */
  turn: SceneJob[];
  running: SceneJob[];
  done: number;
}

/** What a job's way says about fairness, by measured times. */
export interface Verdict {
  seconds: number;
  /** Unfinished jobs that were submitted before it. */
  ahead: number;
  /** How long it would have taken behind all of them. */
  sharedSeconds: number;
}

export class Scene {
  readonly users: SceneUser[];
  readonly workers: number;
  readonly #jobs = new Map<number, SceneJob>();
  #inOrder: SceneJob[] = [];

  constructor(users: SceneUser[], workers: number) {
    this.users = users;
    this.workers = workers;
  }

  /** Returns whether anything is new. */
  take(jobs: SceneJob[]): boolean {
    let isNew = false;
    for (const job of jobs) {
      const before = this.#jobs.get(job.id);
      // An answer that comes late must not bring a job back from its end.
      if (before?.finished !== undefined) continue;
      isNew ||= before === undefined || before.started !== job.started || before.finished !== job.finished;
      this.#jobs.set(job.id, job);
    }
    this.#inOrder = [...this.#jobs.values()].sort((a, b) => a.id - b.id);
    return isNew;
  }

  get jobs(): readonly SceneJob[] {
    return this.#inOrder;
  }

  job(id: number): SceneJob | undefined {
    return this.#jobs.get(id);
  }

  /**
   * Where a user's jobs are at a moment. The server gives a turn to the oldest job in the line in the transaction that
   * ends the job before it, so the times of the jobs say who has a turn.
   */
  standing(user: number, at: number): Standing {
    const standing: Standing = { waiting: [], turn: [], running: [], done: 0 };
    for (const job of this.#inOrder) {
      if (job.user !== user || job.created > at) continue;
      if (job.finished !== undefined && job.finished <= at) standing.done++;
      else if (job.started !== undefined && job.started <= at) standing.running.push(job);
      else standing.waiting.push(job);
    }
    const turns = this.users[user]?.turns ?? 1;
    standing.turn = standing.waiting.splice(0, Math.max(0, turns - standing.running.length));
    return standing;
  }

  /** The jobs that are done at a moment, in the order in which they were done. */
  done(at: number): SceneJob[] {
    return this.#inOrder
      .filter((job) => job.finished !== undefined && job.finished <= at)
      .sort((a, b) => (a.finished ?? 0) - (b.finished ?? 0) || a.id - b.id);
  }

  /** When the next thing that is known happens after a moment. */
  next(at: number): number | undefined {
    const times = this.#inOrder.flatMap(({ created, started, finished }) => [created, started, finished]);
    const later = times.filter((time) => time !== undefined && time > at) as number[];
    return later.length > 0 ? Math.min(...later) : undefined;
  }

  unfinished(user: number): boolean {
    return this.#inOrder.some((job) => job.user === user && job.finished === undefined);
  }

  /** The newest time that any job tells. */
  get newest(): number {
    return Math.max(0, ...this.#inOrder.map((job) => job.finished ?? job.started ?? job.created));
  }

  verdict(id: number): Verdict | undefined {
    const mine = this.#jobs.get(id);
    if (mine?.finished === undefined) return undefined;
    const { created } = mine;
    const ahead = this.#inOrder.filter((job) => job.id < id && (job.finished ?? Infinity) > created).length;
    const worked = this.#inOrder.flatMap((job) =>
      job.finished !== undefined && job.started !== undefined ? [job.finished - job.started] : [],
    );
    const mean = worked.reduce((sum, time) => sum + time, 0) / Math.max(1, worked.length);
    return {
      seconds: (mine.finished - created) / 1000,
      ahead,
      // All workers take from one queue, first come, first served; then it is this job's turn.
      sharedSeconds: (Math.floor(ahead / this.workers) * mean + mean) / 1000,
    };
  }
}
