/** The numbers of passed, failed and skipped tests. */
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
