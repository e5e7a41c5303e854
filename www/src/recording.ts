/** The user, and when the job was created, started and finished, in milliseconds from the first submission. */
export type RecordedJob = [user: number, created: number, started: number, finished: number];

/** A recorded flood, with Weir and in one shared queue; the jobs are in the order of submission. */
export interface Recording {
  workers: number;
  weir: RecordedJob[];
  shared: RecordedJob[];
}

import recorded from "../recording.json";

export const recording = recorded as Recording;
