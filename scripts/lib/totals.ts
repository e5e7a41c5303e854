/** How many tests ended how. */
export class Totals {
  passed = 0;
  failed = 0;
  skipped = 0;

  add(passed: number, failed: number, skipped: number): void {
    this.passed += passed;
    this.failed += failed;
    this.skipped += skipped;
  }

  toString(): string {
    return `${this.passed} passed, ${this.failed} failed, ${this.skipped} skipped`;
  }
}

const line = /^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;/;

/** Adds what a line of `cargo test` tells, if it tells a result. */
export function addCargoLine(totals: Totals, text: string): void {
  const match = line.exec(text);
  if (match) totals.add(Number(match[1]), Number(match[2]), Number(match[3]));
}
