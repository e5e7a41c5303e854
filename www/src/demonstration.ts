/**
 * The services of the demonstration, as the shipped weir.toml names them. With another catalogue the page has what any
 * service needs, and none of what only these have.
 */

/** Finds the tests in files. */
export const analysis = "analysis";

/** Makes a specification of the tests that an analysis has found. */
export const specview = "specview";

/** Takes what an analysis takes and does nothing with it, for as long as real work takes. */
export const demo = "demo";
