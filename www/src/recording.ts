/** A flood as it was, in milliseconds from its first submission. */
export interface Recording {
  workers: number;
  /** The user, and when the job was created, started and finished; in the order of submission. */
  jobs: [user: number, created: number, started: number, finished: number][];
}

import recorded from "../recording.json";

export const recording = recorded as Recording;
