/**
 * The services of the demonstration, as the shipped weir.toml names them. With another catalogue the page has what any
 * service needs, and none of what only these have.
 */

/** Finds the tests in files. */
export const analysis = "analysis";

/** Makes a specification of the tests that an analysis has found. */
export const specview = "specview";

/** Does nothing, for a known time. */
export const demo = "demo";

/** The same work in one queue for all users, without Weir's admission. */
export const demoShared = "demo_shared";
