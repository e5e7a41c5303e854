/** An error that the user can fix: the problem and its remedy. */
export class Failure extends Error {
  readonly remedy: string;

  constructor(what: string, remedy: string) {
    super(what);
    this.name = "Failure";
    this.remedy = remedy;
  }
}

/** Prints an error, with the remedy on the last line. */
export function report(error: unknown): void {
  if (error instanceof Failure) {
    console.error(`weir: ${error.message}\nweir: fix: ${error.remedy}`);
  } else {
    console.error(error);
    console.error("weir: fix: this should not happen; please report it with the lines above");
  }
}
