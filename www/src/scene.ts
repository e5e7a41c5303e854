/** The picture's contents: the jobs, and their positions at a moment. No drawing, no network. */

export interface SceneJob {
  id: number;
  /** The index of its user in `Scene.users`. */
  user: number;
  /** By the server's clock, in milliseconds. */
  created: number;
  started: number | undefined;
  finished: number | undefined;
}

/** A worker between two jobs is free for less than this many milliseconds. */
export const betweenJobs = 100;

export interface SceneUser {
  /** Drawn on each of the user's jobs, because color alone is not enough. */
  letter: string;
  /** The number of the user's jobs that may run at once, however busy the workers are. */
  slots: number;
}

/** A queue at a moment. */
export interface QueueStatus {
  /** Starting at the head of the queue. */
  waiting: SceneJob[];
  /** Jobs with a slot but no free worker yet. */
  inSlot: SceneJob[];
  /** Jobs at a worker. */
  running: SceneJob[];
  done: number;
}

/** The result of one job, by the times that the picture shows. */
export interface Outcome {
  seconds: number;
  /** Its position in the order of completion, from 1. */
  place: number;
}

export class Scene {
  readonly users: SceneUser[];
  readonly workers: number;
  /** Whether all users share one queue without slots. */
  readonly shared: boolean;
  readonly #jobs = new Map<number, SceneJob>();
  #inOrder: SceneJob[] = [];

  constructor(users: SceneUser[], workers: number, shared = false) {
    this.users = users;
    this.workers = workers;
    this.shared = shared;
  }

  /** Returns whether anything has changed. */
  take(jobs: SceneJob[]): boolean {
    let isNew = false;
    for (const job of jobs) {
      const before = this.#jobs.get(job.id);
      // A late response must not reopen a finished job.
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

  /** Each queue's status: one queue per user, or a single one when it is shared. */
  queues(at: number): QueueStatus[] {
    const atWorkers = this.#atWorkers(at);
    return this.shared ? [this.#status(at, atWorkers)] : this.users.map((_, user) => this.#status(at, atWorkers, user));
  }

  /**
   * The jobs at a worker. The server counts a job as running from its claim until its result is committed, but the
   * worker takes the next job before that. So more jobs may be running than there are workers.
   */
  #atWorkers(at: number): Set<SceneJob> {
    const running = this.#inOrder.filter(
      ({ started, finished }) => started !== undefined && started <= at && (finished === undefined || finished > at),
    );
    running.sort((a, b) => (a.started ?? 0) - (b.started ?? 0) || a.id - b.id);
    return new Set(running.slice(0, this.workers));
  }

  /**
   * The transaction that ends a job gives its slot to the oldest job in the queue. So the times of the jobs determine
   * which of them have a slot.
   */
  #status(at: number, atWorkers: Set<SceneJob>, user?: number): QueueStatus {
    const status: QueueStatus = { waiting: [], inSlot: [], running: [], done: 0 };
    for (const job of this.#inOrder) {
      if ((user !== undefined && job.user !== user) || job.created > at) continue;
      if (job.finished !== undefined && job.finished <= at) status.done++;
      else if (atWorkers.has(job)) status.running.push(job);
      else status.waiting.push(job);
    }
    if (user === undefined) return status;
    const slots = this.users[user]?.slots ?? 1;
    status.inSlot = status.waiting.splice(0, Math.max(0, slots - status.running.length));
    return status;
  }

  /**
   * Whether a job runs on a lent worker: it started while its user's other running jobs used all of the slots. The
   * server may count slightly differently around the end of a job.
   */
  isLent({ id, user, started }: SceneJob): boolean {
    if (this.shared || started === undefined) return false;
    const before = this.#inOrder.filter(
      (other) =>
        other.user === user &&
        other.started !== undefined &&
        (other.started < started || (other.started === started && other.id < id)) &&
        (other.finished === undefined || other.finished > started),
    );
    return before.length >= (this.users[user]?.slots ?? 1);
  }

  /**
   * The number of workers that run jobs of others: a job that could run waits for a worker, so no worker is free. A
   * worker that takes the next job at this moment does not count.
   */
  othersAt(at: number): number {
    return Math.min(...[0, 1 / 3, 2 / 3, 1].map((part) => this.#othersOnceAt(at - part * betweenJobs)));
  }

  #othersOnceAt(at: number): number {
    const queues = this.queues(at);
    const count = (jobs: (queue: QueueStatus) => SceneJob[]): number =>
      queues.reduce((sum, queue) => sum + jobs(queue).length, 0);
    const isWaited = count((queue) => (this.shared ? queue.waiting : queue.inSlot)) > 0;
    return isWaited ? this.workers - count((queue) => queue.running) : 0;
  }

  /** The number of other jobs in the queues when this one was created. */
  waitingBefore({ id, created }: SceneJob): number {
    return this.queues(created).reduce((sum, { waiting }) => sum + waiting.filter((job) => job.id !== id).length, 0);
  }

  /** The finished jobs at a moment, in the order of completion. */
  done(at: number): SceneJob[] {
    return this.#inOrder
      .filter((job) => job.finished !== undefined && job.finished <= at)
      .sort((a, b) => (a.finished ?? 0) - (b.finished ?? 0) || a.id - b.id);
  }

  /** Whether every job is done at a moment. */
  isOver(at: number): boolean {
    return this.#inOrder.every(({ finished }) => finished !== undefined && finished <= at);
  }

  /** When the next known change after a moment happens. */
  next(at: number): number | undefined {
    const times = this.#inOrder.flatMap(({ created, started, finished }) => [created, started, finished]);
    const later = times.filter((time) => time !== undefined && time > at) as number[];
    return later.length > 0 ? Math.min(...later) : undefined;
  }

  unfinished(user?: number): boolean {
    return this.#inOrder.some((job) => (user === undefined || job.user === user) && job.finished === undefined);
  }

  /** The latest time of any job. */
  get newest(): number {
    return Math.max(0, ...this.#inOrder.map((job) => job.finished ?? job.started ?? job.created));
  }

  /** The result of a job; undefined until it is finished. */
  outcome(id: number): Outcome | undefined {
    const job = this.#jobs.get(id);
    if (job?.finished === undefined) return undefined;
    const order = this.done(job.finished);
    return { seconds: (job.finished - job.created) / 1000, place: order.indexOf(job) + 1 };
  }
}
