export interface Unchecked {
  /** A file or a folder. */
  path: string;
  reason: string;
}

/**
 * Files that may have findings. `npm run lint -- prose` fails for findings in any other file;
 * `npm run lint -- prose --all` also lists the findings of these.
 */
export const unchecked: Unchecked[] = [];

export interface Exception {
  path: string;
  rule: string;
  /** A part of the sentence or name. */
  text: string;
  reason: string;
}

/** Sentences that may break a rule. An exception without a finding fails the check as well. */
export const exceptions: Exception[] = [];
