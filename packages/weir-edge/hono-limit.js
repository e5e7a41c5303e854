// Middleware of Hono that only limits, for the module of the edge and for the one that only limits.

/** `limited` is that of either module. */
export const limitWith = (limited) => (options) => {
  const run = limited(options, async (c, next) => {
    await next();
    return c.res;
  });
  return async (c, next) => {
    const response = await run(c, next);
    if (response === c.res) return;
    // Hono would merge the headers of the two responses otherwise.
    c.res = undefined;
    c.res = response;
  };
};
