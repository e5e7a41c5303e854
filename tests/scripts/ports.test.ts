import assert from "node:assert/strict";
import { createServer, type Server } from "node:net";
import { afterEach, beforeEach, describe, it } from "node:test";
import { choosePorts, host } from "../../scripts/lib/ports.ts";

const name = "WEIR_PORT_OF_A_TEST";

function listening(): Promise<{ server: Server; port: number }> {
  return new Promise((done, failed) => {
    const server = createServer();
    server.once("error", failed);
    server.listen({ port: 0, host }, () => {
      const address = server.address();
      done({ server, port: typeof address === "object" && address ? address.port : 0 });
    });
  });
}

describe("the ports of a stack", () => {
  let taken: { server: Server; port: number };
  beforeEach(async () => {
    taken = await listening();
  });
  afterEach(() => {
    delete process.env[name];
    taken.server.close();
  });

  it("uses another port if the usual one is taken, different for each part", async () => {
    const part = { name, usual: taken.port, what: "a part" };
    const ports = await choosePorts([part, { ...part }]);
    for (const port of ports) assert.ok(port > taken.port && port < taken.port + 100, `${port}`);
    assert.equal(new Set(ports).size, 2);
  });

  it("uses a named port, and fails if it is taken", async () => {
    process.env[name] = String(taken.port);
    const part = { name, usual: taken.port + 1, what: "a part" };
    await assert.rejects(choosePorts([part]), { message: `port ${taken.port} for a part (${name}) is in use` });
    taken.server.close();
    assert.deepEqual(await choosePorts([part]), [taken.port]);
  });

  it("refuses values that are not ports", async () => {
    process.env[name] = "70000";
    await assert.rejects(choosePorts([{ name, usual: 1, what: "a part" }]), /which is not a port/);
  });
});
