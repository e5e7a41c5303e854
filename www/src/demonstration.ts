/**
 * The demonstration's services, by their names in the shipped weir.toml. With another catalogue, the page shows only
 * the features that work with any service.
 */

/** Finds the tests in files. */
export const analysis = "analysis";

/** Renders a specification of the tests that an analysis has found. */
export const specview = "specview";

/** Waits for a given time. */
export const demo = "demo";

/** The same work in one queue for all users, without Weir's admission. */
export const demoShared = "demo_shared";
